"""The collectives as the tests see them: the input of each rank, and its expected result.

A form is one call of one collective on all ranks. Each rank computes the inputs and the results of
all of them alone, by `cases`, and can make the same call with mpi4py.
"""

from __future__ import annotations

import numpy as np
from cases import PERIOD, contribution, hold, names, reference, runnable
from dtypes import dtype_of
from mpi4py import MPI

import collectives as cc
from collectives.process import binding

MPI_OPS = {"SUM": MPI.SUM, "PROD": MPI.PROD, "MIN": MPI.MIN, "MAX": MPI.MAX}
NARROW = ("int8", "int16", "uint8", "uint16")


class Form:
    """One call of a collective on `p` ranks.

    Parameters
    ----------
    p : int
    n : int
        Elements of each rank's array, or where arrays are cut by rank, of each part. In vector
        forms the parts have random lengths of up to twice as many; some are empty.
    dtype, op : str
    root, seed : int
    """

    collective = ""  # in the registry
    cut = False  # by rank
    vector = False
    rooted = False
    reduces = False
    scales = False

    def __init__(self, p, n, *, dtype="float32", op="SUM", root=0, seed=0):
        self.p, self.n, self.dtype, self.op, self.root = p, n, dtype, op, root
        self.arguments = {"p": p, "n": n, "dtype": dtype, "op": op, "root": root, "seed": seed}
        self.rng = np.random.default_rng([p, n, seed])
        self.counts = self.lengths(p if self.cut else 1)

    def __init_subclass__(cls):
        cls.name = cls.collective + "v" * cls.vector

    @classmethod
    def algorithms(cls):
        return names(cls.collective)

    @classmethod
    def runnable(cls, p=MPI.COMM_WORLD.size):
        """Return the algorithms that run on so many ranks."""
        return [name for name in cls.algorithms() if runnable(cls.collective, name, p)]

    def lengths(self, shape):
        """Return the length of each part."""
        if not self.vector:
            return np.full(shape, self.n)
        return self.rng.integers(0, 2 * self.n, shape, endpoint=True) * (
            self.rng.random(shape) < 0.75
        )

    @property
    def total(self):
        """Return the elements of the whole array."""
        return int(self.counts.sum())

    def part(self, r):
        """Return where the part of a rank lies in the whole."""
        end = int(self.counts[: r + 1].sum())
        return slice(end - int(self.counts[r]), end)

    def data(self, r, n):
        return contribution(self.op if self.reduces else "SUM", self.dtype, n, r)

    def folded(self, ranks, n):
        """Return what the first `ranks` ranks give together, and how far off a float may be."""
        want, bound = reference(self.op, self.dtype, min(n, PERIOD), ranks)
        return np.resize(want, n), None if bound is None else np.resize(bound, n)

    def x(self, r):
        """Return the input of a rank, read-only."""
        return self.data(r, self.n)

    def folds(self, fold, inputs, r):
        """Return what a rank gets where `fold` makes one array of many, or None for nothing."""
        if self.wanted(r) is None:
            return None
        whole = fold(inputs[: {"scan": r + 1, "exscan": r}.get(self.collective, self.p)])
        return whole[self.part(r)] if self.cut else whole

    def wanted(self, r):
        """Return (result of a rank, bound), or None where it gets none."""
        raise NotImplementedError

    def empty(self, r, fill=77):
        """Return an array for the result of a rank, or None where it gets none."""
        want = self.wanted(r)
        return None if want is None else np.full(want[0].size, fill).astype(dtype_of(self.dtype))

    def shared(self, r):
        """Return input and output of a rank that share memory as they may."""
        x = self.x(r).copy()
        return x, x

    def options(self, r):
        """Return the keyword arguments of a rank's call beside x, out and algorithm."""
        options = {}
        if self.reduces:
            options["op"] = getattr(cc, self.op)
        if self.rooted:
            options["root"] = self.root
        if self.vector:
            options["counts"] = self.counts
        return options

    def call(self, comm, x=None, out=None, *, start=False, exchange=False, **changes):
        """Make a rank's call; with `start` the i-form, with `exchange` counts are not told."""
        x = self.x(comm.rank) if x is None else x
        options = self.options(comm.rank) | changes
        if exchange:
            del options["counts"]
        return getattr(comm, "i" * start + self.name)(x, out=out, **options)

    def verify(self, got, r, scale=1.0):
        """Hold the result of a rank against `scale` times what it must be."""
        want = self.wanted(r)
        if want is None:
            assert got is None
            return
        values, bound = want
        assert isinstance(got, np.ndarray)
        assert got.dtype == dtype_of(self.dtype)
        stacked = self.collective in ("allgather", "gather") and not self.vector
        assert got.shape in (values.shape, *[(self.p, self.n)] * stacked)
        hold(got.reshape(-1), values, bound, self.dtype, scale)

    def theirs(self, mpi, x):
        """Return what mpi4py makes of the same call, or None where this rank gets nothing."""
        out = self.empty(mpi.rank)
        self.call_theirs(mpi, x, out)
        return out

    def call_theirs(self, mpi, x, out):
        raise NotImplementedError

    def comparable(self, mpi, x):
        """Return for each element of a rank's result whether MPI's own must be equal to it.

        A sum of 8- or 16-bit integers that leaves their range need not be under Open MPI: the
        vector instructions of its component op/avx saturate, and the loop over what remains wraps.
        """
        saturates = binding.family(MPI) == "openmpi" and self.op == "SUM"
        if not (saturates and self.reduces and self.dtype in NARROW):
            return slice(None)
        # No order of the additions leaves the range if all of one sign together do not.
        wide = type(self)(**self.arguments | {"dtype": "int64"})
        most = wide.theirs(mpi, np.maximum(x, 0).astype("int64"))
        least = wide.theirs(mpi, np.minimum(x, 0).astype("int64"))
        limits = np.iinfo(self.dtype)
        return slice(None) if most is None else (most <= limits.max) & (least >= limits.min)

    def layout(self, buffer, counts=None):
        """Return a buffer as mpi4py takes it: with its counts in vector forms."""
        if not self.vector or buffer is None:
            return buffer
        return [buffer, (self.counts if counts is None else counts).astype(np.int32)]


