"""Every metric of the service: name, kind, meaning. Counts nothing.

Names follow vLLM's where they mean the same. Exposed with the prefix `octavo_`; counters also with
the suffix `_total`.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

_BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_STEP_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
_STEP_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
_TOKEN_SECONDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3),
    *(0.5, 1.0, 2.0, 5.0),
)
_REQUEST_SECONDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0),
    *(10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric; `buckets` are a histogram's upper borders, the last, unbounded one left out."""

    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


CATALOG: dict[str, MetricSpec] = {
    # --- core ---
    "num_requests_running": MetricSpec("gauge", "Sequences in the running batch"),
    "num_requests_waiting": MetricSpec("gauge", "Sequences waiting, preempted ones included"),
    "num_requests_waiting_by_reason": MetricSpec(
        "gauge",
        "Sequences that do not run, by what they wait for: turn, slot, blocks, prompt (that another"
        " output computes), reader, alone (suspects), workers, results",
        ("reason",),
    ),
    "num_tokens_waiting_by_reason": MetricSpec(
        "gauge",
        "Known tokens of those sequences, prompts and outputs so far, by the same reasons",
        ("reason",),
    ),
    "num_requests_live": MetricSpec("gauge", "Requests with an output that has not ended"),
    "num_tokens_waiting": MetricSpec("gauge", "Prompt tokens of requests that have not run yet"),
    "kv_blocks_in_use": MetricSpec("gauge", "KV blocks held by sequences"),
    "kv_blocks_cached": MetricSpec("gauge", "KV blocks free to take, their contents findable"),
    "kv_blocks_fenced": MetricSpec("gauge", "KV blocks that are free once steps in flight end"),
    "kv_blocks_free": MetricSpec("gauge", "KV blocks that hold nothing"),
    "kv_cache_usage_perc": MetricSpec("gauge", "Share of KV blocks in use; 1 is all of them"),
    "cache_config_info": MetricSpec(
        "gauge",
        "Always 1; its labels say how the KV cache is cut",
        ("block_size", "num_gpu_blocks"),
    ),
    "prefix_cache_queries": MetricSpec(
        "counter", "Prompt tokens looked up, once per request, however often it is resumed"
    ),
    "prefix_cache_hits": MetricSpec("counter", "Prompt tokens found in the prefix cache"),
    "num_preemptions": MetricSpec("counter", "Sequences that lost their blocks and ran again"),
    "prompt_tokens": MetricSpec(
        "counter", "Prompt tokens of requests that began to run, resumed ones left out"
    ),
    "generation_tokens": MetricSpec("counter", "Tokens generated"),
    "replayed_tokens": MetricSpec(
        "counter", "Known tokens computed again: after preemptions, restarts, resumed streams"
    ),
    "requests_rejected": MetricSpec("counter", "Requests refused, by reason", ("reason",)),
    "request_queue_time_seconds": MetricSpec(
        "histogram", "Time from arrival to a request's first step", buckets=_REQUEST_SECONDS
    ),
    "step_seconds": MetricSpec(
        "histogram",
        "Time of a step as the core sees it, by kind: decode, prefill, mixed",
        ("kind",),
        _STEP_SECONDS,
    ),
    "step_sequences": MetricSpec(
        "histogram", "Sequences in a step: the batch size", buckets=_BATCH_SIZES
    ),
    "step_tokens": MetricSpec(
        "histogram", "Tokens computed in a step, prompts and outputs", buckets=_STEP_TOKENS
    ),
    "last_progress_timestamp_seconds": MetricSpec(
        "gauge", "Unix time at which a step completed last, or work came after there was none"
    ),
    "steps_done": MetricSpec("gauge", "Steps completed in this epoch"),
    "epoch": MetricSpec("gauge", "Epochs begun by this core"),
    "recoveries": MetricSpec("counter", "Epochs that ended, by cause", ("cause",)),
    "recovery_seconds": MetricSpec(
        "histogram",
        "Time of a recovery with streams that waited, by part: workers_respawn (an epoch's end to "
        "the next rank group), workers_load (to all Hellos), workers_prepare (Welcome to Ready), "
        "workers_first_token (Ready to the next token), core_return (the core lost to one that "
        "computes), core_first_token (from there to the next token)",
        ("part",),
        _REQUEST_SECONDS,
    ),
    "grammar_compile_seconds": MetricSpec(
        "histogram",
        "Time to compile a grammar of structured output, by outcome: compiled, refused",
        ("outcome",),
        _STEP_SECONDS,
    ),
    "grammar_cache_grammars": MetricSpec("gauge", "Grammars kept for requests to come"),
    "grammar_cache_bytes": MetricSpec("gauge", "Memory that they take, estimated"),
    "worker_up": MetricSpec("gauge", "1 while the rank takes part in an epoch", ("rank",)),
    # --- frontends ---
    "grpc_server_started": MetricSpec(
        "counter", "Calls that arrived; those without a valid key as method any", ("grpc_method",)
    ),
    "grpc_server_handled": MetricSpec(
        "counter", "Calls that ended, by status", ("grpc_method", "grpc_code")
    ),
    "time_to_first_token_seconds": MetricSpec(
        "histogram", "Time from arrival to the first token sent", buckets=_REQUEST_SECONDS
    ),
    "request_prefill_time_seconds": MetricSpec(
        "histogram",
        "Time from a request's first step to its first token sent",
        buckets=_REQUEST_SECONDS,
    ),
    "request_decode_time_seconds": MetricSpec(
        "histogram",
        "Time from a request's first token sent to its last one",
        buckets=_REQUEST_SECONDS,
    ),
    "inter_token_latency_seconds": MetricSpec(
        "histogram", "Time between tokens of an output", buckets=_TOKEN_SECONDS
    ),
    "e2e_request_latency_seconds": MetricSpec(
        "histogram",
        "Time from arrival to a request's end, early ends too",
        buckets=_REQUEST_SECONDS,
    ),
    "request_success": MetricSpec(
        "counter", "Outputs that ended in-band, by reason", ("finished_reason",)
    ),
    "requests_aborted": MetricSpec(
        "counter", "Streams of accepted requests that ended with an error status", ("cause",)
    ),
    "tenant_requests": MetricSpec(
        "counter",
        "Requests served, each prompt of Embed and continuation of Score being one, by tenant;"
        " those past the first 100 of the file of keys are (other)",
        ("tenant",),
    ),
    "tenant_prompt_tokens": MetricSpec("counter", "Prompt tokens of those, by tenant", ("tenant",)),
    "tenant_generation_tokens": MetricSpec(
        "counter", "Tokens sent to clients, by tenant", ("tenant",)
    ),
    "stream_stalls": MetricSpec(
        "counter",
        "Gaps of a second or more in streams: the service had no token, or the client did not read",
        ("side",),
    ),
}
