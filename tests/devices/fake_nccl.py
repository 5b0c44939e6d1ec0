"""NCCL of the fake GPU: its calls run on streams, and exchange files with other processes.

All memory that a call touches is checked for races when it is put on a stream, and so is the order
of the calls of a group. Each message names its call, so that ranks with different calls are
found.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from fake_errors import InvalidArgument
from fake_memory import Span

if TYPE_CHECKING:
    from fake_gpu import FakeDriver

FOLDS = {"SUM": np.add, "PROD": np.multiply, "MIN": np.minimum, "MAX": np.maximum, "AVG": np.add}
Bytes = tuple[int, int]  # address and length
Message = tuple[int, int, int]  # rank, address and length


class FakeNccl:
    """An implementation of `collectives.devices.driver.Nccl`."""

    version = 23004
    dtypes = frozenset(
        f"{kind}{bits}"
        for kind, sizes in (
            ("int", (8, 32, 64)),
            ("uint", (8, 32, 64)),
            ("float", (16, 32, 64)),
            ("bfloat", (16,)),
        )
        for bits in sizes
    )

    def __init__(self, driver: FakeDriver) -> None:
        self.driver = driver

    def unique_id(self) -> bytes:
        self.driver.calls["unique_id"] += 1
        folder = tempfile.mkdtemp(prefix="fake-nccl-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)  # unless the last rank has left
        return folder.encode().ljust(128, b"\0")

    def join(self, unique_id: bytes, size: int, rank: int) -> FakeGroup:
        self.driver.calls["join"] += 1
        self.driver._begin("join")
        return FakeGroup(self.driver, Path(unique_id.rstrip(b"\0").decode()), size, rank)


class FakeGroup:
    """An implementation of `collectives.devices.driver.NcclGroup`."""

    def __init__(self, driver: FakeDriver, folder: Path, size: int, rank: int) -> None:
        self.driver, self.folder, self.size, self.rank = driver, folder, size, rank
        self.device, self.is_aborted = driver.current, False
        self.token = driver.allocate(1)  # each call writes it, so that they need an order
        self.sent: Counter[tuple[int, int]] = Counter()
        self.received: Counter[tuple[int, int]] = Counter()

    # -- what the library calls ----------------------------------------------------------------

    def allreduce(
        self, source: int, target: int, count: int, dtype: str, op: str, stream: int
    ) -> None:
        self._fold(f"allreduce {op}", source, target, [count] * self.size, dtype, op, stream)

    def reduce(
        self, source: int, target: int, count: int, dtype: str, op: str, root: int, stream: int
    ) -> None:
        counts = [count if rank == root else 0 for rank in range(self.size)]
        self._fold(f"reduce {op} {root}", source, target, counts, dtype, op, stream)

    def broadcast(self, source: int, target: int, nbytes: int, root: int, stream: int) -> None:
        sends = [(rank, source, nbytes) for rank in range(self.size) if self.rank == root]
        self._put(f"broadcast {root}", sends, [(root, target, nbytes)], stream)

    def allgather(self, source: int, target: int, nbytes: int, stream: int) -> None:
        ranks = range(self.size)
        sends = [(rank, source, nbytes) for rank in ranks]
        receives = [(rank, target + rank * nbytes, nbytes) for rank in ranks]
        self._put("allgather", sends, receives, stream)

    def reduce_scatter(
        self, source: int, target: int, count: int, dtype: str, op: str, stream: int
    ) -> None:
        nbytes = count * np.dtype(dtype).itemsize
        sends = [(rank, source + rank * nbytes, nbytes) for rank in range(self.size)]
        self._fold_sent(f"reduce_scatter {op}", sends, target, nbytes, dtype, op, stream)

    def exchange(self, sends: Sequence[Message], receives: Sequence[Message], stream: int) -> None:
        self._put("exchange", sends, receives, stream)

    def check(self) -> None:
        if self.is_aborted:
            raise RuntimeError("the group was aborted")

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        self.driver.free(self.token)
        (self.folder / f"end.{self.rank}").touch()
        with contextlib.suppress(FileNotFoundError):  # another rank that came last, too
            if len(list(self.folder.glob("end.*"))) == self.size:
                shutil.rmtree(self.folder, ignore_errors=True)

    # -- what that becomes ---------------------------------------------------------------------

    def _fold(
        self,
        what: str,
        source: int,
        target: int,
        counts: Sequence[int],
        dtype: str,
        op: str,
        stream: int,
    ) -> None:
        size = np.dtype(dtype).itemsize
        sends = [(rank, source, n * size) for rank, n in enumerate(counts) if n]
        self._fold_sent(what, sends, target, counts[self.rank] * size, dtype, op, stream)

    def _fold_sent(
        self,
        what: str,
        sends: Sequence[Message],
        target: int,
        nbytes: int,
        dtype: str,
        op: str,
        stream: int,
    ) -> None:
        def finish(messages: list[bytes]) -> list[tuple[int, bytes]]:
            if not nbytes:
                return []
            with np.errstate(all="ignore"):
                values = [np.frombuffer(each, dtype) for each in messages]
                total = values[0].copy()
                for each in values[1:]:
                    FOLDS[op](total, each, out=total)
                if op == "AVG":
                    total = (total / self.size).astype(dtype)
            return [(target, total.tobytes())]

        sources = range(self.size) if nbytes else ()
        writes = [(target, nbytes)] if nbytes else []
        self._run(f"{what} {dtype}", sends, sources, writes, finish, stream)

    def _put(
        self, what: str, sends: Sequence[Message], receives: Sequence[Message], stream: int
    ) -> None:
        def finish(messages: list[bytes]) -> list[tuple[int, bytes]]:
            for (_, _, nbytes), data in zip(receives, messages, strict=True):
                if len(data) != nbytes:
                    raise InvalidArgument(f"{what}: {len(data)} bytes come, and not {nbytes}")
            return [(place[1], data) for place, data in zip(receives, messages, strict=True)]

        sources = [rank for rank, _, _ in receives]
        writes = [(address, nbytes) for _, address, nbytes in receives]
        self._run(what, sends, sources, writes, finish, stream)

    def _run(
        self,
        what: str,
        sends: Sequence[Message],
        sources: Sequence[int],
        writes: Sequence[Bytes],
        finish: Callable[[list[bytes]], list[tuple[int, bytes]]],
        stream: int,
    ) -> None:
        if self.driver.current != self.device:
            raise InvalidArgument(f"a group of device {self.device} on {self.driver.current}")

        reads = sorted({(address, nbytes) for _, address, nbytes in sends})

        def begin() -> Callable[[], None]:
            names = [self._name(self.rank, rank, self.sent) for rank, _, _ in sends]
            awaited = [self._name(rank, self.rank, self.received) for rank in sources]
            spans = [Span(*each) for each in (*reads, *writes)]
            memory = {each.address: self.driver.table.holding(each) for each in spans}

            def run() -> None:
                for name, (_, address, nbytes) in zip(names, sends, strict=True):
                    data = memory[address].rows(Span(address, nbytes)).tobytes()
                    self._send(name, what, data)
                messages = [self._receive(name, what) for name in awaited]
                got = [each for each in messages if each is not None]
                for address, data in finish(got) if len(got) == len(messages) else ():
                    row = memory[address].rows(Span(address, len(data)))[0]
                    row[:] = np.frombuffer(data, np.uint8)

            return run

        self.driver.communicate(f"NCCL's {what}", reads, [*writes, (self.token, 1)], begin, stream)

    @staticmethod
    def _name(source: int, target: int, counter: Counter[tuple[int, int]]) -> str:
        """Return the file of the next message between two ranks."""
        counter[source, target] += 1
        return f"{source}.{target}.{counter[source, target]}"

    def _send(self, name: str, what: str, data: bytes) -> None:
        part = self.folder / f"part.{name}"
        part.write_bytes(what.encode().ljust(64) + data)
        os.rename(part, self.folder / name)

    def _receive(self, name: str, what: str) -> bytes | None:
        """Return a message; None if the driver has been closed, or the group aborted."""
        path = self.folder / name
        self.driver.order.poll(lambda: self.is_aborted or path.exists(), f"NCCL's {what}")
        if not path.exists():
            return None
        said = path.read_bytes()
        path.unlink()
        if said[:64].decode().rstrip() != what:
            raise InvalidArgument(f"NCCL's {what} meets {said[:64].decode().rstrip()}")
        return said[64:]
