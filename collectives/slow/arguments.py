"""The arguments of a call, checked as the core checks them, with the same errors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from math import prod
from operator import index
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives import coreless
from collectives.algorithms import spec
from collectives.arrays import buffers, frameworks
from collectives.errors import ArgumentError, BufferError, CommunicatorError, UnsupportedTypeError
from collectives.slow import kernels
from collectives.slow.kernels import Array, Reduction
from collectives.text.words import shown

COLLECTIVES = tuple(spec.COLLECTIVES)
KINDS = len(COLLECTIVES)
ALLREDUCE, REDUCE, BROADCAST, BARRIER, ALLGATHER, REDUCE_SCATTER, ALLTOALL = range(7)
GATHER, SCATTER, SCAN, EXSCAN = range(7, KINDS)
EXCHANGE = KINDS  # send, recv and both: no collective
KIND_NAMES = (*COLLECTIVES, "send or recv")

# The other calls of ranks, which they announce by an allgather of records.
MAKINGS = (
    *("dup", "split", "empty", "timeline", "device_transports", "compressed_allreduce", "cart"),
    *("graph", "same"),
)

ADDRESSES = 1 << 47  # bytes that a process can address
NUMBERS, STRUCTURES, PAIRS = range(1, 4)  # the dtypes that a call takes beside those of kernels


Counts = NDArray[np.int64]


class View(NamedTuple):
    """An array of a call: its elements in a row, its dtype in words, and its shape."""

    flat: Array
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.flat.size

    @property
    def address(self) -> int:
        found: int = self.flat.__array_interface__["data"][0]
        return found

    def overlaps(self, other: View) -> bool:
        """Return whether two views share memory. Local."""
        a, b = self.address, other.address
        return a < b + other.flat.nbytes and b < a + self.flat.nbytes


def view_of(array: Any, name: str, writable: bool, others: int = 0) -> View:
    """Return a view of an array, or of a packed copy if that is needed. Local."""
    if type(array) is not np.ndarray:
        framework = frameworks.framework_of(type(array))
        if framework is not None:
            raise coreless.error(f"{name} is a {frameworks.LABELS[framework]}, and this", "needs")
        array = buffers.as_array(array, name, writable)
    dtype = array.dtype
    if others in (STRUCTURES, PAIRS) and dtype.kind == "V" and dtype.type is np.void:
        pair = buffers.pair_of(dtype) if others == PAIRS else None
        if pair is None and (dtype.hasobject or not dtype.isnative or not dtype.itemsize):
            raise buffers.unsupported(name, str(dtype), False, False)
        said = str(dtype) if pair is None else buffers.pair_name(*pair)
    else:
        said = buffers.dtype_name(array, name, others == NUMBERS)
    flags = array.flags
    if not (flags.c_contiguous and flags.aligned and (flags.writeable or not writable)):
        array = buffers.contiguous(array, name, writable)
    return View(array.reshape(-1), said, array.shape)


def seconds(value: Any, name: str = "timeout") -> float:
    """Return a deadline, which is a positive number of seconds. Local."""
    try:
        number = float(value)
    except Exception:  # also of a user's type
        number = -1
    if not number > 0 or isinstance(value, (str, bytes)):
        raise ArgumentError(f"{name} is {shown(value)}, and must be a positive number of seconds")
    return number


def factor_of(value: Any, name: str) -> float:
    try:
        if isinstance(value, (str, bytes)):
            raise TypeError
        return float(value)
    except Exception:  # also of a user's type
        raise ArgumentError(f"{name} is {shown(value)}, and must be a real number") from None


class Parts:
    """The parts of a vector form; `after` raises an error at the end of the call, if any."""

    counts: Counts
    receive_counts: Counts
    displs: Counts | None
    receive_displs: Counts | None
    after: Callable[[], None] | None

    def __init__(
        self,
        counts: Counts,
        receive_counts: Counts | None = None,
        displs: Counts | None = None,
        receive_displs: Counts | None = None,
        after: Callable[[], None] | None = None,
    ) -> None:
        self.counts = counts
        self.receive_counts = counts if receive_counts is None else receive_counts
        self.displs, self.receive_displs, self.after = displs, receive_displs, after


class Call:
    """One call: its arguments, checked, and its result."""

    engine: Any
    kind: int
    parts: Parts | None
    contract: spec.Collective
    root: int
    part: int  # elements of a part
    nbytes: int  # of the whole array
    inputs: Sequence[int]
    outputs: Sequence[int]
    prescale: float
    postscale: float

    def __init__(
        self, engine: Any, kind: int, parts: Parts | None = None, announced: str = ""
    ) -> None:
        self.engine, self.kind, self.parts = engine, kind, parts
        self.announced = announced  # the name of the call that this one announces
        self.root = self.part = self.nbytes = 0
        self.x: View
        self.out: View | None = None
        self.result: Any = None
        self.delayed: list[Any] = []  # functions that write a result to its place
        self.fold: kernels.Fold | None = None
        self.said: str | None = None  # the operation
        self.user: Reduction | None = None
        self.prescale = self.postscale = 1.0
        self.factor: Any = 1.0
        self.is_planned = False
        if kind < KINDS:
            self.contract = spec.COLLECTIVES[COLLECTIVES[kind]]

    @property
    def name(self) -> str:
        """The call in words."""
        return self.announced or KIND_NAMES[self.kind] + "v" * (self.parts is not None)

    @property
    def ragged(self) -> bool:
        """True if ranks do not know the lengths of each other's blocks."""
        return self.parts is not None and self.kind == ALLTOALL

    def take(self, x: Any, out: Any, op: Any, root: Any, prescale: Any, postscale: Any) -> None:
        """Check the arguments; make memory for a new result. Local."""
        if self.kind == BARRIER:
            self.place()
            token = np.zeros(1, np.uint8)
            self.x, self.out = (View(each, "uint8", (1,)) for each in (token, token.copy()))
            self.part = self.nbytes = 1
            self.fold = kernels.kernel_of(kernels.BOR, "uint8", token.dtype)
            return
        reduction, others = None, NUMBERS
        if self.contract.reduces:
            reduction = kernels.reduction_called(op)
            others = STRUCTURES if reduction.function is not None else 0
            if reduction.code >= kernels.NOPS:
                others = PAIRS
        self.prescale = factor_of(prescale, "prescale")
        self.factor = self.postscale = factor_of(postscale, "postscale")
        if self.contract.rooted:
            self.root = self.engine.check_root(root)
        self.place()
        given = None
        if x is not None:
            given = self.view_of_x(x, others)
        elif self.inputs or out is None:
            raise self.nothing_given()
        if out is not None and len(self.outputs):
            self.out = self.view_of_out(out, others)
        if given is None:
            assert self.out is not None
            given = self.out._replace(flat=self.out.flat[:0])
        self.x = given
        copies = self.check(reduction, x is not None)
        if not len(self.outputs):
            self.out = None
        elif self.out is None:
            self.result = self.allocate()
        elif self.parts is not None and self.parts.receive_displs is not None:
            self.result = self.scatter_later(out)
        else:
            self.result = out
        if copies:
            self.pack()

    def place(self) -> None:
        """Find the parts in the input and the output of this rank. Local."""
        rank, size = self.engine.rank, self.engine.size
        root = self.root if self.contract.rooted else -1
        self.inputs = self.contract.inputs(rank, size, root)
        self.outputs = self.contract.outputs(rank, size, root)

    def view_of_x(self, x: Any, others: int) -> View:
        view = view_of(x, "x", False, others)
        array = x if isinstance(x, np.ndarray) else None
        is_packed = array is not None and not np.may_share_memory(array, view.flat)
        if self.is_planned and len(self.inputs) and is_packed and view.size:
            raise BufferError(
                "x is not C-contiguous and aligned, and a planned call reads it where it lies; "
                "pass a contiguous array"
            )
        return view

    def view_of_out(self, out: Any, others: int) -> View:
        """Return a view of the output. An array in Fortran's order is written when the call is
        complete, since elements correspond by index.
        """
        if type(out) is np.ndarray and not self.is_planned:
            flags = out.flags
            if not flags.c_contiguous and flags.f_contiguous and flags.aligned and flags.writeable:
                scratch = np.empty_like(out, order="C")
                view = view_of(scratch, "out", True, others)
                self.delayed.append(partial(np.copyto, out, scratch))
                return view
        return view_of(out, "out", True, others)

    def check(self, reduction: Reduction | None, has_x: bool) -> bool:
        """Compare the arrays with the counts and each other; return whether `x` is to be packed."""
        itemsize = self.x.flat.itemsize
        if self.parts is None:
            self.part = self.part_of_x(has_x)
            self.nbytes = self.part * self.contract.per_array(self.engine.size) * itemsize
        else:
            self.check_counts(self.parts, itemsize)
        wanted = sum(self.size_of(part) for part in self.outputs)
        if reduction is not None:
            self.check_fold(reduction)
        copies = self.parts is not None and self.parts.displs is not None and len(self.inputs) > 0
        if self.out is None:
            return copies
        if self.out.dtype != self.x.dtype:
            raise BufferError(
                f"out is {self.out.dtype} and x is {self.x.dtype}; they must be equal"
            )
        if self.parts is not None and self.parts.receive_displs is not None:
            return copies
        if self.out.size != wanted:
            raise BufferError(
                f"out has {self.out.size} elements, and the result has {wanted}; they must be equal"
            )
        if len(self.inputs) and not copies and self.x.overlaps(self.out):
            return self.overwrites()
        return copies

    def size_of(self, part: int) -> int:
        """Return the elements of a part. Local."""
        parts, size = self.parts, self.engine.size
        if parts is None:
            return self.part
        if self.kind != ALLTOALL:
            return int(parts.counts[part])
        if part // size == self.engine.rank:
            return int(parts.counts[part % size])
        return int(parts.receive_counts[part // size])

    def part_of_x(self, has_x: bool) -> int:
        """Return the elements of a part. Local."""
        divisor = len(self.inputs) or self.contract.per_array(self.engine.size)
        count = self.x.size
        if not has_x:
            assert self.out is not None
            return self.out.size // max(len(self.outputs), 1)
        if divisor > 1 and count % divisor:
            raise ArgumentError(
                f"x has {count} elements, which {divisor} ranks cannot share equally; "
                f"{self.name}v takes a count for each rank"
            )
        return count // divisor

    def check_counts(self, parts: Parts, itemsize: int) -> None:
        wanted = sum(self.size_of(part) for part in self.inputs)
        if len(self.inputs) and parts.displs is None and self.x.size != wanted:
            raise ArgumentError(
                f"x has {self.x.size} elements and its counts say {wanted}; they must be equal"
            )
        sent = int(parts.counts.sum())
        most = max(sent, int(parts.receive_counts.sum()))
        if most > ADDRESSES // itemsize:
            raise ArgumentError(
                f"the counts are {most} elements of {itemsize} bytes in all, and a process can "
                f"address {ADDRESSES} bytes"
            )
        if not self.ragged:
            self.nbytes = sent * itemsize

    def check_fold(self, reduction: Reduction) -> None:
        """Find the functions of a collective that reduces."""
        dtype = self.x.dtype
        self.said = reduction.said
        if reduction.function is not None:
            self.user = reduction
        else:
            self.fold = kernels.kernel_of(reduction.code, dtype, self.x.flat.dtype)
            if self.fold is None or (reduction.average and dtype not in kernels.SCALED):
                raise kernels.undefined(reduction, dtype)
        if reduction.average:
            if self.kind in (SCAN, EXSCAN):
                raise ArgumentError(
                    f"op is AVG, and a {COLLECTIVES[self.kind]} has a number of contributions of "
                    f"its own on each rank; divide the result of SUM"
                )
            self.factor = np.longdouble(self.postscale) / self.engine.size
        if (self.factor != 1.0 or self.prescale != 1.0) and dtype not in kernels.SCALED:
            raise UnsupportedTypeError(
                f"prescale and postscale need a floating dtype, and x is {dtype}"
            )

    def overwrites(self) -> bool:
        """Return whether the result would overwrite input that is still needed; raise if
        overlapping arrays may not be passed.
        """
        assert self.out is not None
        if self.kind == ALLTOALL:
            if self.is_planned:
                raise BufferError(
                    "out overlaps x, and a planned alltoall reads x where it lies; pass arrays "
                    "that share no memory"
                )
            return True
        x, out, itemsize = self.x.address, self.out.address, self.x.flat.itemsize
        before_x = sum(self.size_of(part) for part in range(self.inputs[0]))
        before_out = sum(self.size_of(part) for part in range(self.outputs[0]))
        # MPI's reduce_scatter in place: the result is at the start of the array.
        if self.kind == REDUCE_SCATTER and x == out and before_out and not self.is_planned:
            return True
        if x - before_x * itemsize != out - before_out * itemsize:
            remedy = "out as this rank's part of x"
            if self.contract.per_array(self.engine.size) == 1:
                remedy = "out=x"
            elif len(self.outputs) > 1:
                remedy = "x as the part of out that it becomes"
            raise BufferError(
                f"out overlaps x in part; pass {remedy}, or arrays that share no memory"
            )
        return False

    def allocate(self) -> Array:
        """Make memory for the result."""
        shape = self.x.shape
        stacks = self.kind in (ALLGATHER, GATHER)
        if stacks or self.kind in (REDUCE_SCATTER, SCATTER) or self.parts is not None:
            shape = self.new_shape(stacks)
        try:
            made = np.empty(shape, self.x.flat.dtype)
        except MemoryError:
            text = "there is no memory for an array of the size of the result"
            raise CommunicatorError(text) from None
        self.out = View(made.reshape(-1), self.x.dtype, shape)
        return made

    def new_shape(self, stacks: bool) -> tuple[int, ...]:
        """Return the shape of a new result: parts joined along the first axis, or stacked along one
        of their own.
        """
        shape = self.x.shape
        count = sum(self.size_of(part) for part in self.outputs)
        if stacks and self.parts is None:
            return len(self.outputs), *shape
        row = prod(shape[1:])
        if row and count % row == 0:
            return count // row, *shape[1:]
        if row == 0 and self.parts is None and shape[0] % self.engine.size == 0:
            return shape[0] // self.engine.size, *shape[1:]
        return (count,)

    def pack(self) -> None:
        """Copy the parts of `x` into a new array, which becomes the input."""
        if self.parts is None or self.parts.displs is None:
            self.x = self.x._replace(flat=self.x.flat.copy())
            return
        sizes = [self.size_of(part) for part in self.inputs]
        first = 0 if self.kind == ALLTOALL else self.inputs[0]
        starts = self.parts.displs[first : first + len(sizes)].tolist()
        flat = self.x.flat
        pieces = [flat[start : start + n] for start, n in zip(starts, sizes, strict=True)]
        self.x = self.x._replace(flat=np.concatenate(pieces))

    def scatter_later(self, out: Any) -> Any:
        """Return `out`, to whose places the parts of the result are copied at the end."""
        assert self.out is not None
        assert self.parts is not None
        sizes = [self.size_of(part) for part in self.outputs]
        first = 0 if self.kind == ALLTOALL else self.outputs[0]
        displs = self.parts.receive_displs
        assert displs is not None
        target, scratch = self.out.flat, np.empty(sum(sizes), self.out.flat.dtype)
        edges = pairwise(accumulate(sizes, initial=0))
        pairs = [
            (target[at : at + n], scratch[start:end])
            for at, n, (start, end) in zip(
                displs[first : first + len(sizes)].tolist(), sizes, edges, strict=True
            )
        ]
        self.out = self.out._replace(flat=scratch)
        self.delayed.insert(0, partial(buffers.copy_all, pairs))
        return out

    def nothing_given(self) -> BufferError:
        """Return the error of a call that got None as `x`, and needs an array."""
        rank = self.engine.rank
        if not self.contract.rooted or self.contract.inputs(rank, self.engine.size, -1):
            return BufferError("x is None, and must be an array: every rank contributes one")
        if self.inputs:
            return BufferError(
                f"x is None on rank {rank}, which is the root, and must be the array to send"
            )
        result = "this rank's part" if self.kind == SCATTER else "the result"
        return BufferError(
            f"x and out are None on rank {rank}, which has to know what rank {self.root}, the "
            f"root, sends; pass out, an array for {result}, or as x an array with the shape and "
            f"dtype of the root's, whose contents are not read. {COLLECTIVES[self.kind]}_object "
            f"needs neither"
        )

    def finish(self) -> Any:
        """Return the caller's result of a complete call. Local."""
        while self.delayed:
            self.delayed.pop(0)()
        return self.result


def root_of(root: Any, size: int, alone: Any) -> int:
    """Return the rank that `root` names. Local."""
    try:
        number = index(root)
    except Exception as error:  # also of a user's type
        raise ArgumentError(
            f"root is {shown(root)}, and must be an integer in 0..{size - 1}"
        ) from error
    if not 0 <= number < size:
        raise ArgumentError(f"root is {number}, and must be in 0..{size - 1}{alone(number)}")
    return number
