"""What goes wrong on a GPU ends no stream: ranks killed, stopped or hung, no memory, bad rows.

Real processes, streams through the SDK; `tests/gpu/faults.sh` runs all of it with a summary.
"""

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import octavo
from bench.random_model import write_random_model
from bench.roofline import MODELS
from tests.e2e.replica import ROOT, Replica, running_replica, start_replica, wait_until
from tests.fakes.checkpoints import make_tiny_checkpoint, tensors_of, write_tensors
from tests.gpu.fault_rig import (
    HAS_GPU,
    MODEL,
    POISON_ID,
    SERVICE_FLAGS,
    WORKER_FLAGS,
    Wish,
    check,
    make_wishes,
    ranks_of,
    read_while,
    tokens_of,
)
from tests.gpu.faulty_rank import FAULTS
from tests.model.rigs import oracle

NUM_STREAMS, NUM_TOKENS = 16, 1500
RECOVERY_LIMIT_S = 90.0
HOG_S = 20.0
# how many ranks, and which of them it befalls
VICTIMS = pytest.mark.parametrize(("num_ranks", "victim"), [(1, 0), (2, 1)])
needs_gpu = pytest.mark.skipif(not HAS_GPU, reason="needs a GPU")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One whose row of the poisoned id is no number."""
    folder = make_tiny_checkpoint(tmp_path_factory.mktemp("model"), model=MODEL)
    tensors = dict(tensors_of(MODEL))
    tensors["model.embed_tokens.weight"][POISON_ID] = float("nan")
    tensors["lm_head.weight"][POISON_ID] = 0.0
    write_tensors(folder, tensors)
    return folder


@pytest.fixture(scope="module")
def reference(model: Path) -> torch.nn.Module:
    return oracle(model)


def worker_flags(num_ranks: int) -> list[str]:
    if HAS_GPU and num_ranks > torch.cuda.device_count():
        pytest.skip(f"needs {num_ranks} GPUs")
    return [*WORKER_FLAGS, "--tensor-parallel-size", str(num_ranks)]


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which faulty ranks look for what they shall do wrong."""
    monkeypatch.setenv(FAULTS, str(tmp_path))
    return tmp_path


def wait_for_log(replica: Replica, words: str, *, times: int = 1) -> None:
    wait_until(
        lambda: replica.log().count(words) >= times,
        limit_s=RECOVERY_LIMIT_S,
        otherwise=lambda: f"{words!r} never logged:\n{replica.log()[-6000:]}",
    )


def assert_serves(replica: Replica, reference: torch.nn.Module) -> None:
    """New requests are answered as if nothing had happened."""
    replica.wait_ready(limit_s=RECOVERY_LIMIT_S)
    wishes = make_wishes(3, 40)
    for wish in wishes:
        wish.tokens = tokens_of(replica.target, wish)
    check(reference, wishes)


@pytest.mark.parametrize(("num_ranks", "victim"), [(1, 0), (2, 0), (2, 1)])
def test_a_killed_rank_loses_no_stream(
    model: Path, reference: torch.nn.Module, num_ranks: int, victim: int
) -> None:
    wishes = make_wishes(NUM_STREAMS, NUM_TOKENS)
    flags = [*worker_flags(num_ranks), *SERVICE_FLAGS]
    with running_replica(model, flags=flags) as replica:
        read_while(replica.target, wishes, ranks_of(replica)[victim].kill)
        assert f"rank {victim} ended with signal 9" in replica.log()
        assert_serves(replica, reference)
    check(reference, wishes)


@VICTIMS
def test_a_stopped_rank_is_killed_by_the_step_deadline(
    model: Path, reference: torch.nn.Module, num_ranks: int, victim: int
) -> None:
    wishes = make_wishes(NUM_STREAMS, NUM_TOKENS)
    flags = [*worker_flags(num_ranks), *SERVICE_FLAGS]
    with running_replica(model, flags=flags) as replica:
        read_while(replica.target, wishes, ranks_of(replica)[victim].suspend)
        wait_for_log(replica, "killed by the core")
        assert_serves(replica, reference)
    check(reference, wishes)


@needs_gpu
@VICTIMS
def test_a_kernel_that_never_ends_is_killed_by_the_step_deadline(
    model: Path, reference: torch.nn.Module, faults: Path, num_ranks: int, victim: int
) -> None:
    wishes = make_wishes(NUM_STREAMS, NUM_TOKENS)
    flags = worker_flags(num_ranks)
    with running_replica(
        model,
        flags=[*flags, *SERVICE_FLAGS],
        hash_worker=flags,
        worker_module="tests.gpu.faulty_worker",
    ) as replica:
        read_while(replica.target, wishes, (faults / f"spin-{victim}").touch)
        assert not (faults / f"spin-{victim}").exists(), "the kernel was never launched"
        wait_for_log(replica, "killed by the core")
        assert_serves(replica, reference)
    check(reference, wishes)


