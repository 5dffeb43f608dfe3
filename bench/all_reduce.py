"""Sums over the GPUs of one host: NCCL, torch's symmetric memory, and this project's own kernel.

    python -m bench.all_reduce [--ranks 2] [--hidden 4096] [--blocks 32 64 128] [--json FILE]

Starts one process a GPU. Each number is microseconds of one call among many in a recorded graph,
the median over replays. The last columns end with residual add and norm done, as a layer needs it;
worker_svc/parallel/peer_memory.py says at which sizes the service switches between them.
"""

import argparse
import json
import statistics
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from worker_svc.execution.graph_device import CudaDevice
from worker_svc.kernels.norm import add_rms_norm
from worker_svc.kernels.rank_sum import RankBuffers, sum_add_rms_norm
from worker_svc.parallel.nccl import NcclGroup
from worker_svc.parallel.peer_memory import KIB, MIB, PeerMemory, SwitchOver

DTYPE = torch.bfloat16
SIZES = [8 * KIB << shift for shift in range(12)]  # to 16 MiB
EPSILON = 1e-6
CALLS_OF_A_GRAPH, NUM_REPLAYS = 40, 25
_MEETING_LIMIT_S = 60.0
# what a sum of bfloat16 numbers may differ by when it is rounded once more
_TOLERANCE = 0.05


class Message:
    """One size: this rank's part, and what all ranks have."""

    def __init__(self, num_bytes: int, hidden: int, *, rank: int, device: torch.device) -> None:
        shape = (num_bytes // (hidden * DTYPE.itemsize), hidden)
        own = torch.Generator(device).manual_seed(rank)
        common = torch.Generator(device).manual_seed(99)
        self.part = torch.randn(shape, generator=own, device=device, dtype=DTYPE)
        self.residual = torch.randn(shape, generator=common, device=device, dtype=DTYPE)
        self.weight = torch.randn(hidden, generator=common, device=device, dtype=DTYPE)


def torch_sums(message: Message) -> dict[str, Callable[[], object]]:
    """Torch's own kernels over symmetric memory."""
    import torch.distributed._symmetric_memory as symmetric  # noqa: PLC0415 - as in peer_memory

    world = dist.group.WORLD
    assert world is not None
    shared = symmetric.empty(message.part.numel(), dtype=DTYPE, device=message.part.device)
    symmetric.rendezvous(shared, world)
    shared.copy_(message.part.flatten())
    out, ops, name = torch.empty_like(shared), torch.ops.symm_mem, world.group_name
    return {
        "torch one-shot": lambda: ops.one_shot_all_reduce_out(shared, "sum", name, out),
        # in place: the numbers grow, the time does not
        "torch two-shot": lambda: ops.two_shot_all_reduce_(shared, "sum", name),
    }


def layer_sums(
    message: Message, group: NcclGroup, shapes: dict[str, RankBuffers]
) -> dict[str, Callable[[], object]]:
    """Sum, add and norm: by NCCL and a kernel, and by one kernel over shared memory."""
    part, residual, weight = message.part, message.residual, message.weight
    scratch = part.clone()

    def nccl() -> tuple[torch.Tensor, torch.Tensor]:
        scratch.copy_(part)  # the sum is in place
        return add_rms_norm(group.all_reduce(scratch), residual, weight, epsilon=EPSILON)

    def ours(buffers: RankBuffers, *, is_two_shot: bool) -> tuple[torch.Tensor, torch.Tensor]:
        return sum_add_rms_norm(
            part, residual, weight, epsilon=EPSILON, buffers=buffers, is_two_shot=is_two_shot
        )

    sums: dict[str, Callable[[], object]] = {"NCCL, copy and norm": nccl}
    expected = nccl()
    for name, buffers in shapes.items():
        if not buffers.holds(part):
            continue
        for way, is_two_shot in (("one-shot", False), ("two-shot", True)):
            meet(group)
            found_here = ours(buffers, is_two_shot=is_two_shot)
            for found, right in zip(found_here, expected, strict=True):
                error = (found.float() - right.float()).norm() / right.float().norm()
                assert float(error) < _TOLERANCE, f"{way}, {name}: relative error {float(error)}"
            sums[f"{way} with norm, {name}"] = lambda b=buffers, t=is_two_shot: ours(
                b, is_two_shot=t
            )  # type: ignore[misc]  # early binding
    return sums


def meet(group: NcclGroup) -> None:
    """Wait on the device for all ranks: they are about to use the shared memory another way."""
    group.all_gather(torch.zeros(1, device=torch.device("cuda", group.rank)))


def microseconds(device: CudaDevice, group: NcclGroup, run: Callable[[], object]) -> float:
    """Median time of one call."""
    meet(group)

    def many() -> None:
        for _ in range(CALLS_OF_A_GRAPH):
            run()

    many()
    replay = device.record(many)
    replay()
    times = []
    for _ in range(NUM_REPLAYS):
        begin, end = device.event(), device.event()
        begin.record()
        replay()
        end.record()
        end.wait()
        times.append(end.us_since(begin) / CALLS_OF_A_GRAPH)
    return statistics.median(times)


@torch.inference_mode()
def run_rank(rank: int, options: argparse.Namespace, folder: str) -> None:
    """What each process does; the first one prints."""
    device = CudaDevice(rank)
    device.take_over()
    group = NcclGroup.connect(
        rank=rank,
        size=options.ranks,
        rendezvous=Path(folder) / "rendezvous",
        device=device.device,
        timeout_s=_MEETING_LIMIT_S,
    )
    peers = PeerMemory.connect(
        group,
        device=device.device,
        switch_over=SwitchOver(one_shot=16 * MIB, two_shot=16 * MIB),
    )
    lines = []
    for num_bytes in SIZES:
        if num_bytes < options.hidden * DTYPE.itemsize:
            continue
        message = Message(num_bytes, options.hidden, rank=rank, device=device.device)
        scratch = message.part.clone()
        sums: dict[str, Callable[[], object]] = {"NCCL": lambda x=scratch: group.all_reduce(x)}  # type: ignore[misc]  # early binding
        try:
            if not options.without_torch:
                sums |= torch_sums(message)
            sums |= layer_sums(message, group, _shapes(peers.buffers, options.blocks))
            times = {name: microseconds(device, group, run) for name, run in sums.items()}
        except Exception:  # noqa: BLE001 - alike on all ranks; the next size may work
            print(f"FAILED {num_bytes} bytes\n{traceback.format_exc()}", flush=True)
            continue
        lines.append({"bytes": num_bytes, "microseconds": times})
        if rank == 0:
            _print(num_bytes, times)
    if rank == 0 and options.json is not None:
        content = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "ranks": options.ranks,
            "hidden": options.hidden,
            "lines": lines,
        }
        options.json.write_text(json.dumps(content, indent=1), encoding="utf-8")
    device.finish()
    group.close()


