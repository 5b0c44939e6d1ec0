"""Groups of ranks that are near each other, such as the ranks of one host."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import Any

from collectives.errors import ArgumentError
from collectives.text.words import count, shown


@dataclass(frozen=True)
class Groups:
    """A partition of the ranks into groups.

    Groups are numbered in the order of their lowest ranks, and the ranks of a group from 0 in
    rising order.

    Attributes
    ----------
    of : tuple of int
        The number of the group of each rank.
    """

    of: tuple[int, ...]

    @classmethod
    def read(cls, of: Sequence[Any]) -> Groups:
        """Return the groups of ranks that have equal entries in `of`. Local."""
        try:
            given = [index(each) for each in of]
        except TypeError:
            given = []
        if not given:
            raise ArgumentError(
                f"groups is {shown(of)}, and must be a sequence with the number of the group of "
                f"each rank, such as [0, 0, 1, 1]"
            )
        order = {each: number for number, each in enumerate(dict.fromkeys(given))}
        return cls(tuple(order[each] for each in given))

    @classmethod
    def sized(cls, sizes: Sequence[int]) -> Groups:
        """Return groups of consecutive ranks of these `sizes`. Local."""
        return cls(tuple(number for number, size in enumerate(sizes) for _ in range(size)))

    @classmethod
    def halves(cls, p: int) -> Groups:
        """Return two groups of consecutive ranks, the first one larger if `p` is odd. Local."""
        return cls.sized([-(-p // 2), p // 2])

    @property
    def p(self) -> int:
        """The number of ranks."""
        return len(self.of)

    @property
    def number(self) -> int:
        """The number of groups."""
        return len(self.members)

    @cached_property
    def members(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each group."""
        found: list[list[int]] = [[] for _ in range(max(self.of) + 1)]
        for rank, number in enumerate(self.of):
            found[number].append(rank)
        return tuple(map(tuple, found))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """The different numbers of ranks in a group, in rising order."""
        return tuple(sorted({len(each) for each in self.members}))

    @property
    def are_nested(self) -> bool:
        """True if there are several groups, and several ranks in one of them."""
        return self.number > 1 and self.sizes[-1] > 1

    @cached_property
    def are_consecutive(self) -> bool:
        """True if each group has consecutive ranks."""
        return list(self.of) == sorted(self.of)

    @cached_property
    def _steps(self) -> tuple[int, int] | None:
        """The distance from one group to the next, and from one rank of a group to the next, or
        None unless the groups are equally long and regular.
        """
        if len(self.sizes) > 1:
            return None
        (size,) = self.sizes
        for apart, step in ((size, 1), (1, self.number)):
            if all(
                ranks == tuple(range(number * apart, number * apart + size * step, step))
                for number, ranks in enumerate(self.members)
            ):
                return apart, step
        return None

    @cached_property
    def _places(self) -> tuple[tuple[int, int], ...]:
        found = [(0, 0)] * self.p
        for number, ranks in enumerate(self.members):
            for k, rank in enumerate(ranks):
                found[rank] = number, k
        return tuple(found)

    def place(self, r: int) -> tuple[int, int]:
        """Return the group of rank `r`, and the number of `r` in it. Local."""
        if self._steps is None:
            return self._places[r]
        # The simulation passes arrays of ranks, on which this arithmetic works, too.
        apart, step = self._steps
        if step == 1:
            return r // apart, r % apart
        return r % step, r // step

    def rank(self, group: int, number: int) -> int:
        """Return the rank that is the `number`-th of a `group`. Local."""
        if self._steps is None:
            return self.members[group][number]
        apart, step = self._steps
        return group * apart + number * step

    def __str__(self) -> str:
        lengths = [len(each) for each in self.members]
        if len(self.sizes) > 1:
            return f"groups of {', '.join(map(str, lengths))} ranks"
        return f"{count(self.number, 'group')} of {count(lengths[0], 'rank')}"
