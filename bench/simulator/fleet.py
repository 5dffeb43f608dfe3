"""Replicas behind a router, and the clients in front of it. Knows no step.

A client sends its next turn some time after the answer to the one before; one that is refused
leaves.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from bench.simulator.clock import Clock
from bench.simulator.jobs import Conversation, Job
from bench.simulator.recorder import Recorder
from bench.simulator.router import Router


class Replica(Protocol):
    """Serves jobs."""

    def submit(self, job: Job) -> bool:
        """Takes a job; returns whether it is accepted."""


class Fleet:
    """Plays traces."""

    def __init__(self, clock: Clock, recorder: Recorder, router: Router) -> None:
        self._clock = clock
        self._recorder = recorder
        self._router = router
        self._replicas: list[Replica] = []
        self._loads = np.zeros(0, np.int64)

    def add(self, make: Callable[[Callable[[int], None]], Replica], *, count: int) -> None:
        """Adds replicas; each is made with whom to tell of ends."""
        self._replicas += [make(self._ended) for _ in range(count)]
        self._loads = np.zeros(len(self._replicas), np.int64)

    def play(self, trace: list[Conversation]) -> None:
        """Plans the arrivals of a trace."""
        for conversation in trace:
            self._clock.at(conversation.start_s, _Arrival(self, conversation, 0))

    def send(self, conversation: Conversation, turn_index: int) -> None:
        """A turn arrives."""
        job = Job(
            self._recorder.next_number, conversation, turn_index, conversation.prompt(turn_index)
        )
        replica = self._router.choose(job, self._loads)
        self._recorder.arrive(job, replica=replica, now=self._clock.now)
        self._loads[replica] += 1
        if not self._replicas[replica].submit(job):
            self._loads[replica] -= 1
            self._recorder.refuse(job.number, self._clock.now)

    def _ended(self, number: int) -> None:
        served = self._recorder.served[number - 1]
        self._loads[served.replica] -= 1
        conversation, following = served.job.conversation, served.job.turn_index + 1
        if following < len(conversation.turns):
            think_s = conversation.turns[following].think_s
            self._clock.at(self._clock.now + think_s, _Arrival(self, conversation, following))


class _Arrival:
    """A turn that will arrive."""

    def __init__(self, fleet: Fleet, conversation: Conversation, turn_index: int) -> None:
        self._fleet = fleet
        self._conversation = conversation
        self._turn_index = turn_index

    def __call__(self) -> None:
        self._fleet.send(self._conversation, self._turn_index)
