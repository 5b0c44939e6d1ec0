"""Jobs of processes of this host: their start, and the hub on the loopback address between them.

The launcher listens on a port. Each rank connects, proves that it knows the secret of the job, and
sends frames, which the hub passes on to the rank that they name. The hub keeps those for ranks that
have not come yet, and tells all ranks when one has ended.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import secrets
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from collectives.errors import CommunicatorError
from collectives.process import environment
from collectives.slow.stations import DIED, ENDED, LEFT, Station
from collectives.text.words import error_text

SCHEME, HOST = "loopback", "127.0.0.1"
TAKEN = "rank"  # in place of the host, for processes that a rank has started
GRACE = 1.0  # seconds in which the other ranks may end by themselves after one has failed
LOOK = 0.02  # seconds between two checks whether ranks have ended


def join() -> Station | None:
    """Join the job that the environment names, if any. Local."""
    address = environment.text(environment.ADDRESS) or ""
    scheme, _, place = address.partition(":")
    if scheme != SCHEME:
        return None
    from multiprocessing.connection import Client

    host, _, port = place.rpartition(":")
    rank, size = (int(os.environ[name]) for name in (environment.RANK, environment.SIZE))
    if host == TAKEN:
        raise CommunicatorError(
            f"this process is no rank: rank {rank} of {size} (process {port}) has started it, or "
            f"one of its children has, and it has inherited the variables of that rank; start it "
            f"with an environment without {environment.ADDRESS}"
        )
    secret = (environment.text(environment.SECRET) or "").encode()
    try:
        hub = Client((host, int(port)), authkey=secret)
    except OSError as error:
        raise CommunicatorError(
            f"rank {rank} of {size} cannot reach its launcher at {place}: {error}"
        ) from None
    lock = threading.Lock()

    def send(dest: int, frame: tuple[Any, ...]) -> None:
        data = dest.to_bytes(4, "little") + pickle.dumps(frame)
        with lock:
            hub.send_bytes(data)

    station = Station(rank, size, SCHEME, send)
    hub.send_bytes(rank.to_bytes(4, "little"))
    os.environ[environment.ADDRESS] = f"{SCHEME}:{TAKEN}:{os.getpid()}"  # for its children
    is_leaving = threading.Event()

    def listen() -> None:
        while True:
            try:
                data = hub.recv_bytes()
            except (EOFError, OSError):
                if not is_leaving.is_set():
                    os._exit(1)  # the launcher is gone
                return
            station.receive(pickle.loads(data))

    def leave() -> None:
        is_leaving.set()
        station.leave(LEFT)

    atexit.register(leave)
    _tell_of_errors(station)
    threading.Thread(target=listen, daemon=True, name="collectives-mail").start()
    return station


def _tell_of_errors(station: Station) -> None:
    """Have the other ranks raise an error when this one ends because of an exception."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        station.give_up(error_text(error))
        before(kind, error, trace)

    sys.excepthook = hook


