"""Looks at a replica again and again and draws what it saw. Knows neither flags nor layout."""

from __future__ import annotations

import time
from dataclasses import dataclass

import grpc

from octavo.channel import ClientSettings
from octavo.cli.top_view import Frame, console, draw, live
from octavo.errors import ServiceError
from octavo.failures import service_error
from octavo.v1 import admin_pb2 as admin
from octavo.v1.admin_pb2_grpc import AdminServiceStub

_ANSWER_LIMIT_S = 5.0
_MAX_REQUESTS = 1000
# a replica whose core is away, or of an earlier version, still has a state to show
_NO_LIST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED)


@dataclass(slots=True)
class Replica:
    """One replica's admin port."""

    stub: AdminServiceStub
    settings: ClientSettings

    def look(self) -> tuple[admin.GetStateResponse, admin.ListRequestsResponse | None]:
        """What it does now, and for whom; None where that cannot be had. Raises ServiceError."""
        try:
            state: admin.GetStateResponse = self.stub.GetState(
                admin.GetStateRequest(), timeout=_ANSWER_LIMIT_S, metadata=self.settings.metadata
            )
            return state, self._listing()
        except grpc.RpcError as error:
            raise service_error(error, target=self.settings.targets[0]) from error

    def _listing(self) -> admin.ListRequestsResponse | None:
        asked = admin.ListRequestsRequest(limit=_MAX_REQUESTS, include_blocks=True)
        try:
            listing: admin.ListRequestsResponse = self.stub.ListRequests(
                asked, timeout=_ANSWER_LIMIT_S, metadata=self.settings.metadata
            )
        except grpc.RpcError as error:
            if error.code() in _NO_LIST:
                return None
            raise
        return listing


def print_once(replica: Replica) -> None:
    """One frame."""
    state, listing = replica.look()
    console().print(draw(Frame(state, listing)))


def watch(replica: Replica, *, interval_s: float) -> None:
    """A frame after the other, until somebody interrupts. Raises ServiceError at the first."""
    state, listing = replica.look()
    frame = Frame(state, listing, looked_at=time.monotonic())
    with live() as screen:
        while True:
            screen.update(draw(frame), refresh=True)
            time.sleep(interval_s)
            try:
                state, listing = replica.look()
            except ServiceError as error:
                frame = frame.without_answer(str(error))
            else:
                frame = frame.followed_by(state, listing, now=time.monotonic())
