"""What is told of tokens follows them through short memory and through the death of every process.

Workers tell words that follow from a token and its position, so a record that is lost, repeated or
of another token shows.
"""

import struct
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import grpc
import pytest

from octavo.v1 import inference_pb2 as api
from octavo.v1.inference_pb2_grpc import InferenceServiceStub
from tests.e2e.calls import CALL_LIMIT_S, connected, generation
from tests.e2e.replica import Replica, running_replica, wait_until
from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import make_tiny_checkpoint
from tests.fakes.hash_records import logprob_of, rank_of, vector_of
from tests.fakes.hash_tokens import expected_tokens
from worker_svc.slot_rules import Pooling

pytestmark = pytest.mark.chaos
FLAGS = ["--step-deadline-floor", "1", "--frontends", "2"]
# so few blocks that sequences are preempted all the time
WORKER = ["--step-ms", "8", "--num-kv-blocks", "40"]
NUM_STREAMS, NUM_TOKENS = 8, 110
EPOCH = "core         epoch "


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("model"), family="qwen3")


@pytest.fixture(scope="module")
def replica(model: Path) -> Iterator[Replica]:
    with running_replica(model, flags=FLAGS, hash_worker=WORKER) as started:
        yield started


def prompt_of(index: int) -> list[int]:
    return [(7 * index + 3 * j) % NUM_IDS for j in range(20 + 11 * index)]


def check_told(told: Sequence[api.TokenLogprob], tokens: Sequence[int], first: int) -> None:
    """Each has the words of its token at its position."""
    assert [one.token_id for one in told] == list(tokens)
    for position, one in enumerate(told, first):
        assert one.logprob == logprob_of(one.token_id, position)
        assert one.rank == rank_of(one.token_id, position)
        for place, alternative in enumerate(one.top):
            assert (alternative.token_id, alternative.logprob) == (place, -place / 4)
        for alternative in one.chosen:
            assert alternative.logprob == logprob_of(alternative.token_id, position)


class Caller(threading.Thread):
    """One stream with everything told; it goes on by Attach when it breaks."""

    def __init__(self, replica: Replica, index: int) -> None:
        super().__init__(daemon=True)
        self.prompt = prompt_of(index)
        self.wanted = generation(
            self.prompt, max_tokens=NUM_TOKENS, temperature=1, seed=index, n=1 + index % 2,
            request_id=f"told-{index}", keep_for_s=60,
        )  # fmt: skip
        self.wanted.output.MergeFrom(
            api.OutputParams(top_logprobs=2, logprob_token_ids=[5, 9], prompt_top_logprobs=1)
        )
        self.tokens: list[list[int]] = [[] for _ in range(1 + index % 2)]
        self.told: list[list[api.TokenLogprob]] = [[] for _ in self.tokens]
        self.prompts: list[list[api.TokenLogprob]] = []
        self.finished: set[int] = set()
        self.breaks: list[str] = []
        self._target = replica.target

    @property
    def num_tokens(self) -> int:
        """Received so far."""
        return sum(len(tokens) for tokens in self.tokens)

    def run(self) -> None:
        with connected(self._target) as stub:
            for _ in range(200):
                if len(self.finished) == len(self.tokens):
                    return
                self._take(self._call(stub))
                time.sleep(0.05)

    def _call(self, stub: InferenceServiceStub) -> object:
        if not any(self.tokens):
            # a repeat of what was accepted, or the first that is
            return stub.Generate(api.GenerateRequest(generation=self.wanted), timeout=60)
        request = api.AttachRequest(
            request_id=self.wanted.request_id, from_tokens=[len(t) for t in self.tokens]
        )
        return stub.Attach(request, timeout=60)

    def _take(self, call: object) -> None:
        try:
            for response in call:  # type: ignore[attr-defined] # a stream of either call
                chunk = response.chunk
                if chunk.HasField("start"):
                    self.prompts.append(list(chunk.prompt_logprobs))
                for delta in chunk.outputs:
                    self.tokens[delta.index] += delta.token_ids
                    self.told[delta.index] += delta.logprobs
                    if delta.HasField("finish"):
                        self.finished.add(delta.index)
        except grpc.RpcError as error:
            # it goes on
            self.breaks.append(str(error))