class Allreduce(Form):
    collective = "allreduce"
    reduces = scales = True

    def wanted(self, r):
        return self.folded(self.p, self.n)

    def call_theirs(self, mpi, x, out):
        mpi.Allreduce(x, out, MPI_OPS[self.op])


class Reduce(Allreduce):
    collective = "reduce"
    rooted = True

    def wanted(self, r):
        return self.folded(self.p, self.n) if r == self.root else None

    def call_theirs(self, mpi, x, out):
        mpi.Reduce(x, out, MPI_OPS[self.op], self.root)


class Broadcast(Form):
    collective = "broadcast"
    rooted = True

    def wanted(self, r):
        return self.data(self.root, self.n), None

    def call_theirs(self, mpi, x, out):
        out[:] = x
        mpi.Bcast(out, self.root)


class Allgather(Form):
    collective = "allgather"
    cut = True

    def x(self, r):
        return self.data(r, int(self.counts[r]))

    def wanted(self, r):
        return np.concatenate([self.x(q) for q in range(self.p)]), None

    def shared(self, r):
        if self.wanted(r) is None:
            return super().shared(r)
        out = self.empty(r)
        out[self.part(r)] = self.x(r)
        return out[self.part(r)], out

    def call_theirs(self, mpi, x, out):
        (mpi.Allgatherv if self.vector else mpi.Allgather)(x, self.layout(out))


class Gather(Allgather):
    collective = "gather"
    rooted = True

    def wanted(self, r):
        return super().wanted(r) if r == self.root else None

    def call_theirs(self, mpi, x, out):
        (mpi.Gatherv if self.vector else mpi.Gather)(x, self.layout(out), self.root)


class Scatter(Form):
    collective = "scatter"
    cut = True
    rooted = True

    def x(self, r):
        return self.data(r, self.total)

    def wanted(self, r):
        return self.x(self.root)[self.part(r)], None

    def shared(self, r):
        x = self.x(r).copy()
        return x, x[self.part(r)]

    def call_theirs(self, mpi, x, out):
        x = self.layout(x) if mpi.rank == self.root else None
        (mpi.Scatterv if self.vector else mpi.Scatter)(x, out, self.root)


