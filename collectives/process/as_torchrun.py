"""The variables of a rank that torchrun sets, for frameworks that look for these alone."""

from __future__ import annotations

import socket

LOOPBACK = "127.0.0.1"


class Port:
    """A port of this host that no other program gets: torch's store may listen there. Local."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        # Torch sets it, too. So both may have the port, and only torch listens.
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind(("", 0))
        self.number: int = self._socket.getsockname()[1]

    def close(self) -> None:
        """Let other programs have the port. Local."""
        self._socket.close()


def variables(
    rank: int, size: int, local: tuple[int, int], group: int, address: str, port: int
) -> dict[str, str]:
    """Return the variables of a rank: `local` is its number among so many of its host, `group` the
    number of the host, and at the address is rank 0. Local.
    """
    values = {
        "RANK": rank,
        "WORLD_SIZE": size,
        "LOCAL_RANK": local[0],
        "LOCAL_WORLD_SIZE": local[1],
        "GROUP_RANK": group,
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }
    return {name: str(value) for name, value in values.items()}
