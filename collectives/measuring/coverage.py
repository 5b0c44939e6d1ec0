"""The coverage of a profile: collectives, ranks, sizes, the state of the machine, date and MPI."""

from __future__ import annotations

from collections.abc import Iterator

from collectives.algorithms.spec import COLLECTIVES
from collectives.choice import profile
from collectives.choice.sections import Row, Section
from collectives.errors import ArgumentError
from collectives.measuring import state
from collectives.text.table import aligned
from collectives.text.words import count, size_text


def lines(file: str) -> Iterator[str]:
    """Yield the lines of ``collectives tune --show``. Local."""
    try:
        with open(file, encoding="utf-8") as stream:
            known = profile.parse(stream.read())
    except FileNotFoundError:
        raise ArgumentError(f"there is no profile {file}; collectives tune writes it") from None
    except (OSError, ValueError) as error:
        raise ArgumentError(
            f"the profile {file} cannot be read: {error}. Delete it, and write it anew with "
            f"collectives tune"
        ) from None
    yield f"The profile is {file}"
    here = (known.cpu, known.cores) == profile.machine()
    other = "" if here else f"; this machine is {' with '.join(_machine(*profile.machine()))}"
    yield f"of {' with '.join(_machine(known.cpu, known.cores))}{other}"
    for section in known.sections:
        yield ""
        yield f"{title(section)}: {summary(section)}"
        yield f"by {section.command or 'an unknown command'}"
        for p, numbers in sorted(section.parameters.items()):
            yield f"{count(p, 'rank')}: {numbers.text()}"
        yield from _table(section)


def _machine(cpu: str, cores: int) -> tuple[str, str]:
    return cpu or "an unknown processor", count(cores, "core")


def title(section: Section) -> str:
    """Return the transport of a `section`, and the date of its measurement. Local."""
    way = "shared memory" if section.transport == "shm" else section.library
    most = section.hosts.removeprefix("many of ")
    of = f" with up to {count(int(most), 'rank')} on each" if most.isdecimal() else ""
    hosts = "" if section.hosts == "one" else f", several hosts{of}"
    return f"{way}{hosts}, {section.date or 'no date'}"


def summary(section: Section) -> str:
    """Return the coverage of a `section`, as one line. Local."""
    names = [name for name in COLLECTIVES if name in section.rows]
    others = [name for name in section.rows if name not in names]  # with bits of their own
    names = ["all collectives"] if len(names) == len(COLLECTIVES) else names
    every = ", ".join(names + others)
    ranks = sorted({p for sizes in section.rows.values() for p in sizes})
    rows = [row for sizes in section.rows.values() for each in sizes.values() for row in each]
    learned = sum(len(each) for sizes in section.learned.values() for each in sizes.values())
    parts = [f"{every or 'no collectives'} on {_ranks(ranks)}", _sizes(rows), _state(section)]
    parts.append(f"{count(learned, 'setting')} learned" if learned else "")
    if section.transport == "shm" and section.library:
        parts.append(f"with {section.library}")
    return "; ".join(part for part in parts if part)


def _ranks(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return count(numbers[0], "rank")
    return f"{', '.join(map(str, numbers))} ranks" if numbers else "no ranks"


def _sizes(rows: list[Row]) -> str:
    """Return the smallest and the largest measured size."""
    sizes = [nbytes for row in rows for nbytes, _ in row.times if nbytes]
    if not sizes:
        return ""
    first, last = size_text(min(sizes)), size_text(max(sizes))
    return first if first == last else f"{first} to {last}"


def _state(section: Section) -> str:
    """Return whether the cores of ranks 0 and 1 were near to each other during the measurement."""
    names = {
        p: "/".join(dict.fromkeys(str(state.name(seconds)) for seconds in trips))
        for p, trips in sorted(section.round_trips.items())
    }
    if not names:
        return "state of the machine not recorded" if section.transport == "shm" else ""
    if len(set(names.values())) == 1:
        return f"cores {next(iter(names.values()))}"
    return "cores " + ", ".join(f"{each} on {p}" for p, each in names.items())


def _table(section: Section) -> list[str]:
    """Return a line for each collective: numbers of ranks, sizes, and algorithms."""
    table = [("collective", "ranks", "sizes", "algorithms")]
    for name, sizes in section.rows.items():
        rows = [row for p in sorted(sizes) for row in sizes[p]]
        chosen = ", ".join(dict.fromkeys(row.algorithm for row in rows))
        table.append((name, ", ".join(map(str, sorted(sizes))), _sizes(rows) or "-", chosen))
    return aligned(table, left=range(4))
