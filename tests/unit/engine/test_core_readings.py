"""What the core's process adds to what the core counts itself."""

import dataclasses

import numpy as np

from octavo.internal.v1 import control_pb2 as control
from scheduler_svc.core.core import Core
from scheduler_svc.core.limits import Policy, WorkerLimits
from scheduler_svc.core.listing import Waiting, WaitReason
from scheduler_svc.core.request import NewRequest
from scheduler_svc.engine.core_readings import CoreReadings

LIMITS = WorkerLimits(
    num_blocks=101,
    block_size=16,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    max_model_len=200,
    vocab_size=288,
)


def of_core(readings: CoreReadings, *, moved_s: float = 0.0) -> dict[str, control.Reading]:
    core = Core(Policy(), cache_root=b"root")
    rendered = readings.render(
        core.counts(), waiting=core.count_waiting(), num_steps=0, num_epochs=1, moved_s=moved_s
    )
    return {reading.name: reading for reading in rendered}


def test_the_core_says_when_it_moved_last_in_unix_time() -> None:
    readings = CoreReadings(wall_clock=lambda: 1_800_000_000.0)
    moved = of_core(readings, moved_s=2.5)["last_progress_timestamp_seconds"]
    assert moved.gauge == 1_799_999_997.5


def test_the_core_says_how_its_cache_is_cut_once() -> None:
    """Other limits in a later epoch replace the series, they do not add one."""
    readings = CoreReadings()
    for num_blocks in (51, 101):
        readings.note_limits(dataclasses.replace(LIMITS, num_blocks=num_blocks))
    counts = Core(Policy(), cache_root=b"root").counts()
    rendered = readings.render(counts, waiting={}, num_steps=0, num_epochs=2, moved_s=0.0)
    infos = [reading for reading in rendered if reading.name == "cache_config_info"]
    assert [list(info.labels) for info in infos] == [["16", "100"]]


def test_the_core_counts_the_size_of_each_step() -> None:
    core, readings = Core(Policy(), cache_root=b"root"), CoreReadings()
    core.start_epoch(LIMITS, 0.0)
    for number in (1, 2):
        core.submit(
            NewRequest(
                owner=1,
                blob=b"",
                body_digest=b"",
                submitted_at=0.0,
                number=number,
                tenant="default",
                request_id=f"request-{number}",
                prompt=np.arange(1, 11, dtype=np.int32) + number,
            ),
            0.0,
        )
    plan = core.plan(0.0)
    assert plan is not None
    readings.note_plan(plan)
    rendered = of_core(readings)
    assert rendered["step_sequences"].histogram.sum == 2
    assert rendered["step_tokens"].histogram.sum == 20


def test_what_waits_is_told_in_outputs_and_in_tokens_of_each_reason() -> None:
    counts = Core(Policy(), cache_root=b"root").counts()
    waiting = {WaitReason.BLOCKS: Waiting(2, 700), WaitReason.SLOT: Waiting(1, 5)}
    rendered = CoreReadings().render(
        counts, waiting=waiting, num_steps=0, num_epochs=1, moved_s=0.0
    )
    told = {
        (reading.name, *reading.labels): reading.gauge
        for reading in rendered
        if reading.name.endswith("waiting_by_reason")
    }
    assert told == {
        ("num_requests_waiting_by_reason", "blocks"): 2,
        ("num_requests_waiting_by_reason", "slot"): 1,
        ("num_tokens_waiting_by_reason", "blocks"): 700,
        ("num_tokens_waiting_by_reason", "slot"): 5,
    }