def test_records_live_through_every_death(replica: Replica) -> None:
    callers = [Caller(replica, index) for index in range(NUM_STREAMS)]
    for caller in callers:
        caller.start()
    for victim in ("tests.fakes.hash_rank", "scheduler_svc.engine", "frontend-0"):
        # one death at a time: what two processes knew alone is gone with both
        before = [caller.num_tokens for caller in callers]
        wait_until(
            lambda: all(
                caller.num_tokens > known or not caller.is_alive()
                for caller, known in zip(callers, before, strict=True)  # noqa: B023 - called here
            ),
            limit_s=60,
        )
        num_epochs = replica.log().count(EPOCH)
        replica.process(victim).kill()
        if victim != "frontend-0":
            # what flows before was under way when it died
            wait_until(lambda: replica.log().count(EPOCH) > num_epochs, limit_s=60)  # noqa: B023 - called here
    for caller in callers:
        caller.join(CALL_LIMIT_S)
    for index, caller in enumerate(callers):
        # a death may break a call; the service itself may not fail one
        assert not [text for text in caller.breaks if "the service failed" in text]
        assert len(caller.finished) == len(caller.tokens), (caller.is_alive(), caller.breaks[-3:])
        prompt = caller.prompt
        expected = expected_tokens(
            prompt, NUM_TOKENS, seed=index, temperature=1.0, vocab_size=NUM_IDS
        )
        assert caller.tokens[0] == expected, caller.breaks[-3:]
        for tokens, told in zip(caller.tokens, caller.told, strict=True):
            assert len(tokens) == NUM_TOKENS, caller.breaks[-3:]
            check_told(told, tokens, len(prompt))
        for of_prompt in caller.prompts:
            check_told(of_prompt, prompt[1:], 1)


def scored(stub: InferenceServiceStub, prompt: list[int], tails: list[list[int]]) -> None:
    response = stub.Score(
        api.ScoreRequest(
            prompt=api.Prompt(token_ids=api.TokenIds(ids=prompt)),
            continuations=[api.Continuation(token_ids=api.TokenIds(ids=tail)) for tail in tails],
        ),
        timeout=CALL_LIMIT_S,
    )
    for tail, score in zip(tails, response.scores, strict=True):
        check_told(score.tokens, tail, len(prompt))
        assert score.logprob == sum(one.logprob for one in score.tokens)


def test_scores_and_vectors_come_through_deaths(replica: Replica) -> None:
    prompts = [prompt_of(index) for index in range(12)]
    pooled: list[api.EmbedResponse] = []

    def embed() -> None:
        with connected(replica.target) as stub:
            request = api.EmbedRequest(
                prompts=[api.Prompt(token_ids=api.TokenIds(ids=one)) for one in prompts * 8],
                pooling=api.POOLING_MEAN,
                normalize=False,
            )
            pooled.append(stub.Embed(request, timeout=CALL_LIMIT_S))

    def score() -> None:
        with connected(replica.target) as stub:
            tails = [[(index * 3) % NUM_IDS, index] for index in range(40)]
            scored(stub, prompts[5], tails)

    threads = [threading.Thread(target=work, daemon=True) for work in (embed, score)]
    for thread in threads:
        thread.start()
    for victim in ("tests.fakes.hash_rank", "scheduler_svc.engine"):
        time.sleep(0.3)
        replica.process(victim).kill()
    for thread in threads:
        thread.join(CALL_LIMIT_S)
        assert not thread.is_alive()
    [response] = pooled
    for prompt, embedding in zip(prompts * 8, response.embeddings, strict=True):
        expected = struct.unpack("<16f", vector_of(prompt, pooling=Pooling.MEAN))
        assert list(embedding.values) == list(expected)


def test_allowed_ids_and_bad_words_hold(replica: Replica) -> None:
    with connected(replica.target) as stub:
        wanted = generation([3, 4, 5], max_tokens=60, temperature=1, seed=4)
        wanted.sampling.allowed_token_ids.extend([65, 66, 67])
        response = stub.GenerateUnary(
            api.GenerateUnaryRequest(generation=wanted), timeout=CALL_LIMIT_S
        )
        assert set(response.outputs[0].token_ids) <= {65, 66, 67}
        text = response.outputs[0].text
        word = text[10:12]
        wanted.sampling.bad_words.append(word)
        again = stub.GenerateUnary(
            api.GenerateUnaryRequest(generation=wanted), timeout=CALL_LIMIT_S
        )
        assert word not in again.outputs[0].text
        assert len(again.outputs[0].token_ids) == 60