@needs_gpu
@VICTIMS
def test_a_step_without_memory_ends_the_group_and_no_stream(
    model: Path, reference: torch.nn.Module, faults: Path, num_ranks: int, victim: int
) -> None:
    wishes = make_wishes(NUM_STREAMS, NUM_TOKENS)
    # outside graphs every step takes memory
    flags = [*worker_flags(num_ranks), "--enforce-eager"]
    with running_replica(
        model,
        flags=[*flags, *SERVICE_FLAGS],
        hash_worker=flags,
        worker_module="tests.gpu.faulty_worker",
    ) as replica:
        read_while(replica.target, wishes, (faults / f"memory-{victim}").touch)
        assert "OutOfMemoryError" in replica.log()
        assert_serves(replica, reference)
    check(reference, wishes)


@needs_gpu
def test_a_group_whose_memory_others_took_starts_again_once_it_is_free(
    model: Path, reference: torch.nn.Module
) -> None:
    wishes = make_wishes(NUM_STREAMS, NUM_TOKENS)
    with running_replica(model, flags=[*worker_flags(1), *SERVICE_FLAGS]) as replica:

        def blow() -> None:
            hog = subprocess.Popen(
                [sys.executable, "-m", "tests.gpu.memory_hog", str(HOG_S)],
                stdout=subprocess.PIPE,
                cwd=ROOT,
            )
            assert hog.stdout is not None
            hog.stdout.readline()  # it has what was free
            ranks_of(replica)[0].kill()
            assert hog.wait(2 * HOG_S) == 0

        read_while(replica.target, wishes, blow)
        # at least one start failed for want of memory, and none was the last
        assert replica.log().count("the group starts again") >= 2
        assert "giving up" not in replica.log()
        assert_serves(replica, reference)
    check(reference, wishes)


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_poisoned_row_fails_alone_and_leaves_nothing_behind(
    model: Path, reference: torch.nn.Module, num_ranks: int
) -> None:
    shared = [10 + 3 * index % 200 for index in range(70)]
    wishes = make_wishes(NUM_STREAMS, 600)
    for wish in wishes[::2]:
        wish.prompt = [*shared, *wish.prompt]
    poisoned = Wish(50, 20, [*shared, POISON_ID, *shared[:40]])
    sharer = Wish(51, 60, [*shared, POISON_ID + 50, *shared[:40]])
    # few blocks: the poisoned ones are soon another's
    flags = [*worker_flags(num_ranks), *SERVICE_FLAGS, "--num-kv-blocks", "800"]
    with running_replica(model, flags=flags) as replica:

        def blow() -> None:
            for _ in range(3):
                with pytest.raises(octavo.InternalError):
                    tokens_of(replica.target, poisoned)
                sharer.tokens = tokens_of(replica.target, sharer)
                check(reference, [sharer])

        read_while(replica.target, wishes, blow)
        assert "the group starts again" not in replica.log()
        assert_serves(replica, reference)
    check(reference, wishes)


@needs_gpu
def test_two_instances_started_together_share_a_gpu(tmp_path: Path) -> None:
    """Each takes its share, measured by itself, and both serve."""
    write_random_model(tmp_path / "model", MODELS["0.6B"])
    share = 0.4
    flags = ["--device", "cuda", "--load-format", "random", "--max-model-len", "4096"]
    flags += ["--gpu-memory-utilization", str(share)]
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
    replicas = [start_replica(tmp_path / "model", folder, flags=flags) for folder in folders]
    try:
        for replica in replicas:
            replica.wait_ready(limit_s=RECOVERY_LIMIT_S)
        _, total = torch.cuda.mem_get_info(0)
        caches = [_cache_bytes(replica.log()) for replica in replicas]
        assert abs(caches[0] - caches[1]) < 0.01 * total, caches
        # what is no cache is weights, steps and graphs: a few GiB
        assert all(share * total - (8 << 30) < num_bytes < share * total for num_bytes in caches)
        wishes = [wish for wish in make_wishes(12, 100) for _ in replicas]
        targets = [replica.target for replica in replicas] * 12
        with ThreadPoolExecutor(len(wishes)) as pool:
            answers = list(pool.map(tokens_of, targets, wishes))
        assert [len(tokens) for tokens in answers] == [100] * len(wishes)
        assert not any("the group starts again" in replica.log() for replica in replicas)
    finally:
        for replica in replicas:
            replica.end()


def _cache_bytes(log: str) -> int:
    found = re.search(r"(\d+) KV blocks: .* a KV block ([\d,]+) bytes", log)
    assert found is not None, log
    return int(found[1]) * int(found[2].replace(",", ""))
