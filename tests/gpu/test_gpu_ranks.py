"""`python -m worker_svc --device cuda`: ranks on GPUs serve what transformers serves."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from octavo.internal.v1 import step_pb2
from tests.fakes.checkpoints import TinyModel, make_tiny_checkpoint
from tests.fakes.plan_writer import Chunk, PlanWriter
from tests.fakes.scripted_core import ScriptedCore
from tests.fakes.worker_process import running_worker
from tests.model.rigs import oracle, oracle_logits, random_tokens

LOAD_LIMIT_S = 150.0
FLAGS = [
    *("--device", "cuda", "--max-num-seqs", "24", "--max-num-batched-tokens", "256"),
    *("--num-kv-blocks", "60", "--log-level", "info"),
]
# bfloat16 against float32, in logits that spread over several units
MARGIN = 0.25
MODEL = TinyModel(
    family="qwen3",
    hidden_size=128,
    intermediate_size=192,
    num_layers=3,
    num_heads=8,
    head_dim=64,
    seed=4,
)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), model=MODEL)


@pytest.fixture
def core(tmp_path: Path) -> Iterator[ScriptedCore]:
    with ScriptedCore(tmp_path) as scripted:
        yield scripted


def stream(
    core: ScriptedCore, writer: PlanWriter, prompt: Sequence[int], *, num_tokens: int
) -> list[int]:
    """Greedy tokens; the prompt comes in two chunks."""
    half = len(prompt) // 2
    blocks = [(0, 40 - index) for index in range(8)]
    first = Chunk(slot=0, tokens=prompt[:half], position=0, samples=False, start=writer.start(0))
    assert core.run(writer.plan(chunks=[first], new_blocks=blocks)) == []
    tokens = core.run(writer.plan(chunks=[Chunk(slot=0, tokens=prompt[half:], position=half)]))
    while len(tokens) < num_tokens:
        tokens += core.run(writer.plan(steady=[0]))
    return tokens


@pytest.mark.parametrize(
    ("num_ranks", "all_reduce"),
    # two KV heads: shared by ranks from four on
    [(1, "auto"), (2, "auto"), (2, "nccl"), (4, "auto"), (4, "nccl"), (8, "auto"), (8, "nccl")],
)
@pytest.mark.parametrize("mode", ["graphs", "eager"])
def test_a_greedy_stream_is_transformers_choice_up_to_near_ties(
    tmp_path: Path, core: ScriptedCore, checkpoint: Path, num_ranks: int, all_reduce: str, mode: str
) -> None:
    if num_ranks > torch.cuda.device_count():
        pytest.skip(f"needs {num_ranks} GPUs")
    flags = ["--model", str(checkpoint), *FLAGS, "--tensor-parallel-size", str(num_ranks)]
    flags += ["--all-reduce", all_reduce]
    flags += ["--enforce-eager"] if mode == "eager" else []
    prompt = random_tokens(37)
    with running_worker(tmp_path, flags, module="worker_svc") as worker:
        hellos = core.hellos(ranks=range(num_ranks), limit_s=LOAD_LIMIT_S)
        assert {hello.num_blocks for hello in hellos} == {60}
        writer = core.welcome(hellos, limit_s=LOAD_LIMIT_S)
        tokens = stream(core, writer, prompt, num_tokens=40)
        core.send(step_pb2.CoreToRank(reset=step_pb2.Reset(epoch=core.epoch)))
        writer = core.welcome(core.hellos(ranks=range(num_ranks)))
        assert stream(core, writer, prompt, num_tokens=40) == tokens
        assert worker.stop() == 0
        assert "attention backend fa3" in worker.log
        has_peer_memory = num_ranks > 1 and all_reduce == "auto"
        assert ("sums over ranks in peer memory" in worker.log) == has_peer_memory
    logits = oracle_logits(oracle(checkpoint), prompt + tokens)
    chosen = logits[len(prompt) - 1 : -1]
    lost = chosen.max(dim=1).values - chosen.gather(1, torch.tensor(tokens)[:, None])[:, 0]
    assert float(lost.max()) < MARGIN
    assert float((lost == 0).float().mean()) > 0.8
    assert len(set(tokens)) > 8, "a stream that repeats itself tests nothing"