class ReduceScatter(Form):
    collective = "reduce_scatter"
    cut = True
    reduces = scales = True

    def x(self, r):
        return self.data(r, self.total)

    def wanted(self, r):
        want, bound = self.folded(self.p, self.total)
        return want[self.part(r)], None if bound is None else bound[self.part(r)]

    def shared(self, r):
        x = self.x(r).copy()
        return x, x[self.part(r)]

    def call_theirs(self, mpi, x, out):
        if self.vector:
            mpi.Reduce_scatter(x, out, self.counts.astype(np.int32), MPI_OPS[self.op])
        else:
            mpi.Reduce_scatter_block(x, out, MPI_OPS[self.op])


class Alltoall(Form):
    collective = "alltoall"
    cut = True

    @property
    def total(self):
        return self.p * self.n

    def lengths(self, shape):
        """Return a matrix: row s is what rank s sends."""
        return super().lengths((shape, shape))

    def x(self, r):
        return self.data(r, int(self.counts[r].sum()))

    def wanted(self, r):
        ends = self.counts.cumsum(axis=1)[:, r]
        starts = ends - self.counts[:, r]
        parts = [self.x(s)[starts[s] : ends[s]] for s in range(self.p)]
        return np.concatenate(parts), None

    def shared(self, r):
        x = self.x(r)
        n = self.wanted(r)[0].size
        memory = np.resize(x, max(n, x.size))
        memory[: x.size] = x
        return memory[: x.size], memory[:n]

    def call_theirs(self, mpi, x, out):
        sent, received = self.counts[mpi.rank], self.counts[:, mpi.rank]
        call = mpi.Alltoallv if self.vector else mpi.Alltoall
        call(self.layout(x, sent), self.layout(out, received))


class Scan(Form):
    collective = "scan"
    reduces = True

    def wanted(self, r):
        return self.folded(r + 1, self.n)

    def call_theirs(self, mpi, x, out):
        mpi.Scan(x, out, MPI_OPS[self.op])


class Exscan(Scan):
    collective = "exscan"

    def wanted(self, r):
        return self.folded(r, self.n) if r else None

    def call_theirs(self, mpi, x, out):
        mpi.Exscan(x, np.empty_like(x) if out is None else out, MPI_OPS[self.op])


class Allgatherv(Allgather):
    vector = True


class Gatherv(Gather):
    vector = True


class Scatterv(Scatter):
    vector = True


class ReduceScatterv(ReduceScatter):
    vector = True


class Alltoallv(Alltoall):
    vector = True

    @classmethod
    def algorithms(cls):
        """Return those in which no block passes through a rank that does not know its length."""
        return [name for name in names(cls.collective) if name != "bruck"]

    def options(self, r):
        return {"counts": self.counts[r], "receive_counts": self.counts[:, r]}

    def call(self, comm, x=None, out=None, *, exchange=False, **changes):
        if exchange:
            changes["receive_counts"] = None
        return super().call(comm, x, out, **changes)


WHOLE = (Allreduce, Reduce, Broadcast, Scan, Exscan)
CUT = (Allgather, Gather, Scatter, ReduceScatter, Alltoall)
VECTOR = (Allgatherv, Gatherv, Scatterv, ReduceScatterv, Alltoallv)
REDUCING = tuple(form for form in (*WHOLE, *CUT, *VECTOR) if form.reduces)


def several_in_flight(comm, arrays):
    """Reduce integers in place, all in flight: each may be changed when its own wait has ended."""
    for _ in range(5):
        for x in arrays:
            x[:] = np.arange(x.size) + comm.rank
        requests = [comm.iallreduce(x, out=x) for x in arrays]
        for request, x in zip(reversed(requests), reversed(arrays), strict=True):
            request.wait()
            want = comm.size * np.arange(x.size) + comm.size * (comm.size - 1) // 2
            assert (x == want).all()
            x[:] = 0
