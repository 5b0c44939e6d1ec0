"""The contracts of the collectives: the data of each rank at the start and at the end.

Data is counted in *parts*. The array of an allreduce is one part. Where arrays are cut by rank,
rank `b` gives (allgather, gather) or gets (reduce_scatter, scatter) part ``b`` of ``p``, and part
``s * p + d`` of an alltoall goes from rank `s` to rank `d`. A contract has the parts in a rank's
input and those in its output, in the order in which they are stored there, and the set of ranks
whose contributions a finished part holds. `plans.proof` checks algorithms against it;
`plans.schedule` and the executor use it to find the place of a block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from collectives.errors import ArgumentError
from collectives.text.words import known

Parts = Callable[[int, int, int], Sequence[int]]  # of (rank, p, root)


def _whole(r: int, p: int, root: int) -> range:
    return range(1)


def _own(r: int, p: int, root: int) -> range:
    return range(r, r + 1)


def _every(r: int, p: int, root: int) -> range:
    return range(p)


def _from_me(r: int, p: int, root: int) -> range:
    return range(r * p, (r + 1) * p)


def _to_me(r: int, p: int, root: int) -> range:
    return range(r, p * p, p)


def _at_root(parts: Parts) -> Parts:
    return lambda r, p, root: parts(r, p, root) if r == root else range(0)


def _after_first(parts: Parts) -> Parts:
    return lambda r, p, root: parts(r, p, root) if r else range(0)


# Sets of ranks as bit masks: of (part, rank, p, root).
def _everybody(part: int, r: int, p: int, root: int) -> int:
    return (1 << p) - 1


def _root(part: int, r: int, p: int, root: int) -> int:
    return 1 << root


def _owner(part: int, r: int, p: int, root: int) -> int:
    return 1 << part


def _sender(part: int, r: int, p: int, root: int) -> int:
    return 1 << part // p


def _up_to_me(part: int, r: int, p: int, root: int) -> int:
    return (2 << r) - 1


def _before_me(part: int, r: int, p: int, root: int) -> int:
    return (1 << r) - 1


@dataclass(frozen=True, eq=False)
class Collective:
    """The contract of one collective operation.

    Attributes
    ----------
    name : str
        The name in MPI, in snake_case.
    inputs, outputs : callable
        ``inputs(rank, p, root)``: the parts in the input of a rank; likewise for the output. If
        they are no ``range``, parts with consecutive numbers need not lie side by side.
    sources : callable
        ``sources(part, rank, p, root)``: a bit mask of the ranks whose contributions the part
        holds when `rank` ends with it. If the mask is 0, the part is left as it was.
    rooted : bool
        Whether one rank, the root, has a special role.
    reduces : bool
        Whether contributions are folded; if not, they are only moved.
    idempotent : bool
        Whether a contribution may be folded twice, as in a barrier, in which a rank only hears of
        all others.
    vector : bool
        Whether there is a vector form, in which each part has a count of its own.
    repeats : mapping of int to int
        Parts of outputs that are copies of other parts of the same output.
    """

    name: str
    inputs: Parts
    outputs: Parts
    sources: Callable[[int, int, int, int], int]
    rooted: bool = False
    reduces: bool = False
    idempotent: bool = False
    vector: bool = False
    repeats: Mapping[int, int] = field(default_factory=dict)

    def parts(self, p: int) -> int:
        """Return the number of parts that all `p` ranks have together. Local."""
        return 1 + max(part for r in (0, p - 1) for part in self._touched(r, p))

    def per_array(self, p: int) -> int:
        """Return the parts of the caller's array, the unit of costs, on `p` ranks. Local."""
        return max(len(self.inputs(0, p, 0)), len(self.outputs(0, p, 0)))

    def received(self, p: int) -> float:
        """Return the largest share of the array that one of `p` ranks lacks at the start. Local."""
        lacking = (set(self.outputs(r, p, 0)) - set(self.inputs(r, p, 0)) for r in (0, p - 1))
        return max(map(len, lacking)) / self.per_array(p)

    @property
    def folds(self) -> bool:
        """True if contributions are folded, each of them once."""
        return self.reduces and not self.idempotent

    @property
    def replicates(self) -> bool:
        """True if all ranks end with the same parts, with the same contributions."""
        return self.outputs(0, 2, 0) == self.outputs(1, 2, 0) and (
            self.sources(0, 0, 2, 0) == self.sources(0, 1, 2, 0)
        )

    def _touched(self, r: int, p: int) -> tuple[int, ...]:
        return (*self.inputs(r, p, r), *self.outputs(r, p, r))


COLLECTIVES = {
    c.name: c
    for c in (
        Collective("allreduce", _whole, _whole, _everybody, reduces=True),
        Collective("reduce", _whole, _at_root(_whole), _everybody, rooted=True, reduces=True),
        Collective("broadcast", _at_root(_whole), _whole, _root, rooted=True),
        Collective("barrier", _whole, _whole, _everybody, reduces=True, idempotent=True),
        Collective("allgather", _own, _every, _owner, vector=True),
        Collective("reduce_scatter", _every, _own, _everybody, reduces=True, vector=True),
        Collective("alltoall", _from_me, _to_me, _sender, vector=True),
        Collective("gather", _own, _at_root(_every), _owner, rooted=True, vector=True),
        Collective("scatter", _at_root(_every), _own, _root, rooted=True, vector=True),
        Collective("scan", _whole, _whole, _up_to_me, reduces=True),
        Collective("exscan", _whole, _after_first(_whole), _before_me, reduces=True),
    )
}


def collective(name: str) -> Collective:
    """Return the contract called `name`. Local.

    Raises
    ------
    ArgumentError
        If there is no such collective; the text lists the names.
    """
    try:
        return COLLECTIVES[name]
    except (KeyError, TypeError):
        raise ArgumentError(
            f"there is no collective {name!r}; {known(name, COLLECTIVES, 'there are')}"
        ) from None
