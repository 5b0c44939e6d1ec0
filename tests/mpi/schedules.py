"""Random schedules: mixtures of calls on several communicators, the same on all ranks.

The calls are drawn from a seed that all ranks share, a generator for each step, so that a step
can be made again alone. When a rank naps, and which of its requests it waits for, is its own
affair.
"""

from __future__ import annotations

import time

import numpy as np
from cases import digest
from dtypes import DTYPES, SUPPORTED, dtype_of
from forms import CUT, VECTOR, WHOLE

import collectives as cc

LINE, SMALL = 80, 1 << 16  # bytes: CC_INLINE in segment.h, SMALL in running.pxi
MOST = 1 << 19  # bytes of an array in an ordinary step
IN_FLIGHT = 8
SIDE_BY_SIDE = 3  # planned calls that are kept for later runs

HOWS = ("new", "out", "in place", "unaligned", "started", "started", "planned", "again", "barrier")


class Schedule:
    """Calls on communicators.

    Parameters
    ----------
    comms : dict
        The communicators by name; all ranks have the same names.
    seed : int
    """

    def __init__(self, comms, seed):
        self.comms = dict(comms)
        self.seed = seed
        self.own = np.random.default_rng([seed, cc.world().rank, 1])
        self.pending = []  # (text, request, form, rank, pieces)
        self.planned = []  # (text, planned, form, rank)
        self.bits = []  # of results that all ranks of the world have
        # Pieces of shared memory for arrays, on each communicator.
        self.free = [
            comm.empty(MOST + 256, np.uint8)
            for _, comm in sorted(self.comms.items())
            for _ in range(2)
        ]

    def run(self, steps):
        """Make some steps, and wait for all that they have started."""
        for number in range(steps):
            self.step(number)
        self.finish(0)

    def step(self, number):
        rng = np.random.default_rng([self.seed, number])
        name = str(rng.choice(sorted(self.comms)))
        how = str(rng.choice(HOWS))
        comm = self.comms[name]
        rng = np.random.default_rng([self.seed, number, comm.size])
        text = f"seed {self.seed}, step {number}, {how} on {name!r}"
        try:
            self.call(comm, name, how, rng, text)
            self.idle()
        except AssertionError as error:
            raise AssertionError(f"{text}: {error}") from error

    def call(self, comm, name, how, rng, text):
        if how == "barrier":
            if rng.integers(2):
                comm.barrier()
            else:
                self.pending.append((text, comm.ibarrier(), None, 0, []))
            return
        mine = [each for each in self.planned if each[0] == name]
        if how == "again" and mine:
            _, planned, form, rank = mine[int(rng.integers(len(mine)))]
            form.verify(planned(), rank)
            return
        form, algorithm = self.form(comm.size, rng, how == "planned")
        text = f"{text}: {form.name} '{algorithm}', n={form.n}, {form.dtype}, {form.op}"
        if how == "planned":
            self.plan(comm, name, form, algorithm)
            return
        x, out = None, None
        if how in ("out", "started"):
            x, out = form.x(comm.rank), form.empty(comm.rank)
        elif how == "in place":
            x, out = form.shared(comm.rank)
        elif how == "unaligned":
            x = shifted(form.x(comm.rank), int(rng.integers(1, 64)))
            out = form.empty(comm.rank)
            out = out if out is None else shifted(out, out.itemsize * int(rng.integers(1, 9)))
        pieces = []
        if x is not None and how != "unaligned" and self.own.random() < 0.7:
            x, out, pieces = self.moved(x, out)
        if how == "started":
            request = form.call(comm, x, out, algorithm=algorithm, start=True)
            self.pending.append((text, request, form, comm.rank, pieces))
            return
        result = form.call(comm, x, out, algorithm=algorithm)
        form.verify(result, comm.rank)
        if form.collective == "allreduce" and comm.size == cc.world().size:
            self.bits.append(digest(result))
        self.give_back(pieces)

    def form(self, p, rng, planned):
        """Return a call, and the name of an algorithm or None."""
        kinds = (*WHOLE, *CUT) if planned else (*WHOLE, *CUT, *VECTOR)
        kind = kinds[int(rng.integers(len(kinds)))]
        algorithm = None if rng.integers(4) == 0 else str(rng.choice(kind.runnable(p)))
        op, dtype = "SUM", str(rng.choice(DTYPES))
        if kind.reduces:
            ops = [each for each in SUPPORTED if dtype in SUPPORTED[each]]
            op = str(rng.choice([o for o in ops if o != "AVG" or "scan" not in kind.collective]))
        n = elements(rng, dtype_of(dtype).itemsize, p if kind.cut else 1, p)
        form = kind(
            p, n, dtype=dtype, op=op, root=int(rng.integers(p)), seed=int(rng.integers(1 << 30))
        )
        return form, algorithm

    def plan(self, comm, name, form, algorithm):
        """Run a planned call in each way, and keep it."""
        x = form.x(comm.rank).copy()
        options = form.options(comm.rank) | {"algorithm": algorithm}
        planned = comm.plan(form.collective, x, form.empty(comm.rank), **options)
        form.verify(planned(), comm.rank)
        planned.start()
        self.idle()
        form.verify(planned.wait(), comm.rank)
        self.planned.append((name, planned, form, comm.rank))
        if len(self.planned) > SIDE_BY_SIDE:
            self.planned.pop(0)

    def idle(self):
        """Nap, or look at some request, or wait for some; other ranks do other things."""
        if self.own.random() < 0.02:
            time.sleep(self.own.random() * 2e-3)
        if self.pending and self.own.random() < 0.3:
            self.pending[int(self.own.integers(len(self.pending)))][1].test()
        if self.own.random() < 0.2:
            self.finish(len(self.pending) - 1)
        if len(self.pending) > IN_FLIGHT:
            self.finish(IN_FLIGHT // 2)

    def finish(self, left):
        """Wait for requests, in any order, until so many are left."""
        while len(self.pending) > max(0, left):
            number = int(self.own.integers(len(self.pending)))
            text, request, form, rank, pieces = self.pending.pop(number)
            result = request.wait()
            try:
                if form is not None:
                    form.verify(result, rank)
            except AssertionError as error:
                raise AssertionError(f"{text}: {error}") from error
            self.give_back(pieces)

    def moved(self, x, out):
        """Return arrays of a call in memory that ranks share, one or both; and the pieces of it."""
        arrays = [x] if out is None or np.shares_memory(x, out) else [x, out]
        if len(arrays) == 2 and self.own.random() < 0.5:
            arrays.pop(int(self.own.integers(2)))
        pieces = []
        for array in arrays:
            if not self.free:
                break
            whole = array
            if out is not None and len(arrays) == 1 and np.shares_memory(x, out):
                whole = x if x.size >= out.size else out
            if whole.nbytes > MOST:
                continue
            pieces.append(self.free.pop(int(self.own.integers(len(self.free)))))
            start = whole.itemsize * int(self.own.integers(256 // whole.itemsize))
            there = pieces[-1][start : start + whole.nbytes].view(whole.dtype)
            there[:] = whole
            x, out = (each if each is None else _at(each, whole, there) for each in (x, out))
        return x, out, pieces

    def give_back(self, pieces):
        """Spoil the memory of a call that is complete: nobody may read it any more."""
        for piece in pieces:
            piece[:] = 0xA5
        self.free += pieces


def _at(array, whole, there):
    """Return the part of a copy of the whole that is at the place of the array in the whole."""
    if not np.shares_memory(array, whole):
        return array
    first = (array.ctypes.data - whole.ctypes.data) // whole.itemsize
    return there[first : first + array.size]


def elements(rng, itemsize, parts, p):
    """Return a number of elements beside some threshold, in an array of so many parts."""
    near = [
        0,
        itemsize,
        LINE,
        LINE * p,
        64 * int(rng.integers(1, 64)),  # the room of a publication is a multiple of 64
        4096 * int(rng.integers(1, 16)),
        SMALL,
        SMALL * p,
        int(rng.integers(MOST)),
    ]
    nbytes = min(int(rng.choice(near)), MOST)
    return max(0, nbytes // itemsize // parts + int(rng.integers(-1, 2)))


def shifted(array, nbytes):
    """Return a copy that begins so many bytes behind a multiple of 64."""
    memory = np.empty(array.nbytes + 128, np.uint8)
    start = -memory.ctypes.data % 64 + nbytes % 64
    copy = np.frombuffer(memory, array.dtype, array.size, start)
    copy[:] = array
    return copy
