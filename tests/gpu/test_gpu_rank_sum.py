"""GPUs that map each other's memory sum, add and norm: the same bits everywhere, graphs or not."""

from pathlib import Path

import pytest
import torch
from torch.multiprocessing.spawn import spawn

from worker_svc.execution.graph_device import CudaDevice
from worker_svc.kernels import references
from worker_svc.kernels.rank_sum import sum_add_rms_norm
from worker_svc.parallel.nccl import NcclGroup
from worker_svc.parallel.peer_memory import SWITCH_OVERS, PeerMemory

EPSILON = 1e-6
HIDDENS = (1024, 5120)
TOKENS = (1, 2, 7, 64, 128, 129, 300, 1000)
DTYPE = torch.bfloat16
LATE_CYCLES = 400_000


class Launches:
    """What one rank does with messages of one width."""

    def __init__(self, group: NcclGroup, peers: PeerMemory, device: CudaDevice) -> None:
        self.group, self.peers, self.device = group, peers, device
        self.own = torch.Generator(device.device).manual_seed(group.rank)
        self.common = torch.Generator(device.device).manual_seed(99)

    def message(self, num_tokens: int, hidden: int) -> tuple[torch.Tensor, ...]:
        """This rank's part, a residual and a weight."""
        part, residual = (
            torch.empty(num_tokens, hidden, device=self.device.device, dtype=DTYPE).normal_(
                generator=generator
            )
            for generator in (self.own, self.common)
        )
        return part, residual, torch.empty_like(part[0]).normal_(generator=self.common)

    def run(self, message: tuple[torch.Tensor, ...], *, is_two_shot: bool) -> list[torch.Tensor]:
        """The norm and the sum."""
        return list(
            sum_add_rms_norm(
                *message, epsilon=EPSILON, buffers=self.peers.buffers, is_two_shot=is_two_shot
            )
        )

    def come_late(self, turn: int) -> None:
        """Keep one rank's GPU busy, another one each time."""
        if turn % self.group.size == self.group.rank:
            torch.cuda._sleep(LATE_CYCLES)  # type: ignore[no-untyped-call]  # no public name

    def check(self, message: tuple[torch.Tensor, ...], found: list[torch.Tensor]) -> None:
        """The exact sum in the order of ranks, rounded once; equal on every rank."""
        part, residual, weight = message
        summed = torch.zeros_like(part, dtype=torch.float32)
        for theirs in self.group.all_gather(part):
            summed += theirs.float()
        total = summed.to(DTYPE) + residual
        assert torch.equal(found[1], total)
        error = found[0].float() - references.rms_norm(total, weight, EPSILON)
        assert float(error.norm() / found[0].float().norm()) < 0.005
        for other in self.group.all_gather(found[0]):
            assert torch.equal(other, found[0])
        by_nccl = self.group.all_reduce(part.clone()).float()
        assert float((by_nccl - summed).norm() / summed.norm()) < 0.02


@torch.inference_mode()
def run_rank(rank: int, size: int, folder: str) -> None:
    device = CudaDevice(rank)
    device.take_over()
    group = NcclGroup.connect(
        rank=rank,
        size=size,
        rendezvous=Path(folder) / "rendezvous",
        device=device.device,
        timeout_s=60.0,
    )
    launches = Launches(group, PeerMemory.connect(group, device=device.device), device)
    _eager(launches)
    _recorded(launches)
    _by_size(launches)
    device.finish()
    group.close()


def _eager(launches: Launches) -> None:
    for turn in range(3):
        messages = [launches.message(tokens, hidden) for tokens in TOKENS for hidden in HIDDENS]
        messages = [message for message in messages if launches.peers.buffers.holds(message[0])]
        launches.come_late(turn)
        # back to back, so that a rank can run ahead of another
        found = [
            launches.run(message, is_two_shot=(index + turn) % 2 == 0)
            for index, message in enumerate(messages)
        ]
        for message, one in zip(messages, found, strict=True):
            launches.check(message, one)


def _recorded(launches: Launches) -> None:
    """An odd number of launches in a graph, replayed back to back with ranks late in turns."""
    messages = [launches.message(tokens, 1024) for tokens in (1, 64, 7, 300, 1)]
    found: list[list[torch.Tensor]] = []

    def launch() -> None:
        found[:] = [
            launches.run(message, is_two_shot=index % 2 == 0)
            for index, message in enumerate(messages)
        ]

    launch()
    replay = launches.device.record(launch)
    for turn in range(40):
        for part, _, _ in messages:
            part.normal_(generator=launches.own)
        launches.come_late(turn)
        replay()
        replay()
        if turn % 8 == 0:
            for message, one in zip(messages, found, strict=True):
                launches.check(message, one)


def _by_size(launches: Launches) -> None:
    """What the service calls: the way follows from the size, and too large is not taken."""
    hidden = HIDDENS[0]
    most = launches.peers.switch_over.two_shot // (hidden * DTYPE.itemsize)
    for num_tokens in (1, most):
        message = launches.message(num_tokens, hidden)
        assert launches.peers.takes(message[0])
        launches.check(message, list(launches.peers.sum_add_rms_norm(*message, epsilon=EPSILON)))
    assert not launches.peers.takes(launches.message(most + 1, hidden)[0])


@pytest.mark.parametrize("size", SWITCH_OVERS)
def test_ranks_agree_bit_for_bit_on_the_sum(tmp_path: Path, size: int) -> None:
    if size > torch.cuda.device_count():
        pytest.skip(f"needs {size} GPUs")
    # raises what a rank raises, and ends the others
    spawn(run_rank, (size, str(tmp_path)), nprocs=size)  # type: ignore[no-untyped-call]  # torch's own
