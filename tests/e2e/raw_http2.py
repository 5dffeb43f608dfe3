"""Bytes of HTTP/2 by hand (RFC 9113), so that they can be wrong. Knows nothing of gRPC servers."""

import random
import socket
import struct
from collections.abc import Mapping

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
NUM_TYPES = 12
END_HEADERS = 0x4


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    """One frame with a right length."""
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def call_headers(path: str, *, stream: int) -> bytes:
    """The HEADERS frame of a gRPC call: literal fields without compression."""
    fields: Mapping[str, str] = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    block = b"".join(
        b"\x00" + bytes([len(name)]) + name.encode() + bytes([len(value)]) + value.encode()
        for name, value in fields.items()
    )
    return frame(HEADERS, block, flags=END_HEADERS, stream=stream)


def garbage(draw: random.Random) -> bytes:
    """A frame with something wrong, or no frame at all."""
    payload = draw.randbytes(draw.randrange(64))
    stream = draw.choice((0, 1, 2, 3, 2**31 - 1))
    wrong = draw.randrange(5)
    if wrong == 0:
        return draw.randbytes(draw.randrange(1, 64))
    if wrong == 1:  # a length that lies
        return struct.pack(">I", draw.randrange(2**24))[1:] + b"\x00\x00\x00\x00\x00\x01" + payload
    if wrong == 2:  # headers that do not decompress
        return frame(HEADERS, payload, flags=END_HEADERS, stream=1)
    if wrong == 3:  # settings out of range
        return frame(SETTINGS, struct.pack(">HI", draw.randrange(8), draw.randrange(2**32)))
    return frame(draw.randrange(NUM_TYPES), payload, flags=draw.randrange(256), stream=stream)


def connect(address: tuple[str, int], *, greets: bool = True) -> socket.socket:
    """A connection; `greets`: with the preface and settings of a client."""
    connection = socket.create_connection(address, timeout=10.0)
    if greets:
        connection.sendall(PREFACE + frame(SETTINGS))
    return connection
