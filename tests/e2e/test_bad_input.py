"""Whatever a caller sends, one clear error names the field, and the service lives on."""

from collections.abc import Callable, Iterator

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from octavo.v1 import inference_pb2 as api
from tests.e2e.calls import connected, generation, stream
from tests.e2e.replica import Replica, running_replica
from tests.fakes.checkpoints import TinyModel, make_tiny_checkpoint

VOCAB = TinyModel().vocab_size
LIMIT = TinyModel().max_position_embeddings
SAMPLING, STOPPING = "generation.sampling", "generation.stopping"


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    model = make_tiny_checkpoint(tmp_path_factory.mktemp("model"), family="qwen3")
    with running_replica(model, hash_worker=[]) as started:
        yield started


def _prompt(**kind: object) -> api.Generation:
    return api.Generation(prompt=api.Prompt(**kind))  # type: ignore[arg-type]


def _sampling(**fields: float) -> api.Generation:
    wanted = _prompt(text="hi")
    wanted.sampling.CopyFrom(api.SamplingParams(**fields))  # type: ignore[arg-type]
    return wanted


def _stopping(**fields: object) -> api.Generation:
    wanted = _prompt(text="hi")
    wanted.stopping.CopyFrom(api.StoppingParams(**fields))  # type: ignore[arg-type]
    return wanted


REFUSED: dict[str, tuple[api.Generation, list[str]]] = {
    "no prompt": (api.Generation(), ["generation.prompt"]),
    "empty text": (_prompt(text=""), ["generation.prompt.text"]),
    "no ids": (_prompt(token_ids=api.TokenIds()), ["generation.prompt.token_ids.ids"]),
    "ids outside the vocabulary": (
        _prompt(token_ids=api.TokenIds(ids=[1, VOCAB, -1])),
        ["generation.prompt.token_ids.ids[1]", "generation.prompt.token_ids.ids[2]"],
    ),
    "prompt as long as the limit": (
        _prompt(token_ids=api.TokenIds(ids=[1] * LIMIT)),
        ["generation.prompt"],
    ),
    "no messages": (_prompt(chat=api.Chat()), ["generation.prompt.chat.messages"]),
    "temperature NaN": (_sampling(temperature=float("nan")), [f"{SAMPLING}.temperature"]),
    "temperature below 0": (_sampling(temperature=-1), [f"{SAMPLING}.temperature"]),
    "temperature infinite": (_sampling(temperature=float("inf")), [f"{SAMPLING}.temperature"]),
    "top_p above 1": (_sampling(top_p=1.5), [f"{SAMPLING}.top_p"]),
    "n of 0": (_sampling(n=0), [f"{SAMPLING}.n"]),
    "n above the limit": (_sampling(n=17), [f"{SAMPLING}.n"]),
    "max_tokens 0": (_stopping(max_tokens=0), [f"{STOPPING}.max_tokens"]),
    "max_tokens below 0": (_stopping(max_tokens=-1), [f"{STOPPING}.max_tokens"]),
    "empty stop string": (_stopping(stop=["x", ""]), [f"{STOPPING}.stop[1]"]),
    "stop id outside": (_stopping(stop_token_ids=[VOCAB]), [f"{STOPPING}.stop_token_ids[0]"]),
    "several at once": (
        api.Generation(
            prompt=api.Prompt(text=""),
            sampling=api.SamplingParams(min_p=2, top_k=-2),
        ),
        ["generation.prompt.text", f"{SAMPLING}.min_p", f"{SAMPLING}.top_k"],
    ),
}


def _violations(error: grpc.RpcError) -> list[str]:
    trailing = {datum.key: datum.value for datum in error.trailing_metadata()}
    status = status_pb2.Status.FromString(trailing["grpc-status-details-bin"])
    for detail in status.details:
        request = error_details_pb2.BadRequest()
        if detail.Unpack(request):
            assert all(violation.description for violation in request.field_violations)
            return sorted(violation.field for violation in request.field_violations)
    return []


def _is_alive(replica: Replica) -> bool:
    with connected(replica.target) as stub:
        [output] = stream(stub, generation([1, 2, 3], max_tokens=3))
    return len(output.token_ids) == 3


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_names_every_field_and_the_service_lives_on(name: str, replica: Replica) -> None:
    wanted, fields = REFUSED[name]
    with connected(replica.target) as stub, pytest.raises(grpc.RpcError) as raised:
        list(stub.Generate(api.GenerateRequest(generation=wanted), timeout=30))
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert _violations(raised.value) == sorted(fields)
    assert _is_alive(replica)


@pytest.mark.parametrize(
    "wanted",
    [
        _prompt(text="   "),
        _prompt(chat=api.Chat(messages=[api.ChatMessage(role="user", content="")])),
        _prompt(token_ids=api.TokenIds(ids=[1] * (LIMIT - 1))),
        _prompt(token_ids=api.TokenIds(ids=[VOCAB - 1])),
    ],
    ids=["white space", "empty message", "room for one token", "a padded row's id"],
)
def test_prompts_at_the_edge_are_served(wanted: api.Generation, replica: Replica) -> None:
    wanted.stopping.max_tokens = 2**31 - 1
    wanted.stopping.stop_token_ids.extend(range(10))
    with connected(replica.target) as stub:
        answer = stub.GenerateUnary(api.GenerateUnaryRequest(generation=wanted), timeout=60)
    [output] = answer.outputs
    assert output.finish.reason in (
        api.FINISH_REASON_LENGTH,
        api.FINISH_REASON_EOS,
        api.FINISH_REASON_STOP_TOKEN,
    )
    assert answer.usage.prompt_tokens + len(output.token_ids) <= LIMIT
    assert answer.start.max_tokens == LIMIT - answer.usage.prompt_tokens


def test_an_unknown_model_and_an_unknown_id_are_not_found(replica: Replica) -> None:
    wanted = generation([1], max_tokens=1)
    wanted.model = "another"
    with connected(replica.target) as stub:
        calls: list[Callable[[], object]] = [
            lambda: list(stub.Generate(api.GenerateRequest(generation=wanted), timeout=30)),
            lambda: list(stub.Attach(api.AttachRequest(request_id="never-seen"), timeout=30)),
            lambda: stub.Cancel(api.CancelRequest(request_id="never-seen"), timeout=30),
        ]
        for call in calls:
            with pytest.raises(grpc.RpcError) as raised:
                call()
            assert raised.value.code() is grpc.StatusCode.NOT_FOUND
    assert _is_alive(replica)


def test_a_message_above_the_size_limit_is_refused(replica: Replica) -> None:
    wanted = _prompt(text="x" * (17 * 2**20))
    with connected(replica.target) as stub, pytest.raises(grpc.RpcError) as raised:
        stub.GenerateUnary(api.GenerateUnaryRequest(generation=wanted), timeout=60)
    code = raised.value.code()
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert _is_alive(replica)
