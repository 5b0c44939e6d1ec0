"""Rendezvous: how processes that no MPI launcher started find each other.

A rendezvous carries a few small objects, and only while ranks get to know each other: then they
have shared memory. There are three kinds. `Served` talks to a `Server`, which the process has that
started the ranks. `Keyed` goes by a store of keys and values, as torch.distributed has one.
`Folder` is such a store, of files in a folder that all ranks see.

Objects are pickled. So a server takes, and a rank asks, only processes of the same user; and what
comes by a store, where others may write, is read without the power to make objects.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import selectors
import socket
import stat
import struct
import threading
import time
import weakref
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, Protocol

from collectives.errors import (
    ArgumentError,
    CollectivesError,
    CommunicatorError,
    PeerLostError,
    StallError,
)
from collectives.process import processes
from collectives.process.environment import RANK, SIZE
from collectives.process.waiting import Naps, Wait

# Set in every rank that `spawn` or `collectives run --no-mpi` starts.
ADDRESS = "COLLECTIVES_RENDEZVOUS"

LENGTH = struct.Struct("!Q")
HELLO = struct.Struct("!QQ")  # rank and size

LOOK = 0.005  # seconds between two looks at a folder


class Store(Protocol):
    """A store of keys and values that all ranks see, such as ``torch.distributed.Store``."""

    def set(self, key: str, value: Any, /) -> None:
        """Set the `value` of `key`. Local."""

    def get(self, key: str, /) -> bytes:
        """Return the value of `key` as soon as a rank has set it. Local."""


class _Plain(pickle.Unpickler):
    """Reads numbers, texts and containers: whoever reaches the port of a store can write to it."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is refused: only plain values are read here")


class Keyed:
    """A rendezvous by a store."""

    def __init__(self, store: Store, rank: int, size: int, prefix: str = "collectives") -> None:
        self.rank, self.size = rank, size
        self.members = list(range(size))
        self._store = store
        self._prefix = prefix
        self._rounds = 0

    def allgather(self, obj: Any) -> list[Any]:
        """Return the object `obj` of each rank. Collective."""
        round = f"{self._prefix}/{self._rounds}"
        self._rounds += 1
        mine = f"{round}/{self.rank}"
        check = getattr(self._store, "check", None)  # stores of torch have it
        if check is not None and check([mine]):
            raise CommunicatorError(
                f"another process is rank {self.rank} of {self.size} already, perhaps the one that "
                f"started this one"
            )
        self._store.set(mine, pickle.dumps(obj))
        values = []
        for rank in range(self.size):
            try:
                values.append(_Plain(io.BytesIO(self._store.get(f"{round}/{rank}"))).load())
            except CollectivesError:
                raise
            except Exception as error:  # of any kind of store
                raise StallError(
                    f"rank {self.rank} of {self.size} has not heard from rank {rank} at the "
                    f"rendezvous: {error}"
                ) from error
        return values


