"""`python -m worker_svc` with tiny checkpoints: what its ranks answer, refuse and offer."""

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from octavo.internal.v1 import step_pb2
from tests.fakes.checkpoints import make_tiny_checkpoint
from tests.fakes.plan_writer import Chunk, PlanWriter
from tests.fakes.scripted_core import ScriptedCore
from tests.fakes.worker_process import running_worker
from tests.model.rigs import oracle, oracle_logits, random_tokens
from worker_svc.config import InvalidConfig, WorkerConfig
from worker_svc.execution.kv_cache import KVLayout
from worker_svc.kv_memory import allocate_cache, num_cpu_blocks

# torch is imported by every rank, on a busy machine
LOAD_LIMIT_S = 90.0
BLOCK_SIZE = 16
FLAGS = ["--cpu-threads", "1", "--num-kv-blocks", "30", "--log-level", "info"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_checkpoint(tmp_path_factory.mktemp("tiny"), family="qwen3")


@pytest.fixture
def core(tmp_path: Path) -> Iterator[ScriptedCore]:
    with ScriptedCore(tmp_path) as scripted:
        yield scripted


def stream(
    core: ScriptedCore, writer: PlanWriter, prompt: Sequence[int], *, num_tokens: int
) -> list[int]:
    """Greedy tokens; the prompt comes in two chunks."""
    half = len(prompt) // 2
    blocks = [(0, 20 - index) for index in range(8)]
    first = Chunk(slot=0, tokens=prompt[:half], position=0, samples=False, start=writer.start(0))
    assert core.run(writer.plan(chunks=[first], new_blocks=blocks)) == []
    rest = Chunk(slot=0, tokens=prompt[half:], position=half)
    tokens = core.run(writer.plan(chunks=[rest]))
    while len(tokens) < num_tokens:
        tokens += core.run(writer.plan(steady=[0]))
    return tokens


def greedy_by_transformers(folder: Path, prompt: Sequence[int], *, num_tokens: int) -> list[int]:
    model, tokens = oracle(folder), list(prompt)
    for _ in range(num_tokens):
        tokens.append(int(oracle_logits(model, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_greedy_stream_equals_transformers(
    tmp_path: Path, core: ScriptedCore, checkpoint: Path, num_ranks: int
) -> None:
    prompt = random_tokens(37)
    flags = ["--model", str(checkpoint), *FLAGS, "--tensor-parallel-size", str(num_ranks)]
    with running_worker(tmp_path, flags, module="worker_svc") as worker:
        hellos = core.hellos(ranks=range(num_ranks), limit_s=LOAD_LIMIT_S)
        assert len({hello.model_digest for hello in hellos}) == 1
        assert hellos[0].model_type == "Qwen3ForCausalLM"
        assert (hellos[0].max_model_len, hellos[0].num_blocks) == (512, 30)
        tokens = stream(core, core.welcome(hellos), prompt, num_tokens=24)
        assert worker.stop() == 0
        assert "loading weights: 100 %" in worker.log
    expected = greedy_by_transformers(checkpoint, prompt, num_tokens=24)
    assert tokens == expected
    assert len(set(expected)) > 8, "a stream that repeats itself tests nothing"


def test_a_new_epoch_serves_the_same_stream(
    tmp_path: Path, core: ScriptedCore, checkpoint: Path
) -> None:
    prompt = random_tokens(20, seed=1)
    flags = ["--model", str(checkpoint), *FLAGS]
    with running_worker(tmp_path, flags, module="worker_svc"):
        hellos = core.hellos(limit_s=LOAD_LIMIT_S)
        before = stream(core, core.welcome(hellos), prompt, num_tokens=6)
        core.send(step_pb2.CoreToRank(reset=step_pb2.Reset(epoch=core.epoch)))
        again = core.hellos()
        assert again[0].pid == hellos[0].pid
        assert stream(core, core.welcome(again), prompt, num_tokens=6) == before


def test_a_group_that_lost_a_rank_meets_again_and_serves_the_same_stream(
    tmp_path: Path, core: ScriptedCore, checkpoint: Path
) -> None:
    prompt = random_tokens(20, seed=2)
    flags = ["--model", str(checkpoint), *FLAGS, "--tensor-parallel-size", "2"]
    with running_worker(tmp_path, flags, module="worker_svc"):
        first = core.hellos(ranks=[0, 1], limit_s=LOAD_LIMIT_S)
        before = stream(core, core.welcome(first), prompt, num_tokens=4)
        os.kill(first[1].pid, signal.SIGKILL)
        second = core.hellos(ranks=[0, 1], limit_s=LOAD_LIMIT_S)
        assert second[0].group_incarnation != first[0].group_incarnation
        assert stream(core, core.welcome(second), prompt, num_tokens=4) == before


def test_random_weights_need_no_weight_file(tmp_path: Path, core: ScriptedCore) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model", family="llama")
    (folder / "model.safetensors").unlink()
    flags = ["--model", str(folder), *FLAGS, "--load-format", "random"]
    with running_worker(tmp_path, flags, module="worker_svc"):
        hellos = core.hellos(limit_s=LOAD_LIMIT_S)
        tokens = stream(core, core.welcome(hellos), random_tokens(9), num_tokens=3)
        assert all(0 <= token < hellos[0].vocab_size for token in tokens)


def cut_weights(folder: Path) -> list[str]:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    return [str(weights)]


def lose_weights(folder: Path) -> list[str]:
    (folder / "model.safetensors").unlink()
    return [str(folder / "model.safetensors")]


@pytest.mark.parametrize("spoil", [cut_weights, lose_weights])
def test_a_model_that_cannot_be_loaded_is_named_and_not_tried_again(
    tmp_path: Path, core: ScriptedCore, spoil: object
) -> None:
    folder = make_tiny_checkpoint(tmp_path / "model")
    assert callable(spoil)
    words = spoil(folder)
    with running_worker(tmp_path, ["--model", str(folder), *FLAGS], module="worker_svc") as worker:
        state = core.state(lambda s: bool(s.permanent_error), limit_s=LOAD_LIMIT_S)
        assert all(word in state.permanent_error for word in words), state.permanent_error
        assert state.num_restarts == 0
        assert worker.stop() == 78
        assert "Traceback" not in worker.log


def test_a_number_of_ranks_that_does_not_divide_the_model_is_named(
    tmp_path: Path, core: ScriptedCore, checkpoint: Path
) -> None:
    flags = ["--model", str(checkpoint), *FLAGS, "--tensor-parallel-size", "3"]
    with running_worker(tmp_path, flags, module="worker_svc"):
        state = core.state(lambda s: bool(s.permanent_error), limit_s=LOAD_LIMIT_S)
        assert "--tensor-parallel-size 3 does not fit the model" in state.permanent_error


def layout(num_blocks: int = 0) -> KVLayout:
    """Blocks of 2 * 4 layers * 16 tokens * 2 heads * 32 * 4 bytes = 32 kB."""
    return KVLayout(
        num_layers=4,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        num_kv_heads=2,
        head_dim=32,
        dtype=torch.float32,
    )


def config_with(**settings: int) -> WorkerConfig:
    return WorkerConfig(run_dir="x", model="x", **settings)  # type: ignore[arg-type] # all are int


def test_blocks_are_as_told_or_as_many_as_fit_or_can_be_used() -> None:
    block_bytes = layout().bytes_per_block
    assert num_cpu_blocks(config_with(num_kv_blocks=7), layout(), max_model_len=64) == 7
    bytes_for_9 = config_with(kv_cache_bytes=9 * block_bytes + 5)
    assert num_cpu_blocks(bytes_for_9, layout(), max_model_len=64) == 9
    few = config_with(max_num_seqs=3)
    assert num_cpu_blocks(few, layout(), max_model_len=33) == 3 * 3 + 1
    many = config_with(max_num_seqs=256)
    assert num_cpu_blocks(many, layout(), max_model_len=10**6) == 2**30 // block_bytes


def test_a_cache_too_small_for_a_block_is_refused_with_the_numbers() -> None:
    with pytest.raises(
        InvalidConfig, match="--kv-cache-bytes 100 is too small: a block takes 32768"
    ):
        num_cpu_blocks(config_with(kv_cache_bytes=100), layout(), max_model_len=64)


def test_a_cache_larger_than_the_memory_is_refused_with_the_numbers() -> None:
    with pytest.raises(InvalidConfig, match=r"needs 3,276,800,000,000 bytes .* bytes are free"):
        allocate_cache(layout(num_blocks=10**8))
