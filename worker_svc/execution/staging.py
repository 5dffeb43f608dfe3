"""The host's side of steps in flight: one lane each, used in turn. Knows no plan.

A lane's memory is read and filled by copies that the device makes later, so it may be written
again only once the device has passed the lane's last step.
"""

from dataclasses import dataclass

import torch

from worker_svc.execution.graph_device import DeviceEvent, GraphDevice


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """What one step in flight needs."""

    inputs: torch.Tensor  # int32, cut like the device's side
    results: torch.Tensor  # int32
    begin: DeviceEvent
    end: DeviceEvent


class StagingRing:
    """Lanes in turn."""

    def __init__(
        self, device: GraphDevice, *, num_lanes: int, num_input_words: int, num_result_words: int
    ) -> None:
        """One lane more than steps in flight, so that a step's timing outlives the next launch."""
        self._lanes = [
            Lane(
                inputs=device.host_memory(num_input_words),
                results=device.host_memory(num_result_words),
                begin=device.event(),
                end=device.event(),
            )
            for _ in range(num_lanes)
        ]
        self._num_taken = 0

    def take(self) -> Lane:
        """The next lane, once the device is through with it."""
        lane = self._lanes[self._num_taken % len(self._lanes)]
        if self._num_taken >= len(self._lanes):
            lane.end.wait()
        self._num_taken += 1
        return lane
