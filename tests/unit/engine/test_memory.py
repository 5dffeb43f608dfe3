"""What the garbage collector of the core's process looks at."""

import gc
import weakref

from scheduler_svc.engine.process import settle_memory


class _Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_what_lives_is_passed_over_and_dropped_the_next_time() -> None:
    cycle = _Cycle()
    known = weakref.ref(cycle)
    try:
        settle_memory()
        del cycle
        gc.collect()
        assert known() is not None, "collections pass over what lived"
        settle_memory()
        assert known() is None, "it is not kept for ever"
    finally:
        gc.unfreeze()
