"""Kinds of end, in the core's words and in the public API's. Knows nothing of streams."""

from __future__ import annotations

from octavo.internal.v1 import engine_pb2 as engine
from octavo.v1 import inference_pb2 as api

# DEADLINE, DRAINED and QUEUE_TIME are missing: they end the call with a status, not in-band.
PUBLIC_REASON: dict[engine.EndReason.ValueType, api.FinishReason.ValueType] = {
    engine.END_REASON_EOS: api.FINISH_REASON_EOS,
    engine.END_REASON_STOP_TOKEN: api.FINISH_REASON_STOP_TOKEN,
    engine.END_REASON_STOP_STRING: api.FINISH_REASON_STOP_STRING,
    engine.END_REASON_LENGTH: api.FINISH_REASON_LENGTH,
    engine.END_REASON_TIME_LIMIT: api.FINISH_REASON_TIME_LIMIT,
    engine.END_REASON_CANCELLED: api.FINISH_REASON_CANCELLED,
    engine.END_REASON_ERROR: api.FINISH_REASON_ERROR,
}

ENGINE_REASON: dict[api.FinishReason.ValueType, engine.EndReason.ValueType] = {
    public: reason for reason, public in PUBLIC_REASON.items()
}

# Every kind of end, as logs call it.
LOG_WORD: dict[engine.EndReason.ValueType, str] = {
    value: name.removeprefix("END_REASON_").lower() for name, value in engine.EndReason.items()
}

# The label values of request_success.
METRIC_LABEL: dict[engine.EndReason.ValueType, str] = {
    engine.END_REASON_EOS: "eos",
    engine.END_REASON_STOP_TOKEN: "stop_token",
    engine.END_REASON_STOP_STRING: "stop_string",
    engine.END_REASON_LENGTH: "length",
    engine.END_REASON_TIME_LIMIT: "time_limit",
    engine.END_REASON_CANCELLED: "cancelled",
    engine.END_REASON_ERROR: "error",
}
