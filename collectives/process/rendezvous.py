"""Rendezvous of processes that no MPI launcher started.

A rendezvous carries a few small objects, and only until the ranks know each other. There are two
kinds. `Served` connects to a `Server` in the process that started the ranks, or in rank 0. `Keyed`
uses a store of keys and values, such as that of torch.distributed, or a `Folder`, a store of files
in a folder that all ranks see.

On one host, servers and ranks accept only processes of the same user, and between hosts only those
that know the secret of the job. Objects are pickled, and read as plain values only: others may
write to a store, and read the secret of a job whose launcher has none.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import pickle
import re
import secrets
import socket
import stat
import time
import warnings
import weakref
from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, Protocol

from collectives.errors import (
    ArgumentError,
    CollectivesError,
    CollectivesWarning,
    CommunicatorError,
    PeerLostError,
    StallError,
)
from collectives.process import environment, processes, slurm
from collectives.process.channel import introduce, own, watch
from collectives.process.environment import ADDRESS, RANK, SECRET, SIZE
from collectives.process.rendezvous_server import WATCHER, WHO, Server
from collectives.process.waiting import Naps, Wait
from collectives.text import files

LOOK = 0.005  # seconds between two checks of a folder
RETRY = 0.1  # seconds between two attempts to reach rank 0
ANSWER = 2.0  # seconds for an answer of a server that need not wait for others

REACH = 5.0  # seconds for an attempt to reach a launcher
LEAST_SECRET = 16  # characters

PLACE = "first"  # the key of rank 0's place in the store of torchrun
UNKNOWN = (
    "the ranks of this job are on several hosts, and {name} is not set: whoever reaches the store "
    "of torchrun at {store} can be a rank, and run code as this user. Set {name} on all hosts to a "
    "text that nobody else knows, or use a network that you trust"
)


class Store(Protocol):
    """A store of keys and values that all ranks see, such as ``torch.distributed.Store``."""

    def set(self, key: str, value: Any, /) -> None:
        """Set the `value` of `key`. Local."""

    def get(self, key: str, /) -> bytes:
        """Return the value of `key` as soon as a rank has set it. Local."""


class _Plain(pickle.Unpickler):
    """Reads numbers, texts and containers: others can write to a store whose port they reach."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is refused: only plain values are read here")


def _plain(data: bytes) -> Any:
    return _Plain(io.BytesIO(data)).load()


