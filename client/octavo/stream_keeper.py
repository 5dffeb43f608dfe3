"""The open streams of a blocking client, and a thread that leaves those which were dropped.

A finalizer may run in any thread at any allocation, also in one of gRPC's that holds a lock: it
must not call gRPC. It hands the stream over instead. Knows nothing of channels.
"""

from __future__ import annotations

import queue
import threading
import weakref

from octavo.stream_connection import StreamConnection

_LEAVE_LIMIT_S = 5.0


class StreamKeeper:
    """Knows every stream that is open; its thread lives from the first one to `leave_all`."""

    def __init__(self) -> None:
        self._streams: weakref.WeakSet[StreamConnection] = weakref.WeakSet()
        self._dropped: queue.SimpleQueue[StreamConnection | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def add(self, stream: StreamConnection) -> None:
        """Keeps an open stream in mind."""
        with self._starting:
            self._streams.add(stream)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_leave_dropped, args=(self._dropped,), name="octavo-streams", daemon=True
                )
                self._thread.start()

    def leave_soon(self, stream: StreamConnection) -> None:
        """Has the thread leave a stream; fit for finalizers."""
        self._dropped.put(stream)  # the one queue whose put may interrupt another

    def leave_all(self) -> None:
        """Leaves every stream, and cancels it on the service; ends the thread."""
        self._dropped.put(None)
        with self._starting:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_LEAVE_LIMIT_S)
        for stream in list(self._streams):
            stream.leave(cancels=True)


def _leave_dropped(dropped: queue.SimpleQueue[StreamConnection | None]) -> None:
    while (stream := dropped.get()) is not None:
        stream.leave(cancels=True)
