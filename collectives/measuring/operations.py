"""The operations of ``collectives bench``: for each one its data, our call and MPI's.

The contract of a collective, in `spec`, defines the inputs and the expected outputs of each rank.
The parts of all ranks are numbered as if they were in one array: part ``b`` of an array of n
elements that is cut by rank begins at element ``n * b // p``, and in an alltoall the array of the
next rank begins at n. So inputs and expected outputs are windows of one pattern.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from collectives import Communicator, reductions
from collectives.algorithms.spec import COLLECTIVES, Collective

# The factors of nccl-tests, doc/PERFORMANCE.md and src/*.cu: the minimum bytes on a link, divided
# by the size of the array, so that busbw can be compared with the hardware's speed on any number of
# ranks. nccl-tests has no factor for a scan; here it is 1.
CUT = {"allgather", "reduce_scatter", "alltoall", "gather", "scatter"}


@dataclass(frozen=True)
class Operation:
    """A method of the communicator, and the function of MPI that does the same.

    Attributes
    ----------
    name : str
        The name of the method.
    contract : Collective
        The data of each rank, before and after.
    peer : str
        The method of mpi4py's communicators.
    vector : bool
        Whether the ranks may have different numbers of elements.
    """

    name: str
    contract: Collective
    peer: str
    vector: bool = False

    @property
    def reduces(self) -> bool:
        """True if the operation folds."""
        return self.contract.reduces and self.moves

    @property
    def moves(self) -> bool:
        """True if the operation has arrays."""
        return self.name != "barrier"

    @property
    def chosen(self) -> bool:
        """True if there are algorithms to choose from."""
        return self.contract.name in COLLECTIVES

    @property
    def runs_ahead(self) -> bool:
        """True if a rank may finish before others have begun, because it does not need all."""
        return self.contract.rooted or self.contract.name in ("scan", "exscan")

    def elements(self, count: int, p: int) -> int:
        """Return the number of elements to measure. Local."""
        if not self.moves:
            return 0
        if self.contract.name in CUT and not self.vector:
            return max(1, count // p) * p
        return max(p if self.vector else 1, count)

    def bus_factor(self, p: int) -> float:
        """Return busbw / algbw on `p` ranks, as nccl-tests defines it. Local."""
        if self.name == "allreduce":
            return 2 * (p - 1) / p
        return (p - 1) / p if self.contract.name in CUT else 1.0

    def pieces(self, parts: Sequence[int], n: int, p: int) -> Iterator[tuple[int, int, int]]:
        """Yield (part, its first element in the whole array, number of elements). Local."""
        per = self.contract.per_array(p)
        for part in parts:
            row, b = divmod(part, per)
            first, last = (row * n + n * edge // per for edge in (b, b + 1))
            yield part, first, last - first

    def choice(self, comm: Communicator, nbytes: int) -> str:
        """Return the name of the algorithm that the library chooses. Local."""
        if not self.chosen:
            return "direct"
        if not self.vector:
            return comm.explain(self.contract.name, nbytes).algorithm.name
        # In an alltoallv no rank knows the total size.
        known = 0 if self.name == "alltoallv" else nbytes
        return comm._chooser.decide(
            self.contract.name, None, None, known, vector=True
        ).algorithm.name


def _neighbour(r: int, p: int, root: int) -> range:
    return range((r - 1) % p, (r - 1) % p + 1)


def _me(r: int, p: int, root: int) -> range:
    return range(r, r + 1)


# Each rank sends to its right neighbour and receives from its left one, as in nccl-tests.
SENDRECV = Collective("sendrecv", _me, _neighbour, lambda part, r, p, root: 1 << part)

OPERATIONS = {
    each.name: each
    for each in (
        Operation("allreduce", COLLECTIVES["allreduce"], "Allreduce"),
        Operation("reduce", COLLECTIVES["reduce"], "Reduce"),
        Operation("broadcast", COLLECTIVES["broadcast"], "Bcast"),
        Operation("barrier", COLLECTIVES["barrier"], "Barrier"),
        Operation("allgather", COLLECTIVES["allgather"], "Allgather"),
        Operation("reduce_scatter", COLLECTIVES["reduce_scatter"], "Reduce_scatter_block"),
        Operation("alltoall", COLLECTIVES["alltoall"], "Alltoall"),
        Operation("gather", COLLECTIVES["gather"], "Gather"),
        Operation("scatter", COLLECTIVES["scatter"], "Scatter"),
        Operation("scan", COLLECTIVES["scan"], "Scan"),
        Operation("exscan", COLLECTIVES["exscan"], "Exscan"),
        Operation("allgatherv", COLLECTIVES["allgather"], "Allgatherv", vector=True),
        Operation("reduce_scatterv", COLLECTIVES["reduce_scatter"], "Reduce_scatter", vector=True),
        Operation("alltoallv", COLLECTIVES["alltoall"], "Alltoallv", vector=True),
        Operation("gatherv", COLLECTIVES["gather"], "Gatherv", vector=True),
        Operation("scatterv", COLLECTIVES["scatter"], "Scatterv", vector=True),
        Operation("sendrecv", SENDRECV, "Sendrecv"),
    )
}


class Arrays:
    """One input and one output of a rank, and the calls with them."""

    operation: Operation
    n: int
    p: int
    rank: int
    root: int

    def __init__(
        self,
        operation: Operation,
        n: int,
        p: int,
        rank: int,
        root: int,
        op: reductions.Reduction,
        x: NDArray[Any],
        empty: Callable[..., NDArray[Any]] = np.empty,
    ) -> None:
        self.operation, self.n, self.op = operation, n, op
        self.p, self.rank, self.root = p, rank, root
        contract = operation.contract
        self.has_input: bool = len(contract.inputs(rank, p, root)) > 0
        self.has_output: bool = len(contract.outputs(rank, p, root)) > 0
        self.x: NDArray[Any] = x
        if operation.name == "broadcast":
            # In place, as in MPI.
            self.x = x if self.has_input else empty(n, x.dtype)
            self.out: NDArray[Any] = self.x
        else:
            length = sum(size for _, _, size in self.wanted())
            # Rank 0 of an exscan gets no result, but has an array like all others.
            self.out = empty(length if contract.name != "exscan" else n, x.dtype)
            self.out.fill(0)
        self.counts: list[int] = [n * (b + 1) // p - n * b // p for b in range(p)]

    def wanted(self) -> Iterator[tuple[int, int, int]]:
        """Return the pieces of the output; see `Operation.pieces`. Local."""
        parts = self.operation.contract.outputs(self.rank, self.p, self.root)
        return self.operation.pieces(parts, self.n, self.p)

    def ours(self, comm: Communicator, algorithm: str | None) -> Callable[[], Any]:
        """Return the library's call on `comm` with `algorithm`, as a program makes it. Local."""
        operation, contract = self.operation, self.operation.contract
        method = getattr(comm, operation.name)
        if operation.name == "sendrecv":
            right, left = (self.rank + 1) % self.p, (self.rank - 1) % self.p
            return partial(method, self.x, right, self.out, left)
        options: dict[str, Any] = {} if algorithm is None else {"algorithm": algorithm}
        if not operation.moves:
            return partial(method, **options)
        if contract.rooted and self.root:
            options["root"] = self.root
        if contract.reduces and self.op is not reductions.SUM:
            options["op"] = self.op
        if operation.vector:
            options["counts"] = self.counts
        if operation.name == "alltoallv":
            received = [self.counts[self.rank]] * self.p
            return partial(method, self.x, out=self.out, receive_counts=received, **options)
        at_root_only = contract.rooted and operation.name != "broadcast"
        x = self.x if self.has_input or not at_root_only else None
        out = self.out if self.has_output or not at_root_only else None
        return partial(method, x, out, **options)

    def theirs(self, mpi: Any, MPI: Any) -> Callable[[], Any] | None:
        """Return the call of `mpi`; None where `MPI` lacks the type or the operation. Local."""
        operation, contract = self.operation, self.operation.contract
        method = getattr(mpi, operation.peer)
        if not operation.moves:
            return partial(method)
        op = getattr(MPI, self.op.name, None)
        if operation.reduces:
            kind = _kind(MPI, op, self.x.dtype)
            if kind is None:
                return None
            unit = 1
        else:
            # Data that is only moved is sent as bytes.
            kind, unit = MPI.BYTE, self.x.itemsize
        counts = [unit * count for count in self.counts]

        def buffer(array: NDArray[Any], cut: list[int] | None = None) -> list[Any]:
            # Without a count, mpi4py computes it, and cuts the array by rank if needed.
            data = array if operation.reduces else array.view(np.uint8)
            return [data, kind] if cut is None else [data, cut, kind]

        x, out = buffer(self.x), buffer(self.out)
        if operation.vector and operation.name in ("scatterv", "alltoallv"):
            x = buffer(self.x, counts)
        if operation.name == "alltoallv":
            out = buffer(self.out, [counts[self.rank]] * self.p)
        if operation.name in ("gatherv", "allgatherv"):
            out = buffer(self.out, counts)
        if operation.name == "sendrecv":
            right, left = (self.rank + 1) % self.p, (self.rank - 1) % self.p
            return partial(method, x, right, 0, out, left, 0)
        if operation.name == "broadcast":
            return partial(method, x, self.root)
        words: list[Any] = [x if self.has_input else None]
        words.append(out if self.has_output or not contract.rooted else None)
        if operation.name == "reduce_scatterv":
            words.append(counts)
        if contract.reduces:
            words.append(op)
        if contract.rooted:
            words.append(self.root)
        return partial(method, *words)


def _kind(MPI: Any, op: Any, dtype: DTypeLike) -> Any:
    """Return MPI's type for a dtype, or None if the operation cannot fold it."""
    if op is None:
        return None
    try:
        kind = MPI.Datatype.fromcode(np.dtype(dtype).char)
        one = np.ones(1, dtype)
        op.Reduce_local([one, 1, kind], [one.copy(), 1, kind])
    except (MPI.Exception, ValueError):
        return None
    return kind
