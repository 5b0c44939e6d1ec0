"""The settings that the ranks tell each other when they make a communicator."""

from __future__ import annotations

from typing import NamedTuple

from collectives.errors import ArgumentError, CollectivesError, MismatchError
from collectives.process.settings import Settings, difference


class Wish(NamedTuple):
    """The settings that a rank tells the others when they make a communicator."""

    settings: Settings
    profile: tuple[int, str]  # see profile.offer
    problem: str  # with the settings

    @classmethod
    def read(cls, timeout: float | None, rank: int, bits: str | None = None) -> Wish:
        from collectives.choice import profile  # not when the package is imported

        try:
            return cls(Settings.read(timeout, bits), profile.offer(rank), "")
        except ArgumentError as error:
            return cls(Settings(), (0, ""), str(error))


def problem_of(wishes: list[Wish], mine: Wish) -> CollectivesError | None:
    """Return the error of ranks whose arguments allow no communicator, or None. Local."""
    for rank, each in enumerate(wishes):
        if each.problem:
            return ArgumentError(mine.problem or f"rank {rank}: {each.problem}")
    settings = [each.settings for each in wishes]
    differs = difference(settings)
    if differs:
        return ArgumentError(differs)
    differs = difference(settings, {"bits": "bits"})
    return MismatchError(differs) if differs else None
