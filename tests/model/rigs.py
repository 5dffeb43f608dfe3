"""What tests of the tensor world drive: a tiny model with its cache, and the oracle beside it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from worker_svc.attention.torch_backend import TorchBackend
from worker_svc.batch_step import BatchStep, NewBlocks, SamplingColumns
from worker_svc.execution.builder import build_batch
from worker_svc.execution.forward_batch import ForwardBatch
from worker_svc.execution.kv_cache import KVCache, KVLayout
from worker_svc.execution.runner import ModelRunner
from worker_svc.execution.sampler import Sampler
from worker_svc.execution.sampling_plan import VocabularyPart
from worker_svc.layers.embedding import rows_per_rank
from worker_svc.models.decoder import Decoder
from worker_svc.models.spec import parse_model_spec
from worker_svc.parallel.group import ParallelGroup, SingleRank
from worker_svc.weights.loader import Progress, load_model

CPU = torch.device("cpu")
BLOCK_SIZE = 16
NUM_BLOCKS = 96
NUM_SLOTS = 16
BLOCKS_PER_SLOT = 6


@dataclass(frozen=True, slots=True)
class Row:
    """A slot's part in a step; `tokens` None is a decode row."""

    slot: int
    start: int
    tokens: Sequence[int] | None
    samples: bool = True


def no_progress(bytes_done: int, bytes_total: int) -> None:
    """Listen to nothing."""
    assert bytes_done <= bytes_total


def load(
    folder: Path,
    *,
    group: ParallelGroup | None = None,
    dtype: torch.dtype = torch.float32,
    progress: Progress = no_progress,
) -> Decoder:
    """The folder's model."""
    return load_model(
        folder,
        spec=parse_model_spec(folder / "config.json"),
        group=group or SingleRank(),
        backend=TorchBackend(),
        dtype=dtype,
        device=CPU,
        num_positions=512,
        progress=progress,
    )


def oracle(folder: Path) -> torch.nn.Module:
    """The same model in transformers."""
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval()


def oracle_logits(model: torch.nn.Module, tokens: Sequence[int]) -> torch.Tensor:
    """[tokens, vocabulary]: the logits after each token."""
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([list(tokens)])).logits[0]
    return logits


def random_tokens(count: int, *, seed: int = 0) -> list[int]:
    """Ids that every tiny model knows."""
    tokens: list[int] = np.random.default_rng(seed).integers(0, 256, count).tolist()
    return tokens


def step_of(
    rows: Sequence[Row],
    *,
    table: np.ndarray,
    sampling: SamplingColumns | None = None,
) -> BatchStep:
    """The columns of some rows; `table` has the blocks of every slot."""
    lengths = [1 if row.tokens is None else len(row.tokens) for row in rows]
    slots = np.array([row.slot for row in rows], np.int32)
    tokens = [token for row in rows for token in ([0] if row.tokens is None else row.tokens)]
    return BatchStep(
        slots=slots,
        num_tokens=np.array(lengths, np.int32),
        start_positions=np.array([row.start for row in rows], np.int32),
        is_decode=np.array([row.tokens is None for row in rows], np.bool_),
        samples=np.array([row.samples for row in rows], np.bool_),
        token_ids=np.array(tokens, np.int32),
        block_table=table[slots],
        sampling=sampling or SamplingColumns.greedy(len(rows)),
    )


def resident_step(
    rows: Sequence[Row], *, new_blocks: NewBlocks, sampling: SamplingColumns | None = None
) -> BatchStep:
    """The rows as a runner that keeps tables gets them."""
    empty = np.zeros((max(row.slot for row in rows) + 1, 0), np.int32)
    return replace(step_of(rows, table=empty, sampling=sampling), new_blocks=new_blocks)


def shuffled_table(*, seed: int = 0) -> np.ndarray:
    """Blocks of every slot, in no order; block 0 is nobody's."""
    blocks = np.random.default_rng(seed).permutation(NUM_BLOCKS - 1) + 1
    used = blocks[: (NUM_SLOTS - 1) * BLOCKS_PER_SLOT].reshape(-1, BLOCKS_PER_SLOT)
    return used.astype(np.int32)


class Rig:
    """A model, its cache and its runner."""

    def __init__(
        self,
        model: Decoder,
        *,
        group: ParallelGroup | None = None,
        dtype: torch.dtype = torch.float32,
        num_tokenizer_ids: int | None = None,
    ) -> None:
        self.model = model
        self.table = shuffled_table()
        ranks = group or SingleRank()
        vocab_size = model.spec.vocab_size
        layout = KVLayout.of_model(
            model.spec,
            num_blocks=NUM_BLOCKS,
            block_size=BLOCK_SIZE,
            num_ranks=ranks.size,
            dtype=dtype,
        )
        self.cache = KVCache.allocate(layout, device=CPU)
        part = VocabularyPart(
            first_id=model.first_vocabulary_id,
            num_ids=rows_per_rank(vocab_size, ranks),
            num_tokenizer_ids=num_tokenizer_ids or vocab_size,
        )
        self.runner = ModelRunner(
            model=model,
            cache=self.cache,
            sampler=Sampler(part=part, group=ranks),
            num_slots=NUM_SLOTS,
        )

    def batch(self, rows: Sequence[Row]) -> ForwardBatch:
        """The batch of rows that bring their tokens."""
        none = torch.zeros(NUM_SLOTS, dtype=torch.int64)
        step = step_of(rows, table=self.table)
        return build_batch(step, last_tokens=none, block_size=BLOCK_SIZE)

    @torch.inference_mode()
    def logits(self, rows: Sequence[Row]) -> torch.Tensor:
        """[sampling rows, this rank's vocabulary], past the runner."""
        batch = self.batch(rows)
        return self.model.logits(self.model.forward(batch, self.cache.layers), batch)

    def step(self, rows: Sequence[Row], sampling: SamplingColumns | None = None) -> BatchStep:
        """The rows as a step for the runner."""
        return step_of(rows, table=self.table, sampling=sampling)
