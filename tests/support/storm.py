"""Mixed random submissions: the same on all ranks, by four threads, in an order of each rank's own.

Every rank makes all operations from the seed, and knows therefore what each result has to be. Wrong
submissions of one rank are part of it.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
import zlib
from functools import reduce
from types import SimpleNamespace

import numpy as np
from dtypes import ARITHMETIC

import collectives as cc
from collectives import background
from collectives.errors import CommunicatorError, MismatchError, StallError

THREADS = 4
KINDS = ["allreduce"] * 8 + ["reduce", "broadcast", "barrier", "allgather", "reduce_scatter"]
KINDS += ["alltoall", "gather", "scatter", "scan", "exscan"]
ROOTED = ("reduce", "broadcast", "gather", "scatter")
FOLDING = ("allreduce", "reduce", "reduce_scatter", "scan", "exscan")
SCALED = ("allreduce", "reduce", "reduce_scatter")
BY_PARTS = ("reduce_scatter", "alltoall", "scatter")
SHAPES = [(), (0,), (1,), (3, 5), (7,), (100,), (40, 25), (1024,), (9000,), (70_000,)]
LONG = 1_200_000  # elements of an array that goes by pieces
DTYPES = [np.float32, np.float64, np.int32, np.int64]
OTHER = dict(zip(DTYPES, [np.float64, np.float32, np.int64, np.int32], strict=True))
CODECS = ["float16", "bfloat16", "int8", "int4", "sign", "topk:0.5", "randomk:0.5", "powersgd:2"]
NEAR = {"float16": 0.01, "bfloat16": 0.05, "int8": 0.1, "none": 0.0}
MOST = 40  # operations of a lap


def groups_of(comm):
    """Return communicators with some ranks in common, or None for those without this rank."""
    first, last = comm.rank > 0, comm.rank < comm.size - 1
    return [
        comm,
        comm.dup(),
        comm.split(comm.rank % 2),
        comm.split(0 if first else None),
        comm.split(0 if last else None),
    ]


def laps_of(seed, operations):
    """Return for each thread its laps: what it submits before it waits for all of it."""
    rng = random.Random(seed)
    threads = [[] for _ in range(THREADS)]
    made = 0
    while made < operations:
        for number, laps in enumerate(threads):
            length = 1 if rng.random() < 0.3 else rng.randrange(2, MOST)
            length = min(length, operations - made)
            laps.append([operation(rng, number, made + k, k) for k in range(length)])
            made += length
    return threads


def operation(rng, thread, number, place):
    """Return the submissions of all ranks of one of the groups."""
    kind = rng.choice(KINDS)
    dtype = rng.choice(DTYPES)
    shape = rng.choice(SHAPES)
    op = rng.choice([*ARITHMETIC, "AVG"] if np.issubdtype(dtype, np.floating) else list(ARITHMETIC))
    if op == "AVG" and kind in ("scan", "exscan"):
        op = "SUM"
    it = SimpleNamespace(
        number=number, kind=kind, dtype=dtype, shape=shape, op=op, name=f"{thread}.{number}",
        group=rng.randrange(5), root=rng.randrange(100), priority=rng.choice([0, 0, 0, 1, -1, 5]),
        codec=None, scales=(1.0, 1.0), own_out=rng.randrange(3), wrong=None, who=rng.randrange(100),
    )  # fmt: skip
    if rng.random() < 0.005 and kind in ("allreduce", "broadcast"):
        it.shape = (LONG,)
    if rng.random() < 0.1 and kind in SCALED and np.issubdtype(dtype, np.floating):
        it.scales = rng.choice([(0.5, 1.0), (1.0, 4.0), (2.0, 0.25)])
    if rng.random() < 0.15 and kind == "allreduce" and np.issubdtype(dtype, np.floating):
        it.codec = rng.choice(CODECS)
        # The same array comes again: what its codec has kept has its length.
        it.name = f"{it.codec} {thread} {place}"
        it.shape, it.op = (place + 1, 6 * (1 + thread)), rng.choice(["SUM", "AVG"])
    elif rng.random() < 0.2 and thread == 0:
        it.name = None
    if rng.random() < 0.05 and kind != "barrier":
        it.wrong = rng.choice(["shape", "dtype", "priority"])
        if kind in FOLDING and it.codec is None and rng.random() < 0.3:
            it.wrong = "op"
        elif kind in ROOTED and rng.random() < 0.3:
            it.wrong = "root"
        elif it.codec is not None:
            it.wrong = "codec"
    return it


def contribution(it, rank, size):
    """Return what a rank of a group passes."""
    shape = it.shape
    if it.kind in BY_PARTS:
        shape = (size, *shape)
    n = int(np.prod(shape, dtype=int))
    values = (np.arange(n) + it.number) % 3 + 1
    return (values * (rank + 1)).reshape(shape).astype(it.dtype)


def expected(it, rank, size):
    """Return what a rank of a group gets, in one dimension; None for nothing."""
    given = [contribution(it, each, size).ravel() for each in range(size)]
    root = it.root % size
    if it.kind == "barrier" or (it.kind in ("reduce", "gather") and rank != root):
        return None
    if it.kind == "broadcast":
        return given[root]
    if it.kind in ("allgather", "gather"):
        return np.concatenate(given)
    if it.kind == "alltoall":
        return np.concatenate([part(each, rank, size) for each in given])
    if it.kind == "scatter":
        return part(given[root], rank, size)
    if it.kind in ("scan", "exscan"):
        given = given[: rank + (it.kind == "scan")]
        if not given:
            return None
    total = reduce(ARITHMETIC.get(it.op, np.add), [each * it.dtype(it.scales[0]) for each in given])
    total = total * it.dtype(it.scales[1])
    if it.op == "AVG":
        total = total / it.dtype(size)
    return part(total, rank, size) if it.kind == "reduce_scatter" else total


def part(x, rank, size):
    return np.split(x, size)[rank]


class Storm:
    """The calls that the threads of a rank submit, and their results.

    Parameters
    ----------
    comm : Communicator
    seed, operations : int
    pause : callable
        It is called before each submission with the number of those before it.
    """

    def __init__(self, comm, seed, operations, pause):
        self.groups = groups_of(comm)
        for group in self.groups:
            if group is not None:
                background.start(group)
        self.seed, self.pause = seed, pause
        self.laps = laps_of(seed, operations)
        self.lock = threading.Lock()
        self.submitted = self.right = self.called = self.expects = 0
        self.said = {}  # what all ranks of a group must have alike, by operation
        self.heard = {}  # of each group that ended, the first error, and when it came
        self.problems = []
        self.threads = [threading.Thread(target=self.run, args=(k,)) for k in range(THREADS)]

    def start(self):
        for thread in self.threads:
            thread.start()

    def join(self):
        for thread in self.threads:
            thread.join()
        limit = time.monotonic() + 60
        while self.called < self.expects and time.monotonic() < limit:
            time.sleep(0.01)
        if self.called != self.expects:
            self.problems.append(f"{self.called} callbacks were called, of {self.expects}")

    def run(self, thread):
        rng = random.Random(f"{self.seed} {cc.rank()} {thread}")
        try:
            for lap in self.laps[thread]:
                self.run_lap(rng, lap)
        except BaseException as error:
            self.problems.append(f"{type(error).__name__}: {error}")
            raise

    def run_lap(self, rng, lap):
        handles = []
        for it in shuffled(rng, lap):
            group = self.groups[it.group]
            if group is None:
                continue
            with self.lock:
                count = self.submitted
                self.submitted += 1
            self.pause(count)
            try:
                handle, wanted = self.submit(it, group)
            except CommunicatorError as error:
                self.note(it.group, error)
                continue
            if rng.random() < 0.2:
                with self.lock:
                    self.expects += 1
                handle.add_done_callback(self.count)
            handles.append((it, group, handle, wanted))
        if rng.random() < 0.1:
            # Not for long: threads of two ranks could wait for later submissions of each other.
            with contextlib.suppress(cc.CollectivesError):  # each handle has its own
                group = rng.choice([None, *(each[1] for each in handles)])
                background.flush(group, timeout=0.05)
        rng.shuffle(handles)
        for each in handles:
            self.finish(rng, *each)

    def count(self, handle):
        assert handle.done()
        with self.lock:
            self.called += 1

    def note(self, group, error):
        with self.lock:
            self.heard.setdefault(group, (type(error).__name__, str(error), time.time()))

    def submit(self, it, group):
        """Submit an operation; return the handle, and the expected result."""
        size, rank = group.size, group.rank
        kind, op, root, codec, priority = it.kind, it.op, it.root % size, it.codec, it.priority
        x = contribution(it, rank, size)
        wanted = expected(it, rank, size)
        if it.wrong is not None and size > 1:
            wanted = MismatchError
            if rank == it.who % size:
                if it.wrong == "shape":
                    x = np.concatenate([x.reshape(-1), np.ones(2 * size, it.dtype)])
                elif it.wrong == "dtype":
                    x = x.astype(OTHER[it.dtype])
                elif it.wrong == "op":
                    op = "MAX" if op == "MIN" else "MIN"
                elif it.wrong == "root":
                    root = (root + 1) % size
                elif it.wrong == "codec":
                    codec = "topk:0.25"
                else:
                    priority += 1
        out = None
        if kind in ("allreduce", "scan", "broadcast") and it.own_out:
            out = x if it.own_out == 1 and kind != "scan" else np.empty_like(x)
        if kind == "barrier":
            x = None
        given = {"op": op} if kind in FOLDING else {}
        given |= {"root": root} if kind in ROOTED else {}
        given |= dict(zip(("prescale", "postscale"), it.scales, strict=True))
        handle = background.submit(
            kind, x, out, name=it.name, priority=priority, group=group, compression=codec, **given
        )
        return handle, wanted

    def finish(self, rng, it, group, handle, wanted):
        """Wait for a handle in one way or another; check the result."""
        try:
            result = waited(rng, handle)
        except MismatchError as error:
            if wanted is not MismatchError:
                raise
            self.said[it.number] = str(error)
            return
        except cc.CollectivesError as error:
            self.note(it.group, error)
            return
        if wanted is MismatchError:
            raise AssertionError(f"{handle} is right, and differs between ranks: {it}")
        if wanted is None:
            assert result is None, (it, result)
        elif it.codec is None:
            assert result.dtype == wanted.dtype, it
            np.testing.assert_array_equal(result.ravel(), wanted, err_msg=str(it))
        else:
            assert result.dtype == wanted.dtype, it
            self.said[it.number] = zlib.crc32(result.tobytes())
            if it.codec in NEAR:
                limit = NEAR[it.codec] * np.abs(wanted).max(initial=0)
                assert np.abs(result.ravel() - wanted).max(initial=0) <= limit, it
        with self.lock:
            self.right += 1


def shuffled(rng, lap):
    """Return the submissions in another order; those without a name keep their order."""
    order = lap[:]
    rng.shuffle(order)
    places = [k for k, it in enumerate(order) if it.name is None]
    for k, it in zip(places, (it for it in lap if it.name is None), strict=True):
        order[k] = it
    return order


def waited(rng, handle):
    way = rng.randrange(4)
    if way == 0:
        while not handle.done():
            time.sleep(0.0005)
    while way == 1:
        try:
            return handle.wait(0.01)
        except StallError as error:
            if "is not complete after 0.01 s" not in str(error):
                raise
    return handle.wait()
