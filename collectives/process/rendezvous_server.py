"""The server of a rendezvous: it takes an object of each rank, and sends all of them to all."""

from __future__ import annotations

import contextlib
import os
import pickle
import random
import selectors
import socket
import threading
import time
from typing import Any

from collectives.errors import CommunicatorError
from collectives.process import processes
from collectives.process.channel import GRACE, Channel, Stranger, own, watch
from collectives.process.environment import ADDRESS, RANK, SIZE
from collectives.text.words import named

LOOK = 0.005  # seconds until another connection is accepted when too many files are open
WHO = b""  # the question for missing ranks

MOST_STRANGERS = 512
AT_ONCE = 16  # connections that are accepted before others are looked at

WATCHER = (1 << 64) - 1  # instead of a rank: a peer that only watches the server


class Server:
    """Serves one rendezvous of a job, in a thread, until it is closed.

    A rank that has left after a round of exchanges is not missing until the next round.

    Children of this process reach it by a socket of the Unix domain, and all processes of this user
    if it is for `siblings`. If there is a `port` (0 for any), all processes that know the `secret`
    reach it there.
    """

    def __init__(
        self, size: int, port: int | None = None, secret: bytes = b"", *, siblings: bool = False
    ) -> None:
        self.size = size
        self._siblings = siblings
        self.port: int | None = port
        self._secret = secret
        if port is None:
            self.address: str = f"unix:collectives-{os.getpid()}-{os.urandom(16).hex()}"
            self._listener = socket.socket(socket.AF_UNIX)
            self._listener.bind("\0" + self.address.removeprefix("unix:"))
            self._listener.listen(socket.SOMAXCONN)  # other processes may connect to it, too
        else:
            assert secret
            self._listener = _listening(port)
            self.port = self._listener.getsockname()[1]
        self._listener.setblocking(False)
        self._wake, self._woken = socket.socketpair()
        for each in (self._listener, self._wake, self._woken):
            own(each)
        self._strangers: dict[socket.socket, Stranger] = {}
        self._ranks: dict[socket.socket, int] = {}
        self._channels: dict[socket.socket, Channel] = {}
        self._said: dict[int, bytes] = {}
        self._gone: set[int] = set()
        self._refused: dict[str, str] = {}
        self._thread = threading.Thread(target=self._serve, name="collectives-rendezvous")
        self._thread.daemon = True
        self._thread.start()

    def environment(self, rank: int) -> dict[str, str]:
        """Return the variables that rank `rank` needs. Local."""
        return {ADDRESS: self.address, RANK: str(rank), SIZE: str(self.size)}

    def lose(self, rank: int) -> None:
        """Note that the process of `rank` has ended, since others may wait for it. Local."""
        self._gone.add(rank)
        self._wake.send(b"\0")

    def close(self) -> None:
        """End the thread. Local."""
        self._wake.close()
        self._thread.join()

    def _serve(self) -> None:
        with selectors.DefaultSelector() as selector, self._listener, self._woken:
            selector.register(self._listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            while True:
                for key, _ in selector.select(1.0 if self._strangers else None):
                    ready = key.fileobj
                    if ready is self._listener:
                        self._welcome(selector)
                    elif ready is self._woken:
                        if not self._woken.recv(64):
                            for each in list(selector.get_map().values()):
                                each.fileobj.close()  # type: ignore[union-attr]
                            return
                    elif ready in self._ranks:
                        self._hear(selector, ready)
                    else:
                        self._greet(selector, ready)  # type: ignore[arg-type]
                self._forget(selector)
                self._answer()

    def _welcome(self, selector: selectors.BaseSelector) -> None:
        """Accept connections, so that a rank's does not wait for long behind those of strangers."""
        for _ in range(AT_ONCE):
            try:
                made, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # too many files are open
                time.sleep(LOOK)
                return
            self._accept(selector, made)

    def _accept(self, selector: selectors.BaseSelector, made: socket.socket) -> None:
        """Keep a connection; on one host only one of a process of this user."""
        own(made)
        try:
            if self.port is not None:
                watch(made)
            elif processes.peer(made)[1] != os.getuid():
                made.close()
                return
            self._strangers[made] = Stranger(made)
        except OSError:
            made.close()
            return
        selector.register(made, selectors.EVENT_READ)

    def _greet(self, selector: selectors.BaseSelector, made: socket.socket) -> None:
        """Read the greeting of a peer, and accept it if it is a rank that has not come yet."""
        try:
            heard = self._strangers[made].hear(self._secret)
            if heard is None:
                return
            channel, rank, size = heard
            refusal = self._refusal(rank, size, made)
            channel.send(pickle.dumps(refusal))
            if refusal:
                self._refused[_host(made)] = f" as rank {rank} of {size}: {refusal}"
        except OSError as error:
            refusal = str(error)
            if isinstance(error, PermissionError):
                self._refused[_host(made)] = f": {refusal}"
        del self._strangers[made]
        if refusal:
            self._dismiss(selector, made)
        else:
            self._ranks[made], self._channels[made] = rank, channel
            self._gone.discard(rank)  # it tries again after an error
            self._said.pop(rank, None)

    def _forget(self, selector: selectors.BaseSelector) -> None:
        """Close connections to peers that do not send their greeting."""
        now = time.monotonic()
        for made, stranger in list(self._strangers.items()):
            if now < stranger.since + GRACE:
                break  # they are in the order in which they came
            del self._strangers[made]
            self._dismiss(selector, made)
        # A flood must not displace each rank before it has answered, so the choice is random.
        surplus = max(0, len(self._strangers) - MOST_STRANGERS)
        for made in random.sample(list(self._strangers), surplus):
            del self._strangers[made]
            self._dismiss(selector, made)

    def _dismiss(self, selector: selectors.BaseSelector, made: socket.socket) -> None:
        selector.unregister(made)
        made.close()

    def _refusal(self, rank: int, size: int, made: socket.socket) -> str:
        """Return why a process cannot be a rank, or an empty text."""
        if rank == WATCHER:
            return ""
        if self.port is None and not self._siblings:
            process = processes.peer(made)[0]
            if process != os.getpid() and _parent(process) != os.getpid():
                return "it was started by another process than the ranks, perhaps by one of them"
        if size != self.size or rank >= size:
            return f"there are {self.size} ranks"
        if rank in self._ranks.values():
            return "it is there already, and has perhaps started this process"
        return ""

    def _hear(self, selector: selectors.BaseSelector, made: socket.socket) -> None:
        """Store the object of a rank, or note that it has left."""
        rank = self._ranks[made]
        try:
            text = self._channels[made].receive()
            if text != WHO:
                self._said[rank] = text
            elif rank in self._said:  # else its answer is on the way
                self._give_up(made)
        except OSError:
            del self._ranks[made], self._channels[made]
            self._dismiss(selector, made)
            if rank in self._said:
                self._gone.add(rank)

    def _answer(self) -> None:
        """Answer all waiting ranks, when all have sent objects, or a missing rank has ended."""
        waiting = self._waiting_ranks()
        if not waiting:
            return
        lost = sorted(self._gone - self._said.keys())
        if lost:
            answer: Any = f"the process of rank {lost[0]} has ended"
        elif len(self._said) == self.size:
            answer = [self._said[rank] for rank in range(self.size)]
        else:
            return
        self._said.clear()
        self._send(waiting, answer)

    def _give_up(self, made: socket.socket) -> None:
        """Tell the missing ranks to one whose deadline has passed, and to all others that wait: it
        may serve them, and end.
        """
        others = [each for each in self._waiting_ranks() if each is not made]
        self._send([*others, made], self._missing())

    def _waiting_ranks(self) -> list[socket.socket]:
        """Return the ranks that wait for an answer; rank 0, which may serve, is the last."""
        waiting = [made for made, rank in self._ranks.items() if rank in self._said]
        return sorted(waiting, key=lambda made: -self._ranks[made])

    def _send(self, ranks: list[socket.socket], answer: Any) -> None:
        text = pickle.dumps(answer)
        for made in ranks:
            with contextlib.suppress(OSError):  # it has ended, which others learn in the next round
                self._channels[made].send(text)

    def _missing(self) -> tuple[str]:
        """Return the answer to the question for missing ranks, for all ranks that wait: those that
        have sent nothing, and the processes that were refused.
        """
        left = [rank for rank in range(self.size) if rank not in self._said]
        text = f"{named(left)} {'has' if len(left) == 1 else 'have'} not come"
        for host, why in self._refused.items():
            text += f"; a process at {host} was refused{why}"
        return (text,)


def _listening(port: int) -> socket.socket:
    """Return a socket that listens at a port of all addresses of this host."""
    options: dict[str, Any] = {"family": socket.AF_INET}
    if socket.has_dualstack_ipv6():
        options = {"family": socket.AF_INET6, "dualstack_ipv6": True}
    try:
        return socket.create_server(("", port), backlog=socket.SOMAXCONN, **options)
    except OSError as error:
        raise CommunicatorError(
            f"rank 0 cannot serve the rendezvous at port {port} of this host, perhaps because "
            f"another job does: {error.strerror}"
        ) from error


def _host(made: socket.socket) -> str:
    """Return the address of a peer."""
    try:
        found = made.getpeername()
    except OSError:
        return "an address that is not known"
    return str(found[0]).removeprefix("::ffff:") if isinstance(found, tuple) else "this host"


def _parent(process: int) -> int:
    """Return the number of the process that has started another; 0 if it is not known."""
    try:
        return int(processes.stat(process)[processes.PARENT])
    except OSError:
        return 0
