"""A `GraphDevice` that is this processor: everything launched is done at once.

Recording keeps the function; running the record calls it, so that fixed places are really read
anew. Host and device memory are two memories all the same.
"""

import time
from collections.abc import Callable

import torch

from worker_svc.batch_step import Int32s
from worker_svc.execution.graph_device import DeviceEvent


class ImmediateEvent:
    """Passed when recorded."""

    def __init__(self) -> None:
        self._at_ns = 0

    def record(self) -> None:
        self._at_ns = time.monotonic_ns()

    def is_done(self) -> bool:
        return True

    def wait(self) -> None:
        assert self._at_ns, "nothing was recorded that could be waited for"

    def us_since(self, earlier: DeviceEvent) -> int:
        assert isinstance(earlier, ImmediateEvent)
        return (self._at_ns - earlier._at_ns) // 1000


class ImmediateDevice:
    """The processor as a device."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.num_recorded = 0
        self.num_replays = 0

    def host_memory(self, num_words: int) -> torch.Tensor:
        return torch.zeros(num_words, dtype=torch.int32)

    def send(self, words: Int32s) -> torch.Tensor:
        return torch.from_numpy(words.copy())

    def receive(self, words: torch.Tensor) -> torch.Tensor:
        return words.clone()

    def event(self) -> ImmediateEvent:
        return ImmediateEvent()

    def record(self, launch: Callable[[], None]) -> Callable[[], None]:
        self.num_recorded += 1

        def replay() -> None:
            self.num_replays += 1
            launch()

        return replay

    def finish(self) -> None:
        """Nothing is ever under way."""
