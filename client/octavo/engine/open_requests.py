"""Requests that were added one by one: which are open, which have ended. Knows no service."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Future

from octavo.results import Generation


class OpenRequests:
    """Filled and emptied by one thread, told of ends by another."""

    def __init__(self) -> None:
        self._futures: dict[str, Future[Generation]] = {}
        self._ended: deque[str] = deque()
        self._news = threading.Condition()

    def __len__(self) -> int:
        return len(self._futures)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._futures

    def add(self, request_id: str, future: Future[Generation]) -> None:
        """Opens a request; it has ended when its future is done."""
        self._futures[request_id] = future
        future.add_done_callback(lambda _: self._note_end(request_id))

    def take_ended(self) -> list[Generation]:
        """Waits for an end if any request is open; takes all that have ended, oldest end first.

        Raises the error of a failed one, when it is the oldest; until then it waits its turn.
        """
        with self._news:
            self._news.wait_for(lambda: bool(self._ended) or not self._futures)
        results: list[Generation] = []
        while self._ended:
            future = self._futures[self._ended[0]]
            if future.exception() is not None and results:
                break
            del self._futures[self._ended.popleft()]
            results.append(future.result())
        return results

    def _note_end(self, request_id: str) -> None:
        with self._news:
            self._ended.append(request_id)
            self._news.notify_all()
