"""Which number format a model runs in. Knows the processor's flags, no tensor."""

import logging
from collections.abc import Collection
from pathlib import Path

import torch

_LOGGER = logging.getLogger(__name__)

_NAMED = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
DTYPE_CHOICES = ("auto", *_NAMED)
"""Values of `--dtype`."""

_FAST_BFLOAT16_FLAGS = frozenset({"amx_bf16", "avx512_bf16"})


def choose_dtype(
    requested: str, *, stored: str, device: torch.device, processor_flags: Collection[str]
) -> torch.dtype:
    """The format to run in.

    `requested` is one of `DTYPE_CHOICES`, `stored` the checkpoint's format. "auto" is bfloat16 on a
    GPU; on a CPU float32, unless the weights are bfloat16 and the processor multiplies it.
    """
    if requested == "float16" and stored != "float16":
        _LOGGER.warning(
            "running a %s model in float16: values beyond 65504 become NaN; bfloat16 has the range",
            stored,
        )
    if requested != "auto":
        return _NAMED[requested]
    if device.type != "cpu":
        return torch.bfloat16
    has_fast_bfloat16 = not _FAST_BFLOAT16_FLAGS.isdisjoint(processor_flags)
    return torch.bfloat16 if stored == "bfloat16" and has_fast_bfloat16 else torch.float32


def read_processor_flags(cpuinfo: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The feature flags that Linux reports; empty where it reports none."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in {"flags", "Features"}:
            return frozenset(value.split())
    return frozenset()