class Keyed:
    """A rendezvous by a store."""

    rank: int
    size: int

    def __init__(self, store: Store, rank: int, size: int, prefix: str = "collectives") -> None:
        self.rank, self.size = rank, size
        self.members: list[int] = list(range(size))
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
                values.append(_plain(self._store.get(f"{round}/{rank}")))
            except CollectivesError:
                raise
            except Exception as error:  # of any kind of store
                raise StallError(
                    f"rank {self.rank} of {self.size} has not heard from rank {rank} at the "
                    f"rendezvous: {error}"
                ) from error
        return values

    def close(self) -> None:
        """Do nothing: the store belongs to the caller. Local."""


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
            files.give_name(new, name, self._folder)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(new, dir_fd=self._folder)
            if not isinstance(error, FileExistsError):
                text = f"{self._path / name} cannot be written: {error.strerror}"
                raise CommunicatorError(text) from None
            raise CommunicatorError(
                f"{self._path / name} is there already: another rank has this number, or the "
                f"folder is that of an earlier job. Give each job a new one"
            ) from None

    def get(self, key: str) -> bytes:
        """Return the contents of the file of `key`, as soon as there is one. Local."""
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
    """A rendezvous by a server.

    At ``unix:NAME`` and ``tcp:HOST:PORT``, the process that started the ranks is the server; at
    ``first:HOST:PORT``, it is rank 0, which may start later. A `server` of this process ends with
    the rendezvous. An attempt to reach another host takes `reach` seconds at most.
    """

    rank: int
    size: int

    def __init__(
        self,
        address: str,
        rank: int,
        size: int,
        timeout: float,
        secret: bytes = b"",
        *,
        server: Server | None = None,
        reach: float = math.inf,
    ) -> None:
        self.rank, self.size = rank, size
        self.members: list[int] = list(range(size))
        self._server = server
        self.store: Store | None = None  # that the others need
        self._hint = ""
        who = f"this process cannot be rank {rank} of {size}"
        limit = time.monotonic() + timeout
        cause: OSError | None = None
        if address.startswith("first:") and rank == 0:
            host, port = parse_address(address)
            self._server = Server(size, port, secret)
            if not _is_here(host):
                self._hint = (
                    f"; {host}, where the others look for rank 0, is no address of this host"
                )
            address = f"tcp:localhost:{self._server.port}"
        try:
            refusal = self._enter(address, secret, limit, reach)
        except _NobodyError as error:
            raise CommunicatorError(
                f"the launcher of rank {rank} of {size} is gone, or this process is not its child "
                f"({ADDRESS}={address}: {error})"
            ) from error
        except TimeoutError:
            refusal = f"the program that listens there does not answer ({ADDRESS}={address})"
        except OSError as error:
            cause, refusal = error, f"{error} ({ADDRESS}={address})"
        if refusal:
            self.close()
            raise CommunicatorError(f"{who}: {refusal}") from cause
        self._socket.settimeout(timeout)

    def _enter(self, address: str, secret: bytes, limit: float, reach: float) -> str:
        """Connect to the server; return why it refuses this rank, or an empty text."""
        while True:
            self._socket = connected(address, min(limit, time.monotonic() + reach))
            self._socket.settimeout(max(LOOK, limit - time.monotonic()))
            try:
                self._channel = introduce(self._socket, secret, self.rank, self.size)
                refusal: str = _plain(self._channel.receive())
                return refusal
            except ConnectionError:  # it may have too many connections
                self._socket.close()
                left = limit - time.monotonic()
                if left <= 0 or address.startswith("unix:"):
                    raise
                time.sleep(min(left, RETRY))

    def allgather(self, obj: Any) -> list[Any]:
        """Return the object `obj` of each rank. Collective."""
        who = f"rank {self.rank} of {self.size}"
        try:
            self._channel.send(pickle.dumps(obj))
            answer = self._heard()
        except StallError:
            raise
        except OSError as error:
            raise PeerLostError(
                f"{who} cannot meet the others: their launcher has ended ({error})"
            ) from error
        if isinstance(answer, str):
            raise PeerLostError(f"{who} cannot meet the others: {answer}")
        return [_plain(each) for each in answer]

    def close(self) -> None:
        """Leave the rendezvous, and end it if this process serves it. Local."""
        if hasattr(self, "_socket"):
            self._socket.close()
        if self._server is not None:
            self._server.close()
            self._server = None

    def _heard(self) -> Any:
        """Return the server's answer. After the deadline, ask it for the missing ranks."""
        timeout = self._socket.gettimeout()
        assert timeout is not None
        who = f"rank {self.rank} of {self.size}"
        try:
            answer = _plain(self._channel.receive())
        except TimeoutError:
            answer = None
        if isinstance(answer, tuple):
            raise StallError(
                f"{who} cannot meet the others: one of them has waited for too long: {answer[0]}"
            )
        if answer is not None:
            return answer
        missing = ""
        with contextlib.suppress(OSError):
            self._socket.settimeout(min(timeout, ANSWER))
            self._channel.send(WHO)
            answer = _plain(self._channel.receive())
            if not isinstance(answer, tuple):
                return answer  # the last rank came at the last moment
            missing = f": {answer[0]}"
        raise StallError(
            f"{who} has waited {timeout:g} s for the others at the rendezvous{missing}{self._hint}"
        )


def reach(addresses: Sequence[str], secret: bytes, size: int) -> tuple[str, socket.socket]:
    """Return the first of some addresses with a reachable server, and a connection, which ends when
    the server ends. Local.
    """
    problems = []
    for address in addresses:
        try:
            made = connected(address, time.monotonic() + REACH)
            made.settimeout(REACH)
            channel = introduce(made, secret, WATCHER, size)
            channel.receive()
            return address, made
        except OSError as error:
            problems.append(f"{address}: {error}")
    raise CommunicatorError(
        f"the host that starts the ranks cannot be reached from here: {'; '.join(problems)}"
    )


class _NobodyError(OSError):
    """No process listens at the address of a socket of the Unix domain."""


def parse_address(address: str) -> tuple[str, int]:
    """Return host and port of an address such as ``tcp:HOST:PORT``. Local."""
    host, _, port = address.partition(":")[2].rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        raise ArgumentError(
            f"{ADDRESS} is {address!r}, and must be unix:NAME, tcp:HOST:PORT, first:HOST:PORT, or "
            f"the path of a folder"
        )
    return host, int(port)


