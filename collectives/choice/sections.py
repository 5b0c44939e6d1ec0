"""Sections of a profile: the measurements of one transport, and their form in the file.

The module `profile` describes the form.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple

from collectives.algorithms.groups import Groups
from collectives.choice.model import LENDS, MEMCPY, PAYLOADS, RESULTS, Parameters, fitted
from collectives.process.environment import MOST_BYTES

# The factor by which the measured number of ranks may differ from the actual one.
NEAR = 2.0

OPTIONAL = ("beta", "gamma", "gap")  # parameters that a file lacks where no number was found


class Row(NamedTuple):
    """The fastest algorithm up to a number of bytes.

    Attributes
    ----------
    limit : int or None
        Bytes; None if the row has no upper limit.
    algorithm : str
    segment : int
    times : tuple of (int, float)
        Bytes and seconds of the measured points.
    """

    limit: int | None
    algorithm: str
    segment: int
    times: tuple[tuple[int, float], ...] = ()

    def nearest(self, nbytes: int) -> tuple[int, float] | None:
        """Return the measured point nearest to `nbytes` on a logarithmic scale, if any. Local."""
        if not self.times:
            return None
        return min(self.times, key=lambda at: abs(math.log((1 + at[0]) / (1 + nbytes))))


class Learned(NamedTuple):
    """The settings that programs have learned for a class of calls in shared memory.

    Attributes
    ----------
    bits : int
        The number of bits of the size in bytes.
    ordered : bool
        Whether rank order must be kept.
    default : str
        The algorithm that is chosen without this entry.
    algorithm, segment, ways
        The fastest setting, as in a `Decision`.
    is_far : bool
        Whether cores were far from each other.
    seconds : float
    nbytes : int
        Bytes of the calls that took this time; 0 in older profiles.
    """

    bits: int
    ordered: bool
    default: str
    algorithm: str
    segment: int
    ways: int
    is_far: bool
    seconds: float
    nbytes: int = 0


@dataclass(frozen=True)
class Section:
    """The measurements of one transport.

    Attributes
    ----------
    transport, library : str
        The transport, as `Communicator.transport`, and the MPI library with its version.
    hosts : str
        The places of the ranks: ``"one"`` host, ``"many"`` hosts with one rank on each, or ``"many
        of 4"``, with up to 4 ranks on each.
    date, command : str
        The date of the last measurement, and the command.
    parameters : mapping of int to Parameters
        The parameters for each number of ranks.
    rows : mapping of str to mapping of int to tuple of Row
        The rows for each collective and number of ranks.
    round_trips : mapping of int to tuple of float
        For each number of ranks, the seconds of round trips of a flag during the last measurement.
    learned : mapping of str to mapping of int to tuple of Learned
        For each collective and number of ranks, the settings that programs have learned.
    """

    transport: str
    library: str
    hosts: str = "one"
    date: str = ""
    command: str = ""
    parameters: Mapping[int, Parameters] = field(default_factory=dict)
    rows: Mapping[str, Mapping[int, tuple[Row, ...]]] = field(default_factory=dict)
    round_trips: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    learned: Mapping[str, Mapping[int, tuple[Learned, ...]]] = field(default_factory=dict)

    def learned_of(self, collective: str, p: int, bits: int, ordered: bool) -> Learned | None:
        """Return the setting that was learned for a class of calls on `p` ranks, if any. Local."""
        every = self.learned.get(collective, {}).get(p, ())
        return next((each for each in every if each[:2] == (bits, ordered)), None)

    def row(
        self, collective: str, p: int, nbytes: int, within: float = NEAR
    ) -> tuple[int, Row] | None:
        """Return the measured number of ranks nearest to p, and its row for a size. Local.

        Parameters
        ----------
        collective : str
        p, nbytes : int
        within : float
            The factor by which the number of ranks may differ.
        """
        sizes = self.rows.get(collective, {})
        size = _nearest(sizes, p, within)
        if size is None:
            return None
        found = (row for row in sizes[size] if row.limit is None or nbytes <= row.limit)
        return next(((size, row) for row in found), None)

    def model(self, p: int) -> Parameters | None:
        """Return alpha, beta and gamma for the nearest number of ranks to `p`, if near. Local."""
        size = _nearest(self.parameters, p, NEAR)
        return None if size is None else self.parameters[size]

    def same_as(self, other: Section) -> bool:
        """Return whether `other` is of the same transport, hosts and MPI. Local.

        In shared memory, the MPI does not matter.
        """
        if self.transport != other.transport or self.hosts != other.hosts:
            return False
        return self.transport == "shm" or self.library == other.library


def hosts_of(groups: Groups) -> str:
    """Return the `hosts` of a section for ranks in `groups`, one for each host. Local."""
    if groups.number == 1:
        return "one"
    return "many" if groups.sizes[-1] == 1 else f"many of {groups.sizes[-1]}"


def _nearest(sizes: Mapping[int, Any], p: int, within: float) -> int | None:
    """Return the number nearest to p on a logarithmic scale, the larger of two equally near."""
    able = [size for size in sizes if size <= within * p and p <= within * size]
    return min(able, key=lambda size: (abs(math.log2(size / p)), -size), default=None)


def values_of(section: Section) -> dict[str, Any]:
    """Return a section as it is in a file. Local."""
    values: dict[str, Any] = {
        name: getattr(section, name)
        for name in ("transport", "library", "hosts", "date", "command")
    }
    values["parameters"] = {
        p: {name: _short(value) for name, value in known.measured().items()}
        for p, known in sorted(section.parameters.items())
    }
    if section.round_trips:
        trips = sorted(section.round_trips.items())
        values["round_trips"] = {p: [*map(_short, each)] for p, each in trips}
    values["rows"] = {
        name: {p: [_row_values(row) for row in rows] for p, rows in sorted(sizes.items())}
        for name, sizes in section.rows.items()
    }
    if section.learned:
        values["learned"] = {
            name: {p: [[*each] for each in every] for p, every in sorted(sizes.items())}
            for name, sizes in section.learned.items()
        }
    return values


def _row_values(row: Row) -> list[Any]:
    times = [[[nbytes, _short(seconds)] for nbytes, seconds in row.times]] if row.times else []
    return [row.limit, row.algorithm, row.segment, *times]


def _short(seconds: float) -> float:
    return float(f"{seconds:.4g}")


def section_of(values: dict[str, Any]) -> Section:
    """Read a section; a mistake in it raises an error, whose type depends on the mistake. Local."""
    origin = f"the profile of {values['date']}"
    parameters = {}
    for p, known in values["parameters"].items():
        beta, gamma, gap = (
            None if name not in known else _seconds(known[name]) for name in OPTIONAL
        )
        named = f"{origin}, {p} ranks"
        parameters[int(p)] = fitted(_seconds(known["alpha"]), beta, gamma, named, gap)
    rows: dict[str, dict[int, tuple[Row, ...]]] = {}
    for name, sizes in values["rows"].items():
        rows[str(name)] = {int(p): tuple(map(_row, listed)) for p, listed in sizes.items()}
    return Section(
        transport=str(values["transport"]),
        library=str(values["library"]),
        hosts=str(values["hosts"]),
        date=str(values["date"]),
        command=str(values["command"]),
        parameters=parameters,
        rows=rows,
        round_trips={
            int(p): tuple(map(_seconds, each)) for p, each in values.get("round_trips", {}).items()
        },
        learned={
            str(name): {int(p): tuple(map(_learned, every)) for p, every in sizes.items()}
            for name, sizes in values.get("learned", {}).items()
        },
    )


def _learned(values: list[Any]) -> Learned:
    found = Learned(*values)
    names, flags = (found.default, found.algorithm), (found.ordered, found.is_far)
    if not all(isinstance(each, str) for each in names):
        raise TypeError(f"{names} are not names of algorithms")
    if not all(isinstance(each, bool) for each in flags):
        raise TypeError(f"{flags} are not true or false")
    if not -1 <= int(found.ways) <= PAYLOADS | RESULTS | LENDS | MEMCPY:
        raise ValueError(f"{found.ways} is no way to store blocks")
    return found._replace(
        bits=_bytes(found.bits),
        segment=_bytes(found.segment),
        ways=int(found.ways),
        seconds=_seconds(found.seconds),
        nbytes=_bytes(found.nbytes),
    )


def _row(values: list[Any]) -> Row:
    limit, algorithm, segment, *rest = values
    if not isinstance(algorithm, str):
        raise TypeError(f"{algorithm!r} is not the name of an algorithm")
    times = tuple((_bytes(nbytes), _seconds(time)) for nbytes, time in rest[0]) if rest else ()
    return Row(None if limit is None else _bytes(limit), algorithm, _bytes(segment), times)


def _bytes(value: Any) -> int:
    if not 0 <= int(value) <= MOST_BYTES:
        raise ValueError(f"{value} is not a number of bytes")
    return int(value)


def _seconds(value: Any) -> float:
    if not isfinite(float(value)):
        raise ValueError(f"{value} is not a number of seconds")
    return float(value)
