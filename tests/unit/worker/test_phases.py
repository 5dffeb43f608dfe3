"""A start's phases are said in the order they came, each with the seconds it took."""

import logging

import pytest

from worker_svc.phases import Phases


def test_phases_are_summed_by_name_and_logged_in_order(caplog: pytest.LogCaptureFixture) -> None:
    times = iter([0.0, 1.5, 10.0, 10.25, 20.0, 21.0])
    phases = Phases(clock=lambda: next(times))
    for name in ("weights", "graphs", "weights"):
        with phases.phase(name):
            pass
    with caplog.at_level(logging.INFO):
        phases.log(logging.getLogger("test"))
    assert caplog.messages == ["ready after: weights 2.5 s, graphs 0.2 s"]
