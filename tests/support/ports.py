"""Ports of this host on which nobody listens."""

import contextlib
import random
import socket
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")  # of ports that the system gives


def free_port() -> int:
    """Return a port that the system gives to no other process before the caller uses it."""
    first = int(RANGE.read_text().split()[0])
    while True:
        port = random.randrange(10_000, first)
        with contextlib.suppress(OSError), socket.create_server(("", port)):
            return port
