"""What the runner needs of a device: one stream, memory to copy from, events, recorded work.

Knows no model. `CudaDevice` is the real one; tests put one in its place that computes at once.
"""

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from worker_svc.batch_step import Int32s


class DeviceEvent(Protocol):
    """A place in the stream."""

    def record(self) -> None:
        """Move it behind everything launched so far."""
        ...

    def is_done(self) -> bool:
        """Whether the device has passed it. Never blocks."""
        ...

    def wait(self) -> None:
        """Return once the device has passed it."""
        ...

    def us_since(self, earlier: "DeviceEvent") -> int:
        """Microseconds of the device between two passed events."""
        ...


class GraphDevice(Protocol):
    """A device with one stream. All launches of this process go there, in order."""

    @property
    def device(self) -> torch.device:
        """Where tensors live."""
        ...

    def host_memory(self, num_words: int) -> torch.Tensor:
        """Int32 [num_words] on the host, zeros, which copies may read or fill while it waits."""
        ...

    def send(self, words: Int32s) -> torch.Tensor:
        """A copy of the array on the device; the array may be forgotten at once."""
        ...

    def receive(self, words: torch.Tensor) -> torch.Tensor:
        """A copy of int32 words on the host, whole once the device has passed what was launched."""
        ...

    def event(self) -> DeviceEvent:
        """A new event, not recorded."""
        ...

    def record(self, launch: Callable[[], None]) -> Callable[[], None]:
        """Take down what `launch` launches, running none of it; the result runs it all again.

        Everything that `launch` uses must have been used once before (compiled, loaded), and
        tensors that it reads or writes must stay where they are.
        """
        ...

    def finish(self) -> None:
        """Wait for everything launched."""
        ...


class CudaEvent:
    """A CUDA event that knows when it was passed."""

    def __init__(self) -> None:
        self.event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own

    def record(self) -> None:
        """On the current stream."""
        self.event.record()

    def is_done(self) -> bool:
        """Asks the driver."""
        return bool(self.event.query())

    def wait(self) -> None:
        """Spins a little, then sleeps between looks: whoever waits long must not take a core."""
        spin_until = time.monotonic() + 0.01
        while not self.event.query():
            if time.monotonic() > spin_until:
                time.sleep(0.0002)

    def us_since(self, earlier: DeviceEvent) -> int:
        """By the device's clock."""
        assert isinstance(earlier, CudaEvent)
        milliseconds: float = earlier.event.elapsed_time(self.event)
        return round(1000 * milliseconds)


class CudaDevice:
    """One GPU and this process's stream on it. `take_over` before anything is launched."""

    def __init__(self, index: int) -> None:
        self._device = torch.device("cuda", index)
        self._pool: Any = None  # torch's own kind of handle
        self._first_graph: torch.cuda.CUDAGraph | None = (
            None  # torch drops a pool with its last one
        )

    @property
    def device(self) -> torch.device:
        """The GPU."""
        return self._device

    def take_over(self) -> None:
        """Make a stream of its own the one that this thread launches to: graphs need it."""
        torch.cuda.set_device(self._device)
        torch.cuda.synchronize()  # what other streams of this process have begun
        torch.cuda.set_stream(torch.cuda.Stream(self._device))  # type: ignore[no-untyped-call]  # torch's own

    def host_memory(self, num_words: int) -> torch.Tensor:
        """Pinned, so that copies do not wait."""
        return torch.zeros(num_words, dtype=torch.int32, pin_memory=True)

    def send(self, words: Int32s) -> torch.Tensor:
        """Through pinned memory, which torch keeps until the copy is made."""
        return torch.from_numpy(words).pin_memory().to(self._device, non_blocking=True)

    def receive(self, words: torch.Tensor) -> torch.Tensor:
        """Into pinned memory, so that nothing waits."""
        host = torch.empty(words.shape, dtype=words.dtype, pin_memory=True)
        host.copy_(words, non_blocking=True)
        return host

    def event(self) -> CudaEvent:
        """A timed event."""
        return CudaEvent()

    def record(self, launch: Callable[[], None]) -> Callable[[], None]:
        """A CUDA graph. All graphs share their memory: no two run at once, none leaves results."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # thread_local: a collective's watchdog thread may ask about events meanwhile
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            launch()
        finally:
            graph.capture_end()
        self._first_graph = self._first_graph or graph
        replay: Callable[[], None] = graph.replay
        return replay

    def finish(self) -> None:
        """Wait for the whole GPU."""
        torch.cuda.synchronize(self._device)
