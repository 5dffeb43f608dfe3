"""The runner for GPUs on this processor: kernels in triton's interpreter, the CPU as a device.

The interpreter is chosen while triton is imported, so this file comes before every import of it.
"""

import os
import sys

import torch

if not torch.cuda.is_available():
    assert os.environ.get("TRITON_INTERPRET") == "1" or "triton" not in sys.modules
    os.environ["TRITON_INTERPRET"] = "1"