def _shapes(buffers: RankBuffers, wishes: list[int]) -> dict[str, RankBuffers]:
    """The same memory shared out among fewer blocks; ranks meet before they turn to another."""
    shapes = {}
    for num_blocks in wishes:
        fewer = min(num_blocks, buffers.num_blocks)
        size = buffers.bytes_per_region * (buffers.num_blocks // fewer)
        shapes[f"{fewer} blocks"] = replace(buffers, num_blocks=fewer, bytes_per_region=size)
    return shapes


def _print(num_bytes: int, times: dict[str, float]) -> None:
    if num_bytes == SIZES[0]:
        print("KiB, then microseconds:", "; ".join(times), flush=True)
    print(f"{num_bytes // KIB:6}", *(f"{time:8.1f}" for time in times.values()), flush=True)


def main() -> None:
    """Starts the ranks and waits for them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count())
    parser.add_argument("--hidden", type=int, default=4096, help="features of a row")
    parser.add_argument("--blocks", type=int, nargs="+", default=[128], help="of our kernel")
    parser.add_argument(
        "--without-torch", action="store_true", help="leave out torch's own kernels"
    )
    parser.add_argument("--json", type=Path, help="write the numbers here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        spawn(run_rank, (options, folder), nprocs=options.ranks)  # type: ignore[no-untyped-call]  # torch's own


if __name__ == "__main__":
    main()
