"""Recorded programs do what the same programs do launch by launch, at every number of rows."""

import pytest
import torch

from tests.gpu.device_rig import GpuRig, decoder_like, qwen3_spec, transformers_model
from tests.gpu.test_gpu_attention import BACKENDS
from tests.model.rigs import Row, random_tokens, resident_step
from worker_svc.batch_step import SampledRows

MOST_ROWS = 34  # the largest bucket; the others are 1, 2, 4, 8, 16, 24, 32


def rig(backend: str, *, uses_graphs: bool) -> GpuRig:
    spec = qwen3_spec(vocab_size=1024)
    model = transformers_model(spec, torch.bfloat16)
    decoder = decoder_like(model, spec, backend=backend, most_rows=MOST_ROWS)
    return GpuRig(
        decoder,
        num_blocks=400,
        most_rows=MOST_ROWS,
        most_tokens=1200,
        uses_graphs=uses_graphs,
    )


class Twins:
    """One life in two runners; what the first did is the second's past."""

    def __init__(self, backend: str) -> None:
        self.recorded, self.plain = rig(backend, uses_graphs=True), rig(backend, uses_graphs=False)
        self.ends: dict[int, int] = {}

    def run(self, rows: list[Row]) -> tuple[SampledRows, SampledRows]:
        """Both outcomes; afterwards both remember the first's."""
        for row in rows:
            self.ends[row.slot] = row.start + (1 if row.tokens is None else len(row.tokens))
        ends = {row.slot: self.ends[row.slot] for row in rows}
        step = resident_step(rows, new_blocks=self.recorded.tables.grow(ends))
        return self.recorded.run(step), self.plain.run(step)

    def continue_alike(self) -> None:
        """Give the second runner the first's cache and last tokens."""
        for layer, other in zip(self.recorded.cache.layers, self.plain.cache.layers, strict=True):
            other.keys.copy_(layer.keys)
            other.values.copy_(layer.values)
        ours, theirs = (made.assembly.programs.memory for made in (self.recorded, self.plain))
        theirs.last_tokens.copy_(ours.last_tokens)

    def hidden_error(self, num_tokens: int) -> float:
        """How far the hidden states of the last mixed step lie apart."""
        ours, theirs = (
            made.assembly.programs.memory.hidden[:num_tokens].float()
            for made in (self.recorded, self.plain)
        )
        return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("backend", BACKENDS)
def test_graphs_equal_eager_at_every_batch_size(backend: str) -> None:
    # scenarios CG-01, CG-02, CG-03
    twins = Twins(backend)
    for slot in range(MOST_ROWS):
        singles = [Row(s, twins.ends[s], None) for s in range(max(0, slot - 20), slot)]
        prompt = random_tokens(1 + 7 * slot % 90, seed=slot)
        twins.run([*singles, Row(slot, 0, prompt)])
        # other sizes, other roundings: a graph of tokens is padded, the plain step is not
        assert twins.hidden_error(len(singles) + len(prompt)) < 0.02
        twins.continue_alike()
    seen = set()
    for size in range(1, MOST_ROWS + 1):
        slots = range(MOST_ROWS - size, MOST_ROWS)
        found, expected = twins.run([Row(slot, twins.ends[slot], None) for slot in slots])
        assert found.tokens.tolist() == expected.tokens.tolist(), f"{size} rows"
        assert not found.failed.any()
        seen |= set(found.tokens.tolist())
    assert len(seen) > 50, "a model that repeats itself tests nothing"
    for layer, other in zip(twins.recorded.cache.layers, twins.plain.cache.layers, strict=True):
        assert torch.equal(layer.keys, other.keys)
        assert torch.equal(layer.values, other.values)
        assert not bool(layer.keys[0].any()), "padding rows store nothing"
        assert not bool(layer.values[0].any()), "padding rows store nothing"
