"""Times kernels as replays of a CUDA graph and prints them beside their floors. Knows no kernel.

Every variant is tried alone: one that cannot run here leaves its error in the table.
"""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

Launch = Callable[[], object]

_REPLAYS = 20
_FEWEST_LAUNCHES = 16


@dataclass(frozen=True, slots=True)
class Work:
    """What a launch has to do at least: bytes of device memory, operations of tensor cores."""

    num_bytes: float
    num_flops: float = 0.0


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What this device reaches, measured."""

    bytes_per_s: float
    flops_per_s: float

    def floor_us(self, work: Work) -> float:
        """The larger of both times."""
        return 1e6 * max(work.num_bytes / self.bytes_per_s, work.num_flops / self.flops_per_s)


@dataclass(frozen=True, slots=True)
class Measured:
    """A line of the table; `error` is the relative distance from the reference, or None."""

    part: str
    shape: str
    variant: str
    us: float | None
    floor_us: float
    gb_per_s: float | None
    tflop_per_s: float | None
    error: float | None
    failure: str


@dataclass(slots=True)
class Table:
    """Collects lines, and prints each as it comes."""

    ceilings: Ceilings
    lines: list[Measured] = field(default_factory=list)

    def add(
        self,
        part: str,
        shape: str,
        variant: str,
        launches: Callable[[], Sequence[Launch]],
        *,
        work: Work,
        error: Callable[[Sequence[Launch]], float] | None = None,
    ) -> None:
        """Make the launches (one for each set of memory to rotate through), time and check them."""
        us, distance, failure = None, None, ""
        try:
            made = launches()
            us = time_us(made)
            distance = None if error is None else error(made)
        except Exception as caught:  # noqa: BLE001 one variant's failure must not end the run
            failure = f"{type(caught).__name__}: {caught}".splitlines()[0][:150]
        rate = None if us is None else 1e-3 / us
        line = Measured(
            part=part,
            shape=shape,
            variant=variant,
            us=us,
            floor_us=self.ceilings.floor_us(work),
            gb_per_s=None if rate is None else work.num_bytes * rate,
            tflop_per_s=None if rate is None else work.num_flops * rate / 1e3,
            error=distance,
            failure=failure,
        )
        self.lines.append(line)
        print(_text_of(line), flush=True)

    def write(self, path: Path) -> None:
        """All lines and the ceilings as one JSON object."""
        content = {
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "ceilings": asdict(self.ceilings),
            "lines": [asdict(line) for line in self.lines],
        }
        path.write_text(json.dumps(content, indent=1), encoding="utf-8")


HEAD = (
    f"{'part':10} {'shape':34} {'variant':30} {'us':>9} {'floor':>8} {'share':>6} "
    f"{'GB/s':>7} {'TFLOP/s':>8} {'error':>9}"
)


def _text_of(line: Measured) -> str:
    start = f"{line.part:10} {line.shape:34} {line.variant:30}"
    if line.us is None or line.gb_per_s is None or line.tflop_per_s is None:
        return f"{start} {line.failure}"
    share = f"{100 * line.floor_us / line.us:5.1f}%"
    distance = "" if line.error is None else f"{line.error:9.1e}"
    return (
        f"{start} {line.us:9.2f} {line.floor_us:8.2f} {share} {line.gb_per_s:7.0f} "
        f"{line.tflop_per_s:8.1f} {distance} {line.failure}"
    )


def time_us(launches: Sequence[Launch]) -> float:
    """Median time of a launch inside a replayed graph, the gap before it included."""
    for launch in launches:
        launch()
    torch.cuda.synchronize()
    rounds = -(-_FEWEST_LAUNCHES // len(launches))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for launch in launches:
                launch()
    for _ in range(3):
        graph.replay()
    span_ms = statistics.median(_replay_ms(graph) for _ in range(_REPLAYS))
    return 1e3 * span_ms / (rounds * len(launches))


def _replay_ms(graph: torch.cuda.CUDAGraph) -> float:
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch's own
    first.record()
    graph.replay()
    last.record()
    last.synchronize()
    span_ms: float = first.elapsed_time(last)
    return span_ms


def measure_ceilings() -> Ceilings:
    """A large copy, reads and writes counted, and a large bf16 product of random numbers."""
    source = torch.randint(0, 2**31 - 1, (2**29,), dtype=torch.int32, device="cuda")
    target = torch.empty_like(source)
    copy_us = time_us([lambda: target.copy_(source)])
    size = 8192
    a = torch.randn(size, size, dtype=torch.bfloat16, device="cuda")
    product_us = time_us([lambda: torch.mm(a, a)])
    return Ceilings(
        bytes_per_s=2 * source.nbytes / copy_us * 1e6, flops_per_s=2 * size**3 / product_us * 1e6
    )


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Distance over length, in float32."""
    expected = expected.float()
    return float((found.float() - expected).norm() / expected.norm())
