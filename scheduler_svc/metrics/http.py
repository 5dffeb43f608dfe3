"""`/metrics`, `/healthz` and `/readyz` over HTTP, answered by threads from shared state.

Off the supervisor's loop, so that a scrape never waits for it. Knows nothing of processes.
"""

import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

Respond = Callable[[str, list[tuple[str, str]]], Any]
# a client that sends nothing must not hold a thread for ever
_SOCKET_TIMEOUT_S = 10.0


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_address = True


class _Handler(WSGIRequestHandler):
    timeout = _SOCKET_TIMEOUT_S

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Says nothing: scrapes are not news."""


class MetricsServer:
    """Serves until `stop`; `start` raises OSError when the port is taken."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        is_alive: Callable[[], bool],
        not_ready: Callable[[], str],
    ) -> None:
        self._registry = registry
        self._is_alive = is_alive
        self._not_ready = not_ready
        self._server: WSGIServer | None = None

    def start(self, host: str, port: int) -> int:
        """Listens; returns the port, chosen by the system when `port` is 0."""
        self._server = make_server(
            host, port, self._answer, server_class=_Server, handler_class=_Handler
        )
        threading.Thread(
            target=self._server.serve_forever, name="metrics-http", daemon=True
        ).start()
        return self._server.server_port

    def stop(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _answer(self, environ: dict[str, Any], respond: Respond) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            encode, content_type = choose_encoder(environ.get("HTTP_ACCEPT", ""))
            respond("200 OK", [("Content-Type", content_type)])
            return [encode(self._registry)]
        if path == "/healthz":
            return _plain(respond, "" if self._is_alive() else "the supervisor's loop is stuck")
        if path == "/readyz":
            return _plain(respond, self._not_ready())
        respond("404 Not Found", [("Content-Type", "text/plain")])
        return [b"paths: /metrics /healthz /readyz\n"]


def _plain(respond: Respond, problem: str) -> list[bytes]:
    status = "503 Service Unavailable" if problem else "200 OK"
    respond(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [(problem or "ok").encode() + b"\n"]
