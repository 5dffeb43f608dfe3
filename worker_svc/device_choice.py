"""Where tensors live, decided before torch loads. Knows no tensor."""

from pathlib import Path

_DEVICES = Path("/dev")
_NVIDIA_GPU = "nvidia[0-9]*"


def choose_device(requested: str, *, devices: Path = _DEVICES) -> str:
    """Say "cuda" or "cpu" for `--device`; auto takes a GPU where this process can see one."""
    if requested != "auto":
        return requested
    return "cuda" if next(devices.glob(_NVIDIA_GPU), None) is not None else "cpu"
