"""One thread per test process: other work shares the cores, and results stay the same."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _single_thread() -> None:
    torch.set_num_threads(1)