def _is_here(host: str) -> bool:
    """Return whether a name stands for an address of this host. Local."""
    with contextlib.suppress(OSError):
        for family, kind, _, _, place in socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM):
            with contextlib.suppress(OSError), socket.socket(family, kind) as made:
                made.bind(place)
                return True
    return False


def connected(address: str, limit: float) -> socket.socket:
    """Return a connection to the server of an address, made before a time `limit`. Local."""
    if address.startswith("unix:"):
        return _connected_here(address, limit)
    host, port = parse_address(address)
    while True:
        left = limit - time.monotonic()
        try:
            made = socket.create_connection((host, port), max(LOOK, left))
            watch(made)
            own(made)
            return made
        except socket.gaierror as error:
            problem = f"the host name {host!r} does not resolve ({error.strerror})"
        except ConnectionRefusedError:
            problem = (
                f"no program listens at port {port} of {host}, or a firewall refuses connections"
            )
        except TimeoutError:
            problem = f"{host} does not answer at port {port}: a firewall may drop connections"
        except OSError as error:
            problem = f"{host} cannot be reached: {error.strerror or error}"
        if left <= 0 or not address.startswith("first:"):
            raise ConnectionError(problem) from None
        time.sleep(min(left, RETRY))  # rank 0 may come later, and so may the name of its host


def _connected_here(address: str, limit: float) -> socket.socket:
    made = socket.socket(socket.AF_UNIX)
    own(made)
    try:
        made.settimeout(max(LOOK, limit - time.monotonic()))
        while True:
            try:
                made.connect("\0" + address.removeprefix("unix:"))
                break
            except BlockingIOError:  # the server's queue is full
                if time.monotonic() > limit:
                    raise
            time.sleep(LOOK)
        if processes.peer(made)[1] != os.getuid():
            raise PermissionError("it belongs to another user")
    except BaseException as error:
        made.close()
        if isinstance(error, OSError) and not isinstance(error, PermissionError):
            raise _NobodyError(*error.args) from error
        raise
    return made


Rendezvous = Served | Keyed


def from_environment(timeout: float) -> Rendezvous | None:
    """Return the rendezvous of a rank that a launcher of this library, torchrun, or srun without
    PMI has started. Local.
    """
    address = os.environ.get(ADDRESS)
    if not address and environment.is_of_torchrun():
        return _of_torchrun(timeout)
    if not address:
        return _of_srun(timeout) if environment.is_of_srun() else None
    rank, size = (os.environ.get(name, "") for name in (RANK, SIZE))
    if not (re.fullmatch(r"\d+", rank) and re.fullmatch(r"\d+", size) and int(rank) < int(size)):
        raise ArgumentError(
            f"{ADDRESS} is set, {RANK} is {rank!r} and {SIZE} {size!r}: these must be a rank and "
            f"the number of ranks"
        )
    if address.startswith("unix:"):
        return Served(address, int(rank), int(size), timeout)
    if address.startswith(("tcp:", "first:")):
        return Served(address, int(rank), int(size), timeout, _secret())
    return Keyed(Folder(address, timeout), int(rank), int(size))


def _secret() -> bytes:
    """Return the secret of the job."""
    text = os.environ.get(SECRET, "")
    if len(text) < LEAST_SECRET:
        raise ArgumentError(
            f"{ADDRESS} is on the network, so {SECRET} must have a text that only the ranks of the "
            f"job know: the same on all of them, of {LEAST_SECRET} characters or more"
        )
    return text.encode()


def _of_srun(timeout: float) -> Rendezvous:
    """Return the rendezvous of a task of srun, which rank 0 serves. Local."""
    place = slurm.place(_secret() if os.environ.get(SECRET) else None)
    try:
        return Served(place.address, place.rank, place.size, timeout, place.secret)
    except CommunicatorError as error:
        secret = ""
        if isinstance(error.__cause__, PermissionError):
            secret = f": the hosts must share the home folder, or the job script must set {SECRET}"
        raise CommunicatorError(
            f"{error}. Slurm's srun has started this task without PMI{secret}; for MPI, use srun "
            f"--mpi=pmi2 or --mpi=pmix"
        ) from error


