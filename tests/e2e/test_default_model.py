"""The embedded model answers as transformers runs it, and with sense."""

from collections.abc import Iterator

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from octavo.models.resolve import DEFAULT_MODEL, resolve_model
from octavo.v1 import inference_pb2 as api
from tests.e2e.calls import Received, connected, stream
from tests.e2e.replica import Replica, running_replica

QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Explain what a prime number is.",
    "List three uses of copper.",
    "Translate 'good morning' to Spanish.",
)
NUM_TOKENS = 64


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads on two busy cores wait for each other most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def replica() -> Iterator[Replica]:
    with running_replica(
        DEFAULT_MODEL, flags=["--dtype", "float32", "--cpu-threads", "1"]
    ) as started:
        yield started


def _chat(question: str) -> api.Generation:
    message = api.ChatMessage(role="user", content=question)
    return api.Generation(
        prompt=api.Prompt(chat=api.Chat(messages=[message])),
        sampling=api.SamplingParams(temperature=0),
        stopping=api.StoppingParams(max_tokens=NUM_TOKENS),
    )


def _ask(replica: Replica, question: str) -> Received:
    with connected(replica.target) as stub:
        [output] = stream(stub, _chat(question))
    return output


def test_greedy_answers_equal_those_of_transformers(replica: Replica) -> None:
    folder = resolve_model(DEFAULT_MODEL).path
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for question in QUESTIONS:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        with torch.inference_mode():
            out = network.generate(**prompt, do_sample=False, max_new_tokens=NUM_TOKENS)
        expected = out[0, prompt["input_ids"].shape[1] :].tolist()
        got = _ask(replica, question)
        assert got.token_ids == expected, question
        assert got.text == tokenizer.decode(expected, skip_special_tokens=True), question


def test_the_capital_of_france_is_known(replica: Replica) -> None:
    answer = _ask(replica, QUESTIONS[0])
    assert "Paris" in answer.text
    assert answer.finish is not None
    assert answer.finish.reason == api.FINISH_REASON_EOS


def test_log_probabilities_and_vectors_equal_those_of_transformers(replica: Replica) -> None:
    network = AutoModelForCausalLM.from_pretrained(
        resolve_model(DEFAULT_MODEL).path, dtype=torch.float32
    ).eval()
    wanted = _chat(QUESTIONS[0])
    wanted.output.MergeFrom(api.OutputParams(echo=True, top_logprobs=5, prompt_top_logprobs=2))
    with connected(replica.target) as stub:
        answer = stub.GenerateUnary(api.GenerateUnaryRequest(generation=wanted), timeout=60)
        prompt = list(answer.start.prompt.token_ids)
        asked = api.Prompt(token_ids=api.TokenIds(ids=prompt))
        vector = stub.Embed(api.EmbedRequest(prompts=[asked]), timeout=60).embeddings[0]
        tokens = list(answer.outputs[0].token_ids)
        tail = api.Continuation(token_ids=api.TokenIds(ids=tokens))
        scored = stub.Score(api.ScoreRequest(prompt=asked, continuations=[tail]), timeout=60)
    with torch.inference_mode():
        out = network(torch.tensor([prompt + tokens]), output_hidden_states=True)
    logprobs = torch.log_softmax(out.logits[0].double(), dim=1)
    told = [*answer.prompt_logprobs, *answer.outputs[0].logprobs]
    assert [one.token_id for one in told] == (prompt + tokens)[1:]
    for one, row in zip(told, logprobs, strict=False):
        assert abs(one.logprob - float(row[one.token_id])) < 1e-3
        best = row.topk(len(one.top))
        assert [a.logprob for a in one.top] == pytest.approx(best.values.tolist(), abs=1e-3)
        assert len(one.top) == (2 if one in answer.prompt_logprobs else 5)
    [score] = scored.scores
    assert score.is_greedy
    assert score.logprob == pytest.approx(
        sum(one.logprob for one in answer.outputs[0].logprobs), abs=1e-3
    )
    expected = out.hidden_states[-1][0, len(prompt) - 1]
    expected = expected / expected.norm()
    assert list(vector.values) == pytest.approx(expected.tolist(), abs=1e-3)
