"""Which attention backend a GPU gets, and why. Imports none of them; knows packages by name.

Automatic choice: FlashAttention-3 where it runs, else this project's own kernels. FlashAttention-2
only on request: it needs blocks of 256 tokens, which share few prefixes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch

_FA3_HEAD_DIMS = (64, 128, 192, 256)
_FA2_BLOCK_MULTIPLE = 256
_FA2_MOST_HEAD_DIM = 256
_HALF_DTYPES = (torch.bfloat16, torch.float16)


class AttentionUnavailableError(Exception):
    """A backend was asked for that cannot run here; one line names the flag and the reason."""


@dataclass(frozen=True, slots=True)
class AttentionNeeds:
    """What decides which backends can run."""

    capability: tuple[int, int]
    """Of the GPU, such as (9, 0)."""
    dtype: torch.dtype
    head_dim: int
    block_size: int


@dataclass(frozen=True, slots=True)
class ChosenAttention:
    """A backend's name and why it was taken."""

    name: str
    reason: str


def is_installed(package: str) -> bool:
    """Whether a package can be imported. Imports nothing."""
    return find_spec(package) is not None


def choose_attention(
    requested: str,
    needs: AttentionNeeds,
    *,
    has_package: Callable[[str], bool] = is_installed,
) -> ChosenAttention:
    """The backend for `--attention-backend` `requested`.

    Raises AttentionUnavailableError when the one asked for cannot run, or none can.
    """
    obstacles = {
        "fa3": _fa3_obstacle(needs, has_package),
        "triton": _triton_obstacle(needs, has_package),
        "fa2": _fa2_obstacle(needs, has_package),
        "torch": "it computes on CPUs only",
    }
    if requested != "auto":
        if obstacles[requested]:
            raise AttentionUnavailableError(
                f"--attention-backend {requested} cannot run here: {obstacles[requested]}"
            )
        return ChosenAttention(requested, "asked for")
    if not obstacles["fa3"]:
        return ChosenAttention("fa3", "the fastest on this GPU")
    if not obstacles["triton"]:
        return ChosenAttention("triton", f"fa3 cannot run here: {obstacles['fa3']}")
    raise AttentionUnavailableError(f"--device cuda: {obstacles['triton']}")


def _fa3_obstacle(needs: AttentionNeeds, has_package: Callable[[str], bool]) -> str:
    if needs.capability[0] != 9:
        return f"it is for Hopper GPUs (9.0), this one is {_named(needs.capability)}"
    if needs.dtype not in _HALF_DTYPES:
        return f"it needs bfloat16 or float16, not {_format(needs.dtype)}"
    if needs.head_dim not in _FA3_HEAD_DIMS:
        return f"it has no kernel for heads of {needs.head_dim}"
    if not has_package("flash_attn_3"):
        return "the package flash_attn_3 is not installed (pip install tokenspeed-fa3)"
    return _triton_obstacle(needs, has_package)


def _fa2_obstacle(needs: AttentionNeeds, has_package: Callable[[str], bool]) -> str:
    if needs.capability[0] < 8:
        return f"it needs a GPU from Ampere (8.0) on, this one is {_named(needs.capability)}"
    if needs.dtype not in _HALF_DTYPES:
        return f"it needs bfloat16 or float16, not {_format(needs.dtype)}"
    if needs.head_dim > _FA2_MOST_HEAD_DIM:
        return f"it has no kernel for heads of {needs.head_dim}"
    if needs.block_size % _FA2_BLOCK_MULTIPLE:
        return f"--block-size must be a multiple of 256, not {needs.block_size}"
    if not has_package("flash_attn"):
        return "the package flash-attn is not installed (pip install flash-attn)"
    return _triton_obstacle(needs, has_package)


def _triton_obstacle(needs: AttentionNeeds, has_package: Callable[[str], bool]) -> str:
    if needs.capability[0] < 8:
        return f"a GPU from Ampere (8.0) on is needed, this one is {_named(needs.capability)}"
    if not has_package("triton"):
        return "the package triton is not installed (pip install triton)"
    return ""


def _named(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


def _format(dtype: torch.dtype) -> str:
    return str(dtype).rpartition(".")[2]
