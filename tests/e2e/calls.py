"""Calls as another team's service would make them: generated stubs over real gRPC."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

import grpc

from octavo.v1 import inference_pb2 as api
from octavo.v1.inference_pb2_grpc import InferenceServiceStub

CALL_LIMIT_S = 120.0


@dataclass
class Received:
    """What a client got of one output."""

    token_ids: list[int] = field(default_factory=list)
    text: str = ""
    finish: api.Finish | None = None


@contextmanager
def connected(target: str) -> Iterator[InferenceServiceStub]:
    """A stub on a channel of its own."""
    with grpc.insecure_channel(target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
        yield InferenceServiceStub(channel)


def generation(
    prompt: str | Sequence[int],
    *,
    max_tokens: int,
    temperature: float = 0.0,
    seed: int | None = None,
    n: int | None = None,
    ignore_eos: bool = True,
    request_id: str = "",
    keep_for_s: float | None = None,
    stop: Sequence[str] = (),
) -> api.Generation:
    """A request with what tests vary; a list of ids or a text."""
    if isinstance(prompt, str):
        wanted = api.Prompt(text=prompt)
    else:
        wanted = api.Prompt(token_ids=api.TokenIds(ids=prompt))
    return api.Generation(
        request_id=request_id,
        prompt=wanted,
        sampling=api.SamplingParams(temperature=temperature, seed=seed, n=n),
        stopping=api.StoppingParams(max_tokens=max_tokens, ignore_eos=ignore_eos, stop=stop),
        scheduling=api.SchedulingParams(keep_for_s=keep_for_s),
    )


def collect(chunks: Iterator[api.StreamChunk]) -> list[Received]:
    """Joins a stream, checking that nothing is repeated, skipped or sent after an end."""
    outputs: dict[int, Received] = {}
    for chunk in chunks:
        for delta in chunk.outputs:
            output = outputs.setdefault(delta.index, Received())
            assert output.finish is None, "a delta after the finish"
            assert delta.first_token_index == len(output.token_ids), "a token repeated or skipped"
            output.token_ids += delta.token_ids
            output.text += delta.text
            if delta.HasField("finish"):
                output.finish = delta.finish
    assert outputs, "an empty stream"
    assert all(output.finish is not None for output in outputs.values()), "a stream with no end"
    return [outputs[index] for index in sorted(outputs)]


def stream(stub: InferenceServiceStub, wanted: api.Generation) -> list[Received]:
    """Generate, joined."""
    call = stub.Generate(api.GenerateRequest(generation=wanted), timeout=CALL_LIMIT_S)
    return collect(response.chunk for response in call)


def stream_all(target: str, wanted: Sequence[api.Generation]) -> list[list[Received]]:
    """All requests at once, each on a thread; results in the order given."""
    with connected(target) as stub, ThreadPoolExecutor(len(wanted)) as pool:
        return list(pool.map(lambda one: stream(stub, one), wanted))
