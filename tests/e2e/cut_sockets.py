"""Cuts a connection of another process, as if its peer had hung up. Knows no protocol.

Linux lends the process's own descriptor (pidfd_getfd), and shutting that down ends the connection
for both sides. It takes the right to trace the process, which a parent usually has.
"""

import ctypes
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_PIDFD_GETFD = 438  # the same number on every architecture
_LISTENS = 0x10000  # the kernel's __SO_ACCEPTON
_CONNECTED = "03"


class CannotCut(Exception):
    """This machine does not lend descriptors of other processes."""


def cut_ipc(process: psutil.Process, socket_name: str) -> int:
    """Ends the connections that `process` accepted on `.../socket_name`; returns how many."""
    inodes = set(_accepted_inodes(socket_name))
    found = [fd for fd, inode in _sockets(process) if inode in inodes]
    for descriptor in found:
        _shut_down(process, descriptor)
    return len(found)


def cut_tcp(process: psutil.Process, port: int) -> int:
    """Ends the connections that `process` accepted on a port; returns how many."""
    found = [
        each.fd
        for each in process.net_connections("tcp")
        if each.laddr.port == port and each.status == psutil.CONN_ESTABLISHED
    ]
    for descriptor in found:
        _shut_down(process, descriptor)
    return len(found)


def _accepted_inodes(socket_name: str) -> Iterator[str]:
    for line in Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8 or not fields[7].endswith(f"/{socket_name}"):
            continue
        flags, state, inode = int(fields[3], 16), fields[5], fields[6]
        if state == _CONNECTED and not flags & _LISTENS:
            yield inode


def _sockets(process: psutil.Process) -> Iterator[tuple[int, str]]:
    folder = Path(f"/proc/{process.pid}/fd")
    for entry in folder.iterdir():
        with suppress(OSError):  # closed meanwhile
            target = entry.readlink().name
            if target.startswith("socket:["):
                yield int(entry.name), target[len("socket:[") : -1]


def _shut_down(process: psutil.Process, descriptor: int) -> None:
    handle = os.pidfd_open(process.pid)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        lent = libc.syscall(_PIDFD_GETFD, handle, descriptor, 0)
        if lent < 0:
            problem = os.strerror(ctypes.get_errno())
            raise CannotCut(f"pidfd_getfd of process {process.pid}: {problem}")
        with socket.socket(fileno=lent) as connection, suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
    finally:
        os.close(handle)
