"""Triton's compiler with a type. Knows no kernel.

Rules that keep launches from compiling while the service runs:
- a size that changes from step to step is in `varying`: else triton compiles once more for the
  value 1 and for multiples of 16;
- a pointer that may be cut at any element (a row range of a column) is in `unaligned`;
- everything else is constant for a model or a bucket.
"""

from collections.abc import Callable
from typing import Any, Protocol

import triton


class Kernel(Protocol):
    """A compiled function: `kernel[grid](...)` launches it, `kernel(...)` calls it on the device.

    Arguments are tensors, numbers and compile options; triton checks them, types cannot.
    """

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        """The function that launches as many programs."""
        ...

    def __call__(self, *arguments: Any) -> Any:
        """For other kernels: triton traces the call."""
        ...


def kernel(
    *, varying: tuple[str, ...] = (), unaligned: tuple[str, ...] = ()
) -> Callable[[Callable[..., object]], Kernel]:
    """Decorate a function that triton compiles at its first launch."""
    decorate: Callable[[Callable[..., object]], Kernel] = triton.jit(
        do_not_specialize=varying, do_not_specialize_on_alignment=(*varying, *unaligned)
    )
    return decorate
