"""Octavo: large language models over gRPC. Loads each name when it is first used.

Client, AsyncClient   call a running service
Engine                offline use: starts a private service and feeds it
SamplingParams        how tokens are chosen and when an output ends

`import octavo` alone loads neither gRPC nor protobuf, so that it costs nothing to whoever only
needs a message class or the version.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from octavo.aio import AsyncClient
    from octavo.aio_stream import AsyncStream
    from octavo.batch_request import BatchAnswer
    from octavo.client import Client
    from octavo.engine.engine import Engine
    from octavo.errors import (
        AlreadyExists,
        CallCancelled,
        ClientClosed,
        DeadlineExceeded,
        InternalError,
        InvalidRequest,
        InvalidTarget,
        LocalServiceFailed,
        MissingExtra,
        NotFound,
        OctavoError,
        Overloaded,
        ServiceError,
        Superseded,
        Unauthenticated,
        Unavailable,
        Violation,
    )
    from octavo.prompts import Message
    from octavo.results import (
        CancelOutcome,
        Completion,
        Delta,
        Embeddings,
        Estimate,
        Finish,
        FinishReason,
        Generation,
        ModelInfo,
        Score,
        Scores,
        StreamStart,
        TokenAlternative,
        TokenLogprob,
        Tokens,
        ToolCall,
        ToolCallDelta,
        Usage,
    )
    from octavo.retries import ReconnectPolicy, RetryPolicy
    from octavo.sampling import SamplingParams
    from octavo.stream import Stream
    from octavo.structured import StructuredOutput
    from octavo.tools import Tool

    __version__: str

__all__ = [
    "AlreadyExists",
    "AsyncClient",
    "AsyncStream",
    "BatchAnswer",
    "CallCancelled",
    "CancelOutcome",
    "Client",
    "ClientClosed",
    "Completion",
    "DeadlineExceeded",
    "Delta",
    "Embeddings",
    "Engine",
    "Estimate",
    "Finish",
    "FinishReason",
    "Generation",
    "InternalError",
    "InvalidRequest",
    "InvalidTarget",
    "LocalServiceFailed",
    "Message",
    "MissingExtra",
    "ModelInfo",
    "NotFound",
    "OctavoError",
    "Overloaded",
    "ReconnectPolicy",
    "RetryPolicy",
    "SamplingParams",
    "Score",
    "Scores",
    "ServiceError",
    "Stream",
    "StreamStart",
    "StructuredOutput",
    "Superseded",
    "TokenAlternative",
    "TokenLogprob",
    "Tokens",
    "Tool",
    "ToolCall",
    "ToolCallDelta",
    "Unauthenticated",
    "Unavailable",
    "Usage",
    "Violation",
    "__version__",
]

_HOME_OF = {
    "AlreadyExists": "octavo.errors",
    "AsyncClient": "octavo.aio",
    "AsyncStream": "octavo.aio_stream",
    "BatchAnswer": "octavo.batch_request",
    "CallCancelled": "octavo.errors",
    "CancelOutcome": "octavo.results",
    "Client": "octavo.client",
    "ClientClosed": "octavo.errors",
    "Completion": "octavo.results",
    "DeadlineExceeded": "octavo.errors",
    "Delta": "octavo.results",
    "Embeddings": "octavo.results",
    "Engine": "octavo.engine.engine",
    "Estimate": "octavo.results",
    "Finish": "octavo.results",
    "FinishReason": "octavo.results",
    "Generation": "octavo.results",
    "InternalError": "octavo.errors",
    "InvalidRequest": "octavo.errors",
    "InvalidTarget": "octavo.errors",
    "LocalServiceFailed": "octavo.errors",
    "Message": "octavo.prompts",
    "MissingExtra": "octavo.errors",
    "ModelInfo": "octavo.results",
    "NotFound": "octavo.errors",
    "OctavoError": "octavo.errors",
    "Overloaded": "octavo.errors",
    "ReconnectPolicy": "octavo.retries",
    "RetryPolicy": "octavo.retries",
    "SamplingParams": "octavo.sampling",
    "Score": "octavo.results",
    "Scores": "octavo.results",
    "ServiceError": "octavo.errors",
    "Stream": "octavo.stream",
    "StreamStart": "octavo.results",
    "StructuredOutput": "octavo.structured",
    "Superseded": "octavo.errors",
    "TokenAlternative": "octavo.results",
    "TokenLogprob": "octavo.results",
    "Tokens": "octavo.results",
    "Tool": "octavo.tools",
    "ToolCall": "octavo.results",
    "ToolCallDelta": "octavo.results",
    "Unauthenticated": "octavo.errors",
    "Unavailable": "octavo.errors",
    "Usage": "octavo.results",
    "Violation": "octavo.errors",
}


def __getattr__(name: str) -> object:
    if name == "__version__":
        value: object = import_module("importlib.metadata").version("octavo")
    elif name in _HOME_OF:
        value = getattr(import_module(_HOME_OF[name]), name)
    else:
        raise AttributeError(f"module 'octavo' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
