"""What each collective promises: who starts with what, and who must end with what.

The contract of a collective is two predicates over ranks. `check` holds an algorithm against
them, `schedule` uses them to know where a block lives before its first round.
"""

from __future__ import annotations

from dataclasses import dataclass

from collectives.errors import ArgumentError

__all__ = ["COLLECTIVES", "Collective", "collective"]


@dataclass(frozen=True)
class Collective:
    """The contract of one collective operation.

    Attributes
    ----------
    name : str
        MPI's word in snake_case.
    rooted : bool
        Whether one rank plays a special part.
    reduces : bool
        Whether contributions are folded; if not, the root's blocks are only moved.
    idempotent : bool
        Whether folding one contribution twice is harmless (a barrier only has to have heard
        of everybody).
    """

    name: str
    rooted: bool
    reduces: bool
    idempotent: bool = False

    def contributes(self, rank: int, root: int) -> bool:
        """Say whether `rank` holds its input at the start."""
        return self.reduces or rank == root

    def receives(self, rank: int, root: int) -> bool:
        """Say whether `rank` must hold the result at the end."""
        return rank == root or not (self.rooted and self.reduces)


COLLECTIVES = {
    c.name: c
    for c in (
        Collective("allreduce", rooted=False, reduces=True),
        Collective("reduce", rooted=True, reduces=True),
        Collective("broadcast", rooted=True, reduces=False),
        Collective("barrier", rooted=False, reduces=True, idempotent=True),
    )
}


def collective(name: str) -> Collective:
    """Return the contract called `name`.

    Raises
    ------
    ArgumentError
        If there is no such collective; the text lists those that there are.
    """
    try:
        return COLLECTIVES[name]
    except (KeyError, TypeError):
        raise ArgumentError(
            f"there is no collective {name!r}; there are: {', '.join(COLLECTIVES)}"
        ) from None
