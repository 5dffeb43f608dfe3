"""Kernels run on a CUDA device where there is one, else in triton's interpreter on the CPU.

The interpreter is chosen while triton is imported, so this file comes before every import of it.
"""

import os
import sys

import pytest
import torch

HAS_DEVICE = torch.cuda.is_available()
if not HAS_DEVICE:
    is_too_late = "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1"
    assert not is_too_late, "triton was imported before its interpreter could be chosen"
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device("cuda" if HAS_DEVICE else "cpu")
