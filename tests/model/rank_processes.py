"""Ranks of a test as processes of their own, which import what they need once for all of them."""

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch

LIMIT_S = 60.0


def run_ranks(size: int, run: Callable[..., None], *arguments: object) -> None:
    """Calls `run(rank, *arguments)` for each rank in a process with one thread; raises what one
    raises.
    """
    # a server imports what tests need and is forked for each rank: eight ranks import once
    context = get_context("forkserver")
    context.set_forkserver_preload(["tests.model.rigs", "worker_svc.parallel.gloo"])
    with ProcessPoolExecutor(size, mp_context=context) as pool:
        done = [pool.submit(_run, run, rank, *arguments) for rank in range(size)]
        for one in done:
            one.result(timeout=LIMIT_S)


def _run(run: Callable[..., None], rank: int, *arguments: object) -> None:
    torch.set_num_threads(1)
    run(rank, *arguments)
