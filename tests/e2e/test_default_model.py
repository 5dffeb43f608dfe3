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
