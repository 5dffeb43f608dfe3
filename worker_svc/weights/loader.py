"""Fills a decoder from a checkpoint. Knows shards and tensors, no layer.

Each rank reads its own parts, piece by piece, straight into place: memory holds the model and one
piece.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import torch

from worker_svc.attention.backend import AttentionBackend
from worker_svc.layers.embedding import rows_per_rank
from worker_svc.layers.fused import FusedBackend
from worker_svc.layers.weight_shard import WeightShard
from worker_svc.models.decoder import Decoder
from worker_svc.models.errors import MissingTensorsError, TensorShapeError, UnusedTensorsError
from worker_svc.models.spec import ModelSpec
from worker_svc.parallel.group import ParallelGroup
from worker_svc.weights.checkpoint import Checkpoint, StoredTensor

_LOGGER = logging.getLogger(__name__)

Progress: TypeAlias = Callable[[int, int], None]
"""Called with (bytes_done, bytes_total) of this rank, from (0, total) to (total, total)."""

_PIECE_BYTES = 64 << 20
_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"
# old Llama files carry the rotary frequencies, which config.json determines
_DERIVED_SUFFIX = ".rotary_emb.inv_freq"


def load_model(
    folder: Path,
    *,
    spec: ModelSpec,
    group: ParallelGroup,
    backend: AttentionBackend | FusedBackend,
    dtype: torch.dtype,
    device: torch.device,
    num_positions: int,
    progress: Progress,
) -> Decoder:
    """The folder's model, ready to run on this rank.

    `num_positions` is the longest sequence to be served. Raises a `ModelError` naming the file
    and the tensor, or the flag, when the files do not hold exactly what `spec` says.
    """
    with Checkpoint(folder) as checkpoint:
        resolved = _resolve_tied_head(spec, checkpoint, group)
        decoder = Decoder(
            resolved,
            group=group,
            backend=backend,
            dtype=dtype,
            device=device,
            num_positions=num_positions,
        )
        shards = tuple(decoder.shards())
        _check_names(checkpoint, shards, has_tied_head=resolved.has_tied_head)
        with torch.inference_mode():
            _fill(checkpoint, shards, progress)
            decoder.pack()
    return decoder


def _resolve_tied_head(spec: ModelSpec, checkpoint: Checkpoint, group: ParallelGroup) -> ModelSpec:
    """A tied head that the files hold all the same must equal the embedding, else the file wins."""
    if not spec.has_tied_head or not {_EMBEDDING, _HEAD} <= checkpoint.names():
        return spec
    embedding, head = checkpoint.tensor(_EMBEDDING), checkpoint.tensor(_HEAD)
    if embedding.shape == head.shape and _equal_rows(embedding, head, group):
        return spec
    _LOGGER.warning(
        "%s: tie_word_embeddings is true, but %s differs from %s; using %s for the head",
        head.path,
        _HEAD,
        _EMBEDDING,
        _HEAD,
    )
    return replace(spec, has_tied_head=False)


def _equal_rows(one: StoredTensor, other: StoredTensor, group: ParallelGroup) -> bool:
    """Whether this rank's rows are equal."""
    num_rows = rows_per_rank(one.shape[0], group)
    first = group.rank * num_rows
    ours = slice(first, min(one.shape[0], first + num_rows))
    return all(torch.equal(one.read((rows,)), other.read((rows,))) for rows in _pieces(one, ours))


def _check_names(
    checkpoint: Checkpoint, shards: Iterable[WeightShard], *, has_tied_head: bool
) -> None:
    needed = {shard.name for shard in shards}
    missing = sorted(needed - checkpoint.names())
    if missing:
        raise MissingTensorsError(checkpoint.folder, missing)
    spare = checkpoint.names() - needed - ({_HEAD} if has_tied_head else set())
    unused = sorted(name for name in spare if not name.endswith(_DERIVED_SUFFIX))
    if unused:
        raise UnusedTensorsError(checkpoint.folder, unused)


@dataclass(frozen=True, slots=True, eq=False)
class _Copy:
    """One shard and the tensor it comes from."""

    shard: WeightShard
    stored: StoredTensor

    @property
    def num_bytes(self) -> int:
        return self.shard.destination.numel() * self.stored.bytes_per_value

    def pieces(self) -> Iterator[tuple[tuple[slice, ...], torch.Tensor]]:
        """Parts of the stored tensor, each with its place."""
        place, dim = self.shard.destination, self.shard.dim
        part = [slice(0, size) for size in place.shape]
        part[dim] = slice(self.shard.start, self.shard.start + place.shape[dim])
        for rows in _pieces(self.stored, part[0]):
            first = rows.start - part[0].start
            yield (rows, *part[1:]), place[first : first + rows.stop - rows.start]


def _fill(checkpoint: Checkpoint, shards: Iterable[WeightShard], progress: Progress) -> None:
    copies = [_checked_copy(checkpoint.tensor(shard.name), shard) for shard in shards]
    bytes_total = sum(copy.num_bytes for copy in copies)
    bytes_done = 0
    progress(bytes_done, bytes_total)
    for copy in copies:
        for part, place in copy.pieces():
            place.copy_(copy.stored.read(part))
            bytes_done += place.numel() * copy.stored.bytes_per_value
            progress(bytes_done, bytes_total)


def _checked_copy(stored: StoredTensor, shard: WeightShard) -> _Copy:
    if stored.shape != shard.full_shape:
        raise TensorShapeError(
            stored.path,
            stored.name,
            expected=f"shape {list(shard.full_shape)}",
            found=f"shape {list(stored.shape)}",
        )
    return _Copy(shard, stored)


def _pieces(stored: StoredTensor, rows: slice) -> Iterator[slice]:
    """Cut rows of the first dimension into pieces of bounded size."""
    row_bytes = stored.bytes_per_value
    for size in stored.shape[1:]:
        row_bytes *= size
    step = max(1, _PIECE_BYTES // max(1, row_bytes))
    for first in range(rows.start, rows.stop, step):
        yield slice(first, min(rows.stop, first + step))
