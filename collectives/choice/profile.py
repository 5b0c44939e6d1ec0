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

      "learned": {"allreduce": {"2": [[17, false, "tree", "ring", 0, 1, true, 1.2e-05, 80000]]}}

A learned entry has the number of bits of the size in bytes, whether rank order must be kept, the
algorithm that is chosen without the entry, the fastest algorithm, its segment, its way to store
blocks, whether cores were far from each other, and the seconds and bytes of a call.

A row has the largest number of bytes for which it holds (null: no limit), the fastest algorithm and
segment, and the bytes and seconds of each point at which they were measured. A parameter that could
not be fitted is left out; between hosts, there is a "gap", too. The round trips of a flag between
two ranks, in seconds, show the state of the machine during the measurement; older profiles do not
have them. ``measured.json``, the table that comes with the library, is a profile, too. All ranks of
a communicator use the profile of its rank 0, so that they make the same choices.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import stat
import warnings
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from collectives._version import __version__
from collectives.choice.sections import Learned, Section, section_of, values_of
from collectives.errors import ArgumentError, ProfileWarning
from collectives.process import environment
from collectives.text import files, logs
from collectives.text.origin import levels
from collectives.text.words import size_text

if TYPE_CHECKING:
    from collectives.process.meeting import Meeting

VERSION = 1
LARGEST = 16 << 20  # bytes of a file; a profile of all collectives has some 100 KB
LONGEST_LOCK = 10.0  # seconds to wait for other programs that write the file, each for some ms

MODES = ("probe", "online")  # of COLLECTIVES_TUNE


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
            "sections": [values_of(each) for each in self.sections],
        }
        return _json(document, "\n") + "\n"


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
        sections = tuple(section_of(each) for each in document["sections"])
        return Profile(
            str(machine["cpu"]), int(machine["cores"]), document["collectives"], sections
        )
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


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
            section if section.rows else old,  # others have no date
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


# -- measurements of programs --------------------------------------------------------------------

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
    if file is not None and learned:
        _add_quietly(Section("shm", "", learned=learned), file)


def _add_quietly(section: Section, file: str) -> None:
    """Add a section to a profile if possible; the program has been warned of errors in the file."""
    if environment.text("COLLECTIVES_PROFILE") and not _may_be_made(file):
        return
    # If the file cannot be written, the next program measures the same again.
    with warnings.catch_warnings(), contextlib.suppress(OSError):
        warnings.simplefilter("ignore")
        add([section], file, mends=False)
        logs.note("INFO", f"measurements of {', '.join(section.learned)} are in the profile {file}")


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
