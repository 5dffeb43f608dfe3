"""Writes one safetensors file tensor by tensor, as bfloat16, so that memory stays at one tensor.

Knows nothing of where the tensors come from. Format: the safetensors specification (8 bytes of
little-endian header length, a JSON header, then raw little-endian data in header order).
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_BFLOAT16_BYTES = 2
_HEADER_ALIGNMENT = 8


@dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """Name and shape of one tensor of the file to be."""

    name: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Size of its data in the file."""
        return math.prod(self.shape) * _BFLOAT16_BYTES


def to_bfloat16_bits(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """Round finite float32 values to the nearest bfloat16 (ties to even), as raw bits."""
    bits = values.view(np.uint32)
    rounding = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return ((bits + rounding) >> np.uint32(16)).astype(np.uint16)


def write_bfloat16_file(
    path: Path, entries: list[TensorEntry], tensors: Iterable[NDArray[np.float32]]
) -> None:
    """Write the tensors, which come in the order of `entries`, to a new file."""
    with path.open("wb") as file:
        file.write(_header(entries))
        for entry, tensor in zip(entries, tensors, strict=True):
            assert tensor.shape == entry.shape, entry.name
            file.write(to_bfloat16_bits(np.ascontiguousarray(tensor)).astype("<u2").tobytes())


def _header(entries: list[TensorEntry]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for entry in entries:
        end = offset + entry.num_bytes
        header[entry.name] = {
            "dtype": "BF16",
            "shape": list(entry.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _HEADER_ALIGNMENT)
    return struct.pack("<Q", len(text)) + text
