"""Messages between a rank and the server of a rendezvous, and proofs that both know a secret.

::

    server to rank   CHALLENGE   a mark and a nonce
    rank to server   HELLO       a nonce, rank and size, a proof
    server to rank   PROOF       zeros, if the server does not accept the rank's
    both ways        HEAD        length and proof of the next bytes

A proof is an HMAC with the secret, or with a key that both have derived from it and from the two
nonces. Only records of a fixed size are read from a peer that has proved nothing. On a socket of
the Unix domain the kernel identifies the peer, and the secret is empty.
"""

from __future__ import annotations

import hmac
import os
import socket
import struct
import time
import weakref

from collectives.process import processes

MARK = b"collectives rdv1"
NONCE = PROOF = 32  # bytes
CHALLENGE = struct.Struct(f"!{len(MARK)}s{NONCE}s")
HELLO = struct.Struct(f"!{NONCE}s16s{PROOF}s")
PLACE = struct.Struct("!QQ")  # rank and size
HEAD = struct.Struct(f"!Q{PROOF}s")

LONGEST = 1 << 30  # bytes of a message
GRACE = 10.0  # seconds for a message that a peer sends in one piece
SILENCE = 15  # seconds after which a host that does not answer is lost


_own: weakref.WeakSet[socket.socket] = weakref.WeakSet()  # not of children of this process


class Channel:
    """A connection to a peer that knows the secret."""

    def __init__(self, connected: socket.socket, mine: bytes, theirs: bytes) -> None:
        self.socket = connected
        self._mine, self._theirs = mine, theirs
        self._sent = self._received = 0

    def send(self, text: bytes) -> None:
        """Send a message. Local."""
        proof = _proof(self._mine, self._sent.to_bytes(8, "big"), text)
        self._sent += 1
        self.socket.sendall(HEAD.pack(len(text), proof) + text)

    def receive(self) -> bytes:
        """Return the next message. Raise ConnectionError if it is not from the peer. Local."""
        nbytes, proof = HEAD.unpack(_read(self.socket, HEAD.size))
        if nbytes > LONGEST:
            raise ConnectionError(f"a message of {nbytes} bytes is refused")
        text = _read(self.socket, nbytes)
        if not hmac.compare_digest(
            proof, _proof(self._theirs, self._received.to_bytes(8, "big"), text)
        ):
            raise ConnectionError("a message is not from whom it seems to be")
        self._received += 1
        return text


class Stranger:
    """A connection to a peer that has not proved yet that it is a rank."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self.since: float = time.monotonic()
        self._nonce = os.urandom(NONCE)
        self._heard = b""
        connected.setblocking(False)
        connected.sendall(CHALLENGE.pack(MARK, self._nonce))

    def hear(self, secret: bytes) -> tuple[Channel, int, int] | None:
        """Read the received bytes; return a channel, rank and size when the greeting is complete.
        Raise ConnectionError if the peer has left, and PermissionError if it does not know the
        `secret`. Local.
        """
        try:
            piece = self.socket.recv(HELLO.size - len(self._heard))
        except BlockingIOError:
            return None
        if not piece:
            raise ConnectionError("it has left")
        self._heard += piece
        if len(self._heard) < HELLO.size:
            return None
        nonce, place, proof = HELLO.unpack(self._heard)
        text = self._nonce + nonce + place
        self.socket.settimeout(GRACE)
        if not hmac.compare_digest(proof, _proof(secret, b"rank", text)):
            self.socket.sendall(bytes(PROOF))
            raise PermissionError("it does not know the secret of this job")
        self.socket.sendall(_proof(secret, b"server", text))
        keys = (_proof(secret, b"to " + whom, text) for whom in (b"rank", b"server"))
        return Channel(self.socket, *keys), *PLACE.unpack(place)


def introduce(connected: socket.socket, secret: bytes, rank: int, size: int) -> Channel:
    """Return a channel to a server after both have proved that they know a secret. Local."""
    mark, theirs = CHALLENGE.unpack(_read(connected, CHALLENGE.size))
    if mark != MARK:
        raise PermissionError("the program that listens there is no rendezvous of this library")
    nonce, place = os.urandom(NONCE), PLACE.pack(rank, size)
    text = theirs + nonce + place
    connected.sendall(HELLO.pack(nonce, place, _proof(secret, b"rank", text)))
    if not hmac.compare_digest(_read(connected, PROOF), _proof(secret, b"server", text)):
        raise PermissionError("it has another secret: it is the rendezvous of another job")
    keys = (_proof(secret, b"to " + whom, text) for whom in (b"server", b"rank"))
    return Channel(connected, *keys)


def own(made: socket.socket) -> None:
    """Close a socket in children that this process forks: they would keep it open. Local."""
    _own.add(made)


def _forget() -> None:
    for made in list(_own):
        made.close()


processes.after_fork(_forget)


def watch(connected: socket.socket) -> None:
    """Make the kernel end a connection to a host that is lost. Local."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, SILENCE // 3),
        (socket.TCP_KEEPINTVL, SILENCE // 3),
        (socket.TCP_KEEPCNT, 2),
        (socket.TCP_USER_TIMEOUT, SILENCE * 1000),
        (socket.TCP_NODELAY, 1),
    ):
        connected.setsockopt(socket.IPPROTO_TCP, option, value)


def _proof(key: bytes, *parts: bytes) -> bytes:
    return hmac.digest(key, b"".join(parts), "sha256")


def _read(connected: socket.socket, nbytes: int) -> bytes:
    """Return `nbytes` bytes. Raise ConnectionError if there are fewer."""
    parts = []
    while nbytes:
        part = connected.recv(min(nbytes, 1 << 20))
        if not part:
            raise ConnectionError("the other end has closed the connection")
        parts.append(part)
        nbytes -= len(part)
    return b"".join(parts)
