"""Ports that programs started by a test may bind. Knows nothing of who does."""

import itertools
import random
import socket


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now, and that stay free while a program restarts.

    They lie below the range from which the system takes ports for outgoing connections.
    """
    candidates = random.sample(range(20_000, 32_000), 500)
    return list(itertools.islice(filter(is_free, candidates), count))


def is_free(port: int) -> bool:
    """Whether a program could listen on this port of the loopback."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