class Folder:
    """A store of files in a folder."""

    def __init__(self, path: str, timeout: float) -> None:
        self._path = Path(path)
        self._timeout = timeout
        self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            # Files are opened in this folder, whatever has its name later.
            self._folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError as error:
            raise CommunicatorError(f"{path} is no folder, or a link: {error.strerror}") from None
        weakref.finalize(self, os.close, self._folder).atexit = False
        about = os.fstat(self._folder)
        if about.st_uid != os.getuid() or about.st_mode & 0o022:
            raise CommunicatorError(
                f"{path} belongs to another user, or others may write to it, and what is read "
                f"there is trusted: choose a folder of your own"
            )

    def set(self, key: str, value: bytes) -> None:
        """Write `value` to the file of `key`. Local."""
        name = self._name(key)
        new = f".{name}.{os.getpid()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with open(os.open(new, flags, 0o600, dir_fd=self._folder), "wb") as file:
            file.write(value)
        try:
            os.link(new, name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except FileExistsError:
            raise CommunicatorError(
                f"{self._path / name} is there already: another rank has this number, or the "
                f"folder is that of an earlier job. Give each job a new one"
            ) from None
        finally:
            os.unlink(new, dir_fd=self._folder)

    def get(self, key: str) -> bytes:
        """Return what the file of `key` has, as soon as there is one. Local."""
        name = self._name(key)
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        wait = Wait(Naps(nap=LOOK), timeout=self._timeout)
        while True:
            try:
                with open(os.open(name, flags, dir_fd=self._folder), "rb") as file:
                    about = os.fstat(file.fileno())
                    if about.st_uid != os.getuid() or not stat.S_ISREG(about.st_mode):
                        raise CommunicatorError(f"{self._path / name} is not a file of this user")
                    return file.read()
            except FileNotFoundError:
                if not wait.turn():
                    text = f"nothing came to {self._path / name} in {self._timeout:g} s"
                    raise StallError(text) from None
            except OSError as error:
                text = f"{self._path / name} cannot be read: {error.strerror}"
                raise CommunicatorError(text) from None

    def _name(self, key: str) -> str:
        return key.replace("/", "-")


class Served:
    """A rendezvous by a server."""

    def __init__(self, address: str, rank: int, size: int, timeout: float) -> None:
        self.rank, self.size = rank, size
        self.members = list(range(size))
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(timeout)
        try:
            self._connect("\0" + address.removeprefix("unix:"), time.monotonic() + timeout)
        except OSError as error:
            raise CommunicatorError(
                f"whoever started rank {rank} of {size} is gone, or this process is not its child "
                f"({ADDRESS}={address}: {error})"
            ) from error
        if processes.peer(self._socket)[1] != os.getuid():
            raise CommunicatorError(f"{address} belongs to another user")
        try:
            self._socket.sendall(HELLO.pack(rank, size))
            refusal = self._receive()
        except OSError as error:
            refusal = str(error)
        if refusal:
            raise CommunicatorError(f"this process cannot be rank {rank} of {size}: {refusal}")

    def allgather(self, obj: Any) -> list[Any]:
        """Return the object `obj` of each rank. Collective."""
        text = pickle.dumps(obj)
        try:
            _send(self._socket, text)
            answer = self._receive()
        except TimeoutError:
            raise StallError(
                f"rank {self.rank} of {self.size} has waited {self._socket.gettimeout():g} s for "
                f"the others at the rendezvous"
            ) from None
        except OSError as error:
            raise PeerLostError(
                f"rank {self.rank} of {self.size} cannot meet the others: whoever started them has "
                f"ended ({error})"
            ) from error
        if isinstance(answer, str):
            raise PeerLostError(f"rank {self.rank} of {self.size} cannot meet the others: {answer}")
        return [pickle.loads(each) for each in answer]

    def close(self) -> None:
        """Leave: this rank knows the others now. Local."""
        self._socket.close()

    def _connect(self, address: str, limit: float) -> None:
        """Connect, when others fill the server's queue as soon as it has taken some of them."""
        while True:
            try:
                return self._socket.connect(address)
            except BlockingIOError:
                if time.monotonic() > limit:
                    raise
            time.sleep(LOOK)

    def _receive(self) -> Any:
        return pickle.loads(_received(self._socket))


class Server:
    """Serves one rendezvous of a job, in a thread, until it is closed.

    A rank that has left after a round of exchanges is not missed before the others come again.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.address = f"unix:collectives-{os.getpid()}-{os.urandom(16).hex()}"
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind("\0" + self.address.removeprefix("unix:"))
        self._listener.listen(socket.SOMAXCONN)  # strangers connect to it, too
        self._wake, self._woken = socket.socketpair()
        self._ranks: dict[socket.socket, int] = {}
        self._said: dict[int, bytes] = {}
        self._gone: set[int] = set()
        self._thread = threading.Thread(target=self._serve, name="collectives-rendezvous")
        self._thread.daemon = True
        self._thread.start()

    def environment(self, rank: int) -> dict[str, str]:
        """Return the variables that rank `rank` needs. Local."""
        return {ADDRESS: self.address, RANK: str(rank), SIZE: str(self.size)}

    def lose(self, rank: int) -> None:
        """Take down that the process of `rank` has ended, as others may wait for it. Local."""
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
                for key, _ in selector.select():
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
                self._answer()

    def _welcome(self, selector: selectors.BaseSelector) -> None:
        """Take a connection of a process of this user; nothing is read from others."""
        try:
            made, _ = self._listener.accept()
        except OSError:  # too many files are open
            time.sleep(LOOK)
            return
        if processes.peer(made)[1] != os.getuid():
            made.close()
            return
        selector.register(made, selectors.EVENT_READ)

    def _greet(self, selector: selectors.BaseSelector, made: socket.socket) -> None:
        """Read who has connected, and take it if it is a rank that has not come yet."""
        made.settimeout(10)  # a rank sends what it says in one piece
        try:
            rank, size = HELLO.unpack(_read(made, HELLO.size))
            refusal = self._refusal(rank, size, processes.peer(made)[0])
            _send(made, pickle.dumps(refusal))
        except OSError as error:
            refusal = str(error)
        if refusal:
            selector.unregister(made)
            made.close()
        else:
            self._ranks[made] = rank

    def _refusal(self, rank: int, size: int, process: int) -> str:
        """Return why a process cannot be a rank, or an empty text."""
        if process != os.getpid() and _parent(process) != os.getpid():
            return "it was started by another process than the ranks, perhaps by one of them"
        if size != self.size or rank >= size:
            return f"there are {self.size} ranks"
        return "it is there already" if rank in self._ranks.values() else ""

    def _hear(self, selector: selectors.BaseSelector, made: socket.socket) -> None:
        """Take down what a rank says, or that it has left."""
        rank = self._ranks[made]
        try:
            self._said[rank] = _received(made)
        except OSError:
            selector.unregister(made)
            del self._ranks[made]
            made.close()
            if rank in self._said:
                self._gone.add(rank)

    def _answer(self) -> None:
        """Answer all who wait, when all have spoken, or one who has not will not any more."""
        waiting = [made for made, rank in self._ranks.items() if rank in self._said]
        if not waiting:
            return
        lost = sorted(self._gone - self._said.keys())
        if lost:
            answer: Any = f"the process of rank {lost[0]} has ended"
        elif len(self._said) == self.size:
            answer = [self._said[rank] for rank in range(self.size)]
        else:
            return
        text = pickle.dumps(answer)
        self._said.clear()
        for made in waiting:
            try:
                _send(made, text)
            except OSError:
                continue  # it has ended, and others learn of that in the next round


def _parent(process: int) -> int:
    """Return the number of the process that has started another; 0 if it is not known."""
    try:
        return int(processes.stat(process)[processes.PARENT])
    except OSError:
        return 0


def _send(connected: socket.socket, text: bytes) -> None:
    connected.sendall(LENGTH.pack(len(text)) + text)


def _received(connected: socket.socket) -> bytes:
    return _read(connected, LENGTH.unpack(_read(connected, LENGTH.size))[0])


def _read(connected: socket.socket, nbytes: int) -> bytes:
    """Return so many bytes. Raises ConnectionError where there are not so many."""
    parts = []
    while nbytes:
        part = connected.recv(min(nbytes, 1 << 20))
        if not part:
            raise ConnectionError("the other end has closed the connection")
        parts.append(part)
        nbytes -= len(part)
    return b"".join(parts)


Rendezvous = Served | Keyed


def from_environment(timeout: float) -> Rendezvous | None:
    """Return the rendezvous of a rank that a launcher of this library, or torchrun, has started.
    Local.
    """
    address = os.environ.get(ADDRESS)
    if not address:
        return _of_torchrun(timeout) if is_torchrun() else None
    rank, size = (os.environ.get(name, "") for name in (RANK, SIZE))
    if not (re.fullmatch(r"\d+", rank) and re.fullmatch(r"\d+", size) and int(rank) < int(size)):
        raise ArgumentError(
            f"{ADDRESS} is set, {RANK} is {rank!r} and {SIZE} {size!r}: these must be a rank and "
            f"the number of ranks"
        )
    if address.startswith("unix:"):
        return Served(address, int(rank), int(size), timeout)
    return Keyed(Folder(address, timeout), int(rank), int(size))


def is_torchrun() -> bool:
    """Return whether torchrun has started this process as one of several ranks. Local."""
    environ = os.environ
    return "TORCHELASTIC_RUN_ID" in environ and environ.get("WORLD_SIZE", "1") != "1"


def _of_torchrun(timeout: float) -> Rendezvous:
    """Return the rendezvous of a rank of torchrun, by the store of its agent. Local."""
    environ = os.environ
    rank, size, here = (int(environ[each]) for each in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    if here != size:
        raise CommunicatorError(
            f"torchrun has started {size} ranks, {here} of them on this host, and ranks of several "
            f"hosts need MPI: start them with mpirun"
        )
    distributed = import_module("torch.distributed")
    # The agent serves it; or torch does on rank 0, and then nobody serves it yet.
    serves = environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and rank == 0
    store = distributed.TCPStore(
        environ["MASTER_ADDR"],
        int(environ["MASTER_PORT"]),
        size,
        serves,
        timedelta(seconds=timeout),
        wait_for_workers=False,
        multi_tenant=True,
    )
    attempt = environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return Keyed(distributed.PrefixStore(f"collectives/{attempt}", store), rank, size)
