"""Profiles: files with the algorithms that were measured to be the fastest, and their times.

A profile is a JSON file of this form, with one row per line::

    {"version": 1, "collectives": ..., "machine": {"cpu": ..., "cores": ...},
     "sections": [
      {"transport": "shm", "library": "MPICH 5.0.2", "hosts": "one", "date": ..., "command": ...,
       "parameters": {"2": {"alpha": ..., "beta": ..., "gamma": ...}},
       "round_trips": {"2": [9.1e-08, 9.3e-08]},
       "rows": {"allreduce": {"2": [[65535, "all_to_all", 0, [[8, 4.2e-07], [64, 4.4e-07]]],
                                    [null, "round_robin", 131072, [[262144, 2.1e-05]]]]}}}]}

Programs add what they have learned from their own calls in shared memory (`lessons`), for each
class of calls::

      "learned": {"allreduce": {"2": [[17, false, "round_robin", "ring", 0, 1, true, 1.2e-05]]}}

An entry has the number of bits of the size in bytes, whether rank order must be kept, the algorithm
that is chosen without the entry, the fastest algorithm, its segment, its way to store blocks,
whether cores were far from each other, and the seconds of a call.

A row has the largest number of bytes for which it holds (null: no limit), the fastest algorithm and
segment, and the bytes and seconds of each point at which they were measured. A parameter that could
not be fitted is left out. The round trips of a flag between two ranks, in seconds, show the state
of the machine during the measurement; older profiles do not have them. ``measured.json``, the table
that comes with the library, is a profile, too. All ranks of a communicator use the profile of its
rank 0, so that they make the same choices.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import re
import stat
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING, Any, NamedTuple

from collectives._version import __version__
from collectives.algorithms.groups import Groups
from collectives.choice.model import LENDS, PAYLOADS, RESULTS, Parameters, fitted
from collectives.errors import ArgumentError, ProfileWarning
from collectives.process import environment
from collectives.process.environment import MOST_BYTES
from collectives.text import files, logs
from collectives.text.origin import levels
from collectives.text.words import size_text

if TYPE_CHECKING:
    from collectives.process.meeting import Meeting

VERSION = 1
LARGEST = 16 << 20  # bytes of a file; a profile of all collectives has some 100 KB
LONGEST_LOCK = 10.0  # seconds to wait for other programs that write the file, each for some ms

# The factor by which the measured number of ranks may differ from the actual one.
NEAR = 2.0

FITTED = ("beta", "gamma")  # parameters that are left out if no number fits

MODES = ("probe", "online")  # of COLLECTIVES_TUNE


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
    """

    bits: int
    ordered: bool
    default: str
    algorithm: str
    segment: int
    ways: int
    is_far: bool
    seconds: float


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


@dataclass(frozen=True)
class Profile:
    """A profile as it is in a file.

    Attributes
    ----------
    cpu : str
    cores : int
        The machine that was measured.
    version : str
        The version of the library that wrote it.
    sections : tuple of Section
    """

    cpu: str
    cores: int
    version: str
    sections: tuple[Section, ...] = ()

    def section(self, transport: str, library: str, hosts: str) -> Section | None:
        """Return the section for ranks that communicate in this way, or None. Local.

        Parameters
        ----------
        transport, library, hosts : str
            As in a `Section`.
        """
        wanted = Section(transport, library, hosts)
        return next((each for each in self.sections if each.same_as(wanted)), None)

    def text(self) -> str:
        """Return the file's contents. Local."""
        document = {
            "version": VERSION,
            "collectives": self.version,
            "machine": {"cpu": self.cpu, "cores": self.cores},
            "sections": [_section_values(each) for each in self.sections],
        }
        return _json(document, "\n") + "\n"


def _section_values(section: Section) -> dict[str, Any]:
    """Return a section as it is in a file."""
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


def _json(value: Any, line: str) -> str:
    """Return JSON in which each row, and each object without others in it, is one line."""
    deeper = line + " "
    if isinstance(value, dict) and any(isinstance(each, dict | list) for each in value.values()):
        entries = [f'"{key}": {_json(each, deeper)}' for key, each in value.items()]
        return "{" + deeper + f",{deeper}".join(entries) + line + "}"
    if isinstance(value, list) and value and isinstance(value[0], dict | list):
        return "[" + deeper + f",{deeper}".join(_json(each, deeper) for each in value) + line + "]"
    import json

    return json.dumps(value)


def _short(seconds: float) -> float:
    return float(f"{seconds:.4g}")


