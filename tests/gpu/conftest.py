"""Tests of this folder need a CUDA device; without one none of them is collected."""

import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]
