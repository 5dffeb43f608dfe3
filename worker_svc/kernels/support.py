"""Whether kernels can run here. Knows no kernel; importable without triton."""

from importlib.util import find_spec

import torch


class KernelsUnavailableError(Exception):
    """This machine cannot run the Triton kernels; the message is one clear line."""


def has_triton() -> bool:
    """Whether triton is installed. Imports nothing."""
    return find_spec("triton") is not None


def require_triton() -> None:
    """Raise `KernelsUnavailableError` unless the modules of this package can be imported."""
    if not has_triton():
        raise KernelsUnavailableError(
            "Triton kernels need the package triton, which is not installed: pip install triton"
        )


def num_multiprocessors(device: torch.device) -> int:
    """How many programs run side by side at least; of a CPU (the interpreter), one."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