class Hub:
    """The exchange of frames between the ranks of a job, in its launcher."""

    def __init__(self, size: int) -> None:
        from multiprocessing.connection import Listener

        self.size: int = size
        self.secret: str = secrets.token_hex(32)
        self._listener = Listener((HOST, 0), backlog=size)
        self.port: int = self._listener.address[1]
        self._ranks: dict[int, Any] = {}
        self._kept: dict[int, list[bytes]] = defaultdict(list)
        self._locks = [threading.Lock() for _ in range(size)]
        threading.Thread(target=self._accept, daemon=True).start()

    def variables(self, rank: int) -> dict[str, str]:
        """Return the variables of the environment by which a rank finds the hub. Local."""
        return {
            environment.ADDRESS: f"{SCHEME}:{HOST}:{self.port}",
            environment.SECRET: self.secret,
            environment.RANK: str(rank),
            environment.SIZE: str(self.size),
        }

    def _accept(self) -> None:
        while True:
            try:
                made = self._listener.accept()
            except OSError:  # it is closed
                return
            threading.Thread(target=self._serve, args=(made,), daemon=True).start()

    def _serve(self, made: Any) -> None:
        """Pass on the frames of a rank."""
        from multiprocessing.connection import answer_challenge, deliver_challenge

        try:
            deliver_challenge(made, self.secret.encode())
            answer_challenge(made, self.secret.encode())
            rank = int.from_bytes(made.recv_bytes(4), "little")
            with self._locks[rank]:
                for data in self._kept.pop(rank, ()):
                    made.send_bytes(data)
                self._ranks[rank] = made
            while True:
                data = made.recv_bytes()
                self._pass_on(int.from_bytes(data[:4], "little"), data[4:])
        except Exception:  # it has ended, or is no rank; the end of its process tells the others
            made.close()

    def _pass_on(self, rank: int, data: bytes) -> None:
        with self._locks[rank]:
            there = self._ranks.get(rank)
            if there is None:
                self._kept[rank].append(data)
                return
            with contextlib.suppress(OSError):  # it has ended
                there.send_bytes(data)

    def tell_end(self, rank: int, how: str, process: int) -> None:
        """Tell all ranks that one has ended. Local."""
        for dest in range(self.size):
            if dest != rank:
                self._pass_on(dest, pickle.dumps((None, ENDED, rank, how, process)))

    def close(self) -> None:
        """Accept no rank any more. Local."""
        self._listener.close()


def run(n: int, words: Sequence[str], prefixed: bool = False) -> int:
    """Run a program on `n` ranks; return the exit status of the first that fails, or 0. Local."""
    hub = Hub(n)
    children: list[subprocess.Popen[str]] = []
    readers: list[threading.Thread] = []
    pipe = subprocess.PIPE if prefixed else None
    try:
        for rank in range(n):
            child = subprocess.Popen(
                [sys.executable, *words],
                env={**os.environ, "OMP_NUM_THREADS": _threads(n), **hub.variables(rank)},
                stdin=None if rank == 0 else subprocess.DEVNULL,
                stdout=pipe,
                stderr=pipe,
                text=True,
                errors="replace",
            )
            children.append(child)
            for source, name in ((child.stdout, "stdout"), (child.stderr, "stderr")):
                if source is not None:
                    readers.append(_pass_lines(source, name, rank))
        return _outcome(hub, children)
    finally:
        _end(children)
        for reader in readers:
            reader.join(GRACE)
        hub.close()


def _threads(n: int) -> str:
    return os.environ.get("OMP_NUM_THREADS") or str(max(1, (os.cpu_count() or 1) // n))


def _pass_lines(source: Any, name: str, rank: int) -> threading.Thread:
    """Start to print the lines of a rank, after its number."""

    def read() -> None:
        for line in source:
            stream = getattr(sys, name)
            stream.write(f"[{rank}] {line}" if line.endswith("\n") else f"[{rank}] {line}\n")
            stream.flush()

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    return reader


def _outcome(hub: Hub, children: Sequence[subprocess.Popen[str]]) -> int:
    """Wait until all ranks have ended; end the others when one has failed."""
    running = dict(enumerate(children))
    status, limit = 0, None
    while running and (limit is None or time.monotonic() < limit):
        for rank, child in list(running.items()):
            ended = child.poll()
            if ended is None:
                continue
            del running[rank]
            hub.tell_end(rank, DIED if ended else LEFT, child.pid)
            if ended and status == 0:
                status = ended if ended > 0 else 128 - ended
                limit = time.monotonic() + GRACE
        time.sleep(LOOK)
    return status


def _end(children: Sequence[subprocess.Popen[str]]) -> None:
    """End the ranks that run."""
    for act in (subprocess.Popen.terminate, subprocess.Popen.kill):
        for child in children:
            if child.poll() is None:
                act(child)
        limit = time.monotonic() + GRACE
        while any(each.poll() is None for each in children) and time.monotonic() < limit:
            time.sleep(LOOK)