def parse(text: str) -> Profile:
    """Read the `text` of a profile. Local."""
    import json

    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(document, dict) or "version" not in document:
        raise ValueError("it has no version")
    if document["version"] != VERSION:
        raise ValueError(
            f"it is of version {document['version']!r}, and this library reads version {VERSION}"
        )
    try:
        machine = document["machine"]
        sections = tuple(_section(each) for each in document["sections"])
        return Profile(
            str(machine["cpu"]), int(machine["cores"]), document["collectives"], sections
        )
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def _section(values: dict[str, Any]) -> Section:
    """Read a section; any mistake in it raises an error, whose type depends on the mistake."""
    origin = f"the profile of {values['date']}"
    parameters = {}
    for p, known in values["parameters"].items():
        beta, gamma = (None if name not in known else _seconds(known[name]) for name in FITTED)
        parameters[int(p)] = fitted(_seconds(known["alpha"]), beta, gamma, f"{origin}, {p} ranks")
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
    if not -1 <= int(found.ways) <= PAYLOADS | RESULTS | LENDS:
        raise ValueError(f"{found.ways} is no way to store blocks")
    return found._replace(
        bits=_bytes(found.bits),
        segment=_bytes(found.segment),
        ways=int(found.ways),
        seconds=_seconds(found.seconds),
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


def merged(known: Profile, section: Section) -> Profile:
    """Return `known` with its rows replaced by those of `section`. Local.

    Rows of other collectives and numbers of ranks are kept.
    """
    kept = [each for each in known.sections if not each.same_as(section)]
    before = [each for each in known.sections if each.same_as(section)]
    for old in before[:1]:
        rows = {name: {**sizes} for name, sizes in old.rows.items()}
        for name, sizes in section.rows.items():
            rows[name] = {**rows.get(name, {}), **sizes}
        parameters = {**old.parameters, **section.parameters}
        trips = {**old.round_trips, **section.round_trips}
        learned = {name: {**sizes} for name, sizes in old.learned.items()}
        for name, found in section.learned.items():
            for p, every in found.items():
                others = {each[:2]: each for each in learned.get(name, {}).get(p, ())}
                others.update((each[:2], each) for each in every)
                learned.setdefault(name, {})[p] = tuple(sorted(others.values()))
        section = replace(
            section if section.rows else old,  # a section of learned settings has no date
            rows=rows,
            parameters=parameters,
            round_trips=trips,
            learned=learned,
        )
    return replace(known, sections=(*kept, section))


def add(sections: Iterable[Section], file: str, *, mends: bool) -> None:
    """Merge `sections` into the profile in `file`. Local.

    Readers see the old or the new profile, and programs that add at the same time wait for each
    other. A file without a valid profile is replaced if `mends`, and otherwise left as it is.
    """
    os.makedirs(os.path.dirname(os.path.abspath(file)), exist_ok=True)
    with files.locked(file, LONGEST_LOCK):
        known = read(file) if os.path.exists(file) else Profile(*machine(), __version__)
        if known is None and not mends:
            return
        known = known or Profile(*machine(), __version__)
        for section in sections:
            known = merged(known, section)
        files.write(file, known.text())


# -- learned settings ----------------------------------------------------------------------------

_to_remember: dict[tuple[str, int], dict[tuple[int, bool], Learned]] = {}


def remember(collective: str, p: int, found: Learned) -> None:
    """Keep a setting that was learned in shared memory on `p` ranks for later programs. Local."""
    from collectives.process import abort  # which needs the core

    _to_remember.setdefault((collective, p), {})[found[:2]] = found
    abort.before_end(write_learned)


def write_learned() -> None:
    """Add the settings that this process has learned to the profile, if one is used. Local."""
    file = path()
    learned: dict[str, dict[int, tuple[Learned, ...]]] = {}
    for (collective, p), every in _to_remember.items():
        learned.setdefault(collective, {})[p] = tuple(every.values())
    _to_remember.clear()
    if file is None or not learned:
        return
    if environment.text("COLLECTIVES_PROFILE") and not _may_be_made(file):
        return  # the program has been warned
    # The program has been warned of errors in the file. If it cannot be written, the next program
    # learns the same again.
    with warnings.catch_warnings(), contextlib.suppress(OSError):
        warnings.simplefilter("ignore")
        add([Section("shm", "", learned=learned)], file, mends=False)
        logs.note("INFO", f"learned settings of {', '.join(learned)} are in the profile {file}")


# -- the file and its readers --------------------------------------------------------------------


@cache
def machine() -> tuple[str, int]:
    """Return the model of the processor and the number of cores. Local."""
    cores = os.cpu_count() or 1
    try:
        # The first processor comes first, and the kernel takes long to generate the whole file.
        with open("/proc/cpuinfo", "rb", buffering=0) as file:
            text = file.read(4096).decode(errors="replace")
    except OSError:
        text = ""
    match = re.search(r"^(?:model name|cpu model|Model)\s*:\s*(.*)$", text, re.MULTILINE)
    return (match[1].strip() if match else platform.machine()), cores


def path() -> str | None:
    """Return the path of the profile, which need not exist; None if no profile is used. Local."""
    named = environment.text("COLLECTIVES_PROFILE")
    if named is not None:
        return None if environment.is_no(named) else named
    folder = environment.text("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cpu, cores = machine()
    word = re.sub(r"[^a-z0-9]+", "-", cpu.lower()).strip("-")
    return os.path.join(folder, "collectives", f"profile-{word}-{cores}.json")


def read(file: str) -> Profile | None:
    """Return the profile in a `file`. Local.

    Return None if there is no such file. If the file has no valid profile, issue a
    `ProfileWarning` and return None.
    """
    return _load(file).profile


def _load(file: str) -> _Known:
    """Return the contents of a file, with the warnings of `read`."""
    try:
        # A pipe without a writer must not be waited for.
        with open(os.open(file, os.O_RDONLY | files.CLOEXEC | files.NONBLOCK), "rb") as stream:
            found = os.fstat(stream.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ValueError("it is not a regular file")
            if found.st_size > LARGEST:
                raise ValueError(
                    f"it has {size_text(found.st_size)}, and a profile has {size_text(LARGEST)} at "
                    f"most"
                )
            return _known_from(stream.read().decode())
    except FileNotFoundError:
        # The program makes the file at its end, if it has learned something, but not its folder.
        if os.environ.get("COLLECTIVES_PROFILE") == file and not _may_be_made(file):
            problem = "there is no such file, and it cannot be made"
            _warn(file, problem, "Name another with COLLECTIVES_PROFILE")
    except (OSError, ValueError) as error:
        _warn(file, str(error), "Delete it")
    return NOTHING


def _may_be_made(file: str) -> bool:
    return os.access(os.path.dirname(os.path.abspath(file)), os.W_OK | os.X_OK)


def _warn(file: str, problem: str, remedy: str) -> None:
    text = (
        f"the profile {file} is not used: {problem}. {remedy}, or write it anew with "
        f"`collectives tune`, or set COLLECTIVES_PROFILE=0"
    )
    logs.note("WARNING", text)
    warnings.warn(text, ProfileWarning, stacklevel=levels())


class _Known(NamedTuple):
    """The profile that this process knows: its text, the text's checksum, and the contents."""

    text: str
    checksum: int
    profile: Profile | None


NOTHING = _Known("", 0, None)

_known: _Known | None = None  # not read yet


def offer(rank: int) -> tuple[int, str]:
    """Return the checksum of the profile of `rank` and its ``COLLECTIVES_TUNE``. Local.

    The rank sends them to the other ranks of a new communicator. Only rank 0 reads a file, and only
    once in a process.
    """
    global _known
    if _known is None and rank == 0:
        file = path()
        _known = NOTHING if file is None else _load(file)
        if _known.profile is not None:
            logs.note("INFO", f"the profile {file} is used")
    word = environment.text("COLLECTIVES_TUNE") or ""
    if word != "0" and any(each not in MODES for each in word.split(",") if word):
        raise ArgumentError(
            f"COLLECTIVES_TUNE is {word!r}, and must be 0, {', '.join(MODES)}, or both with a comma"
        )
    return (0 if _known is None else _known.checksum), word


def agreed(meeting: Meeting, offers: Sequence[tuple[int, str]]) -> tuple[Profile | None, str]:
    """Return the profile and the mode of rank 0. Collective.

    Nothing is sent if there is no profile, or all ranks have the same one.
    """
    global _known
    wanted, mode = offers[0]
    if any(checksum != wanted for checksum, _ in offers):
        mine = NOTHING if _known is None else _known
        text = meeting.bcast(mine.text) if wanted else ""
        given = _known_from(text) if text else NOTHING
    else:
        given = NOTHING if _known is None else _known
    if _known is None:
        _known = given
    return given.profile, mode


def _known_from(text: str) -> _Known:
    return _Known(text, zlib.crc32(text.encode()) or 1, parse(text))
