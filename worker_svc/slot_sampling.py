"""How the sequence in each slot chooses tokens, as columns by slot. Knows no plan's rules."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from octavo.internal.v1 import step_pb2
from worker_svc.batch_step import NO_STOP_ID, Int32s, SamplingColumns


class SlotSampling:
    """Resolved sampling parameters by slot."""

    def __init__(self, num_slots: int) -> None:
        self._columns = SamplingColumns.greedy(num_slots)
        self._num_stop_ids = np.zeros(num_slots, np.int32)

    def set(self, starts: Iterable[step_pb2.SlotStart]) -> None:
        """Takes over the parameters of slots that start."""
        for start in starts:
            slot, chosen = start.slot, start.sampling
            columns = self._wide_enough(len(start.stop_token_ids))
            columns.temperature[slot] = chosen.temperature
            columns.top_k[slot] = chosen.top_k
            columns.top_p[slot] = chosen.top_p
            columns.min_p[slot] = chosen.min_p
            columns.seed[slot] = chosen.seed
            columns.min_position[slot] = start.min_position
            self._num_stop_ids[slot] = len(start.stop_token_ids)
            columns.stop_ids[slot] = NO_STOP_ID
            columns.stop_ids[slot, : len(start.stop_token_ids)] = start.stop_token_ids

    def rows(self, slots: Int32s) -> SamplingColumns:
        """The parameters of these slots, as copies in their order."""
        columns = self._columns
        width = int(self._num_stop_ids[slots].max(initial=0))
        return SamplingColumns(
            temperature=columns.temperature[slots],
            top_k=columns.top_k[slots],
            top_p=columns.top_p[slots],
            min_p=columns.min_p[slots],
            seed=columns.seed[slots],
            min_position=columns.min_position[slots],
            stop_ids=columns.stop_ids[slots, :width],
        )

    def _wide_enough(self, num_stop_ids: int) -> SamplingColumns:
        """The columns, with places for that many stop ids."""
        old = self._columns
        num_slots, width = old.stop_ids.shape
        if num_stop_ids > width:
            stop_ids = np.full((num_slots, num_stop_ids), NO_STOP_ID, np.int32)
            stop_ids[:, :width] = old.stop_ids
            self._columns = replace(old, stop_ids=stop_ids)
        return self._columns
