"""With workers whose next token is a hash of the history, every mode gives the same bytes."""

import random
from pathlib import Path

import pytest

from tests.e2e.calls import generation, stream_all
from tests.e2e.replica import running_replica
from tests.fakes.byte_tokenizer import NUM_IDS
from tests.fakes.checkpoints import make_tiny_checkpoint
from tests.fakes.hash_tokens import expected_tokens

VOCAB = NUM_IDS  # ids that the tokenizer knows; the model has more rows
# name: service flags, worker flags, requests at once
MODES: dict[str, tuple[list[str], list[str], int]] = {
    "plain": ([], [], 64),
    "alone": ([], [], 1),
    "no-prefix-cache": (["--no-prefix-cache"], [], 64),
    "one-step-in-flight": (["--max-steps-in-flight", "1"], [], 64),
    "chunks-of-7": (["--max-prefill-chunk-tokens", "7"], [], 32),
    "tiny-cache": ([], ["--num-kv-blocks", "40"], 64),
    "tiny-cache-one-step": (["--max-steps-in-flight", "1"], ["--num-kv-blocks", "40"], 64),
    "tiny-budget": ([], ["--max-num-batched-tokens", "16", "--max-num-seqs", "8"], 32),
    "two-frontends": (["--frontends", "2"], [], 64),
    "two-ranks": ([], ["--tensor-parallel-size", "2"], 32),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    make_tiny_checkpoint(folder, family="qwen3")
    return folder


def _prompts(count: int) -> list[list[int]]:
    """Lengths around block borders, half of them with a shared beginning."""
    draw = random.Random(7)
    shared = [draw.randrange(VOCAB) for _ in range(50)]
    lengths = (1, 15, 16, 17, 32, 48, 83, 150)
    prompts = []
    for index in range(count):
        own = [draw.randrange(VOCAB) for _ in range(lengths[index % len(lengths)])]
        prompts.append(shared + own if index % 2 else own)
    return prompts


@pytest.mark.parametrize("mode", MODES)
def test_streams_are_byte_identical_in_every_mode(mode: str, model: Path) -> None:
    flags, worker_flags, at_once = MODES[mode]
    prompts = _prompts(64)
    wanted = [
        generation(p, max_tokens=20 + i % 40, temperature=float(i % 2), seed=i)
        for i, p in enumerate(prompts)
    ]
    with running_replica(model, flags=flags, hash_worker=worker_flags) as replica:
        if at_once == 1:
            outputs = [stream_all(replica.target, [one])[0] for one in wanted[:8]]
        else:
            outputs = stream_all(replica.target, wanted[:at_once])
    for index, [output] in enumerate(outputs):
        expected = expected_tokens(
            prompts[index],
            20 + index % 40,
            seed=index,
            temperature=float(index % 2),
            vocab_size=VOCAB,
        )
        assert output.token_ids == expected, f"request {index}"
