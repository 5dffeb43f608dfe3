"""`python -m tests.gpu.memory_hog SECONDS`: takes all memory of the GPU that is or becomes free.

Prints a line once it has what was free at first; then ends after the seconds.
"""

import sys
import time

import torch

_PIECES = (1 << 30, 64 << 20, 4 << 20)


def take(held: list[torch.Tensor]) -> None:
    """Everything that is free now."""
    for size in _PIECES:
        try:
            while True:
                held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            continue


def main() -> None:
    """Hogs."""
    held: list[torch.Tensor] = []
    take(held)
    sys.stdout.write("has all that was free\n")
    sys.stdout.flush()
    ends_at = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < ends_at:
        take(held)
        time.sleep(0.01)


if __name__ == "__main__":
    main()
