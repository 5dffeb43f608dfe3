"""The trace that a call belongs to, where its program uses OpenTelemetry. Makes no span itself."""

from __future__ import annotations

import sys
from importlib import import_module

MetadataPairs = tuple[tuple[str, str | bytes], ...]


def trace_metadata() -> MetadataPairs:
    """The present trace context as gRPC metadata, in the formats of OTEL_PROPAGATORS.

    Empty where the program never imported OpenTelemetry: it is not loaded for this.
    """
    if "opentelemetry.trace" not in sys.modules:
        return ()
    carrier: dict[str, str] = {}
    # an optional package, so its types are not ours to name
    import_module("opentelemetry.propagate").inject(carrier)
    return tuple((key.lower(), value) for key, value in carrier.items())
