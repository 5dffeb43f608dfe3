"""Threads with room for deep recursion: the library descends once for each level of a grammar.

A grammar of the largest size allowed has some two thousand levels, which takes 15 MB (measured);
usual threads have 8. Only what is touched becomes memory.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_STACK_BYTES = 512 * 2**20


@contextmanager
def deep_stacks() -> Iterator[None]:
    """Threads that start within have such a stack."""
    usual = threading.stack_size(_STACK_BYTES)
    try:
        yield
    finally:
        threading.stack_size(usual)


def run_deep(work: Callable[[], None]) -> None:
    """Runs something in such a thread, to its end."""
    with deep_stacks():
        thread = threading.Thread(target=work)
        thread.start()
    thread.join()
