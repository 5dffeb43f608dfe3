"""Takes the inference address before any frontend does, so that a taken one is an error.

Frontends share a port through SO_REUSEPORT, and with it the kernel would let a second replica
share it as well. So the supervisor first binds without it, then keeps the port reserved by a
socket that never listens. Serves nothing.
"""

import socket
from dataclasses import dataclass
from pathlib import Path

from scheduler_svc.config import ServiceConfig


class AddressTaken(Exception):
    """The address cannot be bound; the text names the flag, the address and the reason."""


@dataclass(frozen=True, slots=True)
class InferenceAddress:
    """Where frontends listen: `host:port`, or `unix:/path`."""

    target: str
    reservation: socket.socket | None

    def release(self) -> None:
        """Gives the reserved port back."""
        if self.reservation is not None:
            self.reservation.close()


def reserve_inference_address(config: ServiceConfig) -> InferenceAddress:
    """Checks and reserves the configured address; port 0 takes a free one. Raises AddressTaken."""
    if config.unix_socket:
        return InferenceAddress(
            target=f"unix:{_free_unix_path(config.unix_socket)}", reservation=None
        )
    first = _bound(config.host, config.port, shared=False)
    port = first.getsockname()[1]
    first.close()
    reservation = _bound(config.host, port, shared=True)
    host = f"[{config.host}]" if ":" in config.host else config.host
    return InferenceAddress(target=f"{host}:{port}", reservation=reservation)


def _bound(host: str, port: int, *, shared: bool) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
        try:
            # a port in TIME_WAIT is not taken
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if shared:
                bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise AddressTaken(f"--host {host} --port {port}: {error.strerror or error}") from error
    return bound


def _free_unix_path(path: str) -> Path:
    wanted = Path(path).absolute()
    if len(str(wanted).encode()) > 100:  # the system's limit is 107 bytes with the final zero
        raise AddressTaken(f"--unix-socket {wanted}: longer than 100 bytes")
    if not wanted.parent.is_dir():
        raise AddressTaken(f"--unix-socket {wanted}: no such folder as {wanted.parent}")
    if not wanted.exists():
        return wanted
    if not wanted.is_socket():
        raise AddressTaken(f"--unix-socket {wanted}: exists and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(wanted))
        except OSError:
            wanted.unlink()  # left by a process that is gone
            return wanted
    raise AddressTaken(f"--unix-socket {wanted}: in use")