def _of_torchrun(timeout: float) -> Rendezvous:
    """Return the rendezvous of a rank of torchrun, which rank 0 serves. Local.

    The store of torchrun says where. It may have the place of an earlier rank 0, which has ended.
    """
    environ = os.environ
    rank, size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    is_here = environ.get("LOCAL_WORLD_SIZE") == str(size)
    if size == 1:
        server = Server(size, siblings=True)
        return Served(server.address, rank, size, timeout, server=server)
    secret = b"" if is_here or not environ.get(SECRET) else _secret()
    host, port = environ["MASTER_ADDR"], environ["MASTER_PORT"]
    limit = time.monotonic() + timeout
    store = _store_of_torchrun(host, int(port), rank, size, timeout)
    if rank != 0:
        return _found(store, host, rank, size, limit, secret, is_here)
    if store.check([PLACE]):
        _refuse_second(_place(store.get(PLACE), host, secret), size)
    public = ""
    if is_here:
        server = Server(size, siblings=True)
        address = said = server.address
    else:
        if not secret:
            text = UNKNOWN.format(store=f"{host}:{port}", name=SECRET)
            warnings.warn(text, CollectivesWarning, stacklevel=2)
            public = secrets.token_hex(32)
            secret = public.encode()
        server = Server(size, 0, secret)
        address, said = f"tcp:localhost:{server.port}", f"tcp:{server.port}"
    store.set(PLACE, json.dumps((said, public)))
    made = Served(address, rank, size, timeout, secret, server=server)
    made.store = store  # others may not have read it yet
    return made


def _found(
    store: Any, host: str, rank: int, size: int, limit: float, secret: bytes, is_here: bool
) -> Rendezvous:
    """Return the rendezvous that rank 0 serves, as soon as the store has its place. Local."""
    who = f"rank {rank} of {size}"
    problem: Exception = StallError(f"{who} has not heard from rank 0 by the store of torchrun")
    since = time.monotonic()
    while (left := limit - time.monotonic()) > 0:
        if store.check([PLACE]):
            address, key = _place(store.get(PLACE), host, secret)
            try:
                if is_here != address.startswith("unix:"):
                    raise CommunicatorError(
                        f"{who} cannot meet the others: LOCAL_WORLD_SIZE is {size} on some of them "
                        f"only, or another process has written to the store of torchrun"
                    ) from OSError()
                return Served(address, rank, size, left, key, reach=REACH)
            except CommunicatorError as error:
                is_alien = isinstance(error.__cause__, PermissionError)
                if not isinstance(error.__cause__, OSError) or (
                    is_alien and time.monotonic() > since + REACH
                ):
                    raise
                problem = error
        time.sleep(min(left, RETRY))
    raise problem


def _store_of_torchrun(host: str, port: int, rank: int, size: int, timeout: float) -> Any:
    """Return the store of torchrun's agent, or of rank 0, which then has to start it here."""
    distributed = import_module("torch.distributed")
    serves = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" and rank == 0
    limit = timedelta(seconds=timeout)
    options = {"wait_for_workers": False, "multi_tenant": True}
    try:
        store = distributed.TCPStore(host, port, size, serves, limit, **options)
    except RuntimeError as error:
        raise CommunicatorError(
            f"rank {rank} of {size} cannot reach the store of torchrun at {host}:{port}: {error}"
        ) from error
    return distributed.PrefixStore("collectives", store)


def _place(said: bytes, host: str, secret: bytes) -> tuple[str, bytes]:
    """Return the address of rank 0, and the secret, as the store has them."""
    try:
        address, public = json.loads(said)
    except ValueError as error:
        raise CommunicatorError(
            f"what the store of torchrun has at {PLACE!r} is not a place of rank 0"
        ) from error
    if address.startswith("unix:"):
        return address, b""
    place = f"[{host}]" if ":" in host else host
    return f"tcp:{place}:{address.partition(':')[2]}", secret or public.encode()


def _refuse_second(place: tuple[str, bytes], size: int) -> None:
    """Refuse this process if there is a rank 0 already. Local."""
    try:
        _, made = reach([place[0]], place[1], size)
    except CommunicatorError:
        return
    made.close()
    raise CommunicatorError(
        f"this process cannot be rank 0 of {size}: it is there already, and has perhaps started "
        f"this process"
    )
