"""The findings of ``collectives doctor`` about the hosts of a job, and their network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from collectives.measuring.survey import Host, Pair, Survey
from collectives.text.table import aligned
from collectives.text.words import count, grouped, named, ranks, size_text, spans, time_text

SHOWN = 28  # lines of a table; of a longer one, the worst lines
ERRORS = 5  # errors of ranks, which may differ by the number of the rank

CLOCKS = 1.0  # seconds by which clocks may differ
SLOW = 0.5  # of the highest bandwidth: with few pairs, one slow host slows most of them
SPARE = 64  # descriptors in addition to those of connections
LOCKED = 64 << 20  # bytes of locked memory for networks that need it
FREE = 32 << 20  # bytes of /dev/shm


class Finding(NamedTuple):
    """A fact, or a problem and its remedy.

    Attributes
    ----------
    name, text : str
        The subject, and the finding.
    remedy : str or None
        None if there is no problem.
    """

    name: str
    text: str
    remedy: str | None = None


def findings(found: Survey) -> Iterator[Finding]:
    """Yield the findings of a survey of a job. Local."""
    known = {rank: facts for rank, facts in enumerate(found.facts) if facts is not None}
    text = f"{count(len(found.facts), 'rank')} on {count(len(found.hosts), 'host')}"
    yield Finding("job", text)
    if found.lost:
        yield Finding(
            "ranks",
            f"{named(sorted(found.lost))} did not answer",
            "look at the lines above, and at their processes: py-spy dump --pid N",
        )
    yield from _versions(known)
    yield from _variables(known)
    yield from _ucx(found, known)
    yield from _hosts(found, known)
    yield from _pairs(found)
    yield from _calls(found)


def _versions(known: dict[int, dict[str, Any]]) -> Iterator[Finding]:
    """Yield the versions of the ranks."""
    alike = []
    for name in known[0]["versions"]:
        values = grouped((r, facts["versions"].get(name, "unknown")) for r, facts in known.items())
        if len(values) == 1:
            version = next(iter(values)).partition(",")[0]
            alike.append(version if name == "MPI" else f"{name} {version}")
        else:
            yield Finding(
                "versions",
                f"{name} is {_told(values)}",
                "install the same version on all hosts",
            )
    if alike:
        yield Finding("versions", f"{', '.join(alike)} on all ranks")


def _variables(known: dict[int, dict[str, Any]]) -> Iterator[Finding]:
    """Yield the variables that differ between ranks, and those that select MPI's network."""
    for name in sorted({name for facts in known.values() for name in facts["variables"]}):
        values = grouped((r, facts["variables"].get(name, "not set")) for r, facts in known.items())
        if len(values) > 1:
            yield Finding(
                "environment",
                f"{name} is {_told(values)}",
                f"set it on all ranks: mpiexec -x {name} with Open MPI, -genv {name} VALUE with "
                f"MPICH",
            )
    for name in sorted({name for facts in known.values() for name in facts["network"]}):
        values = grouped((r, facts["network"].get(name, "not set")) for r, facts in known.items())
        yield Finding("network", f"{name} is {_told(values)}")


def _ucx(found: Survey, known: dict[int, dict[str, Any]]) -> Iterator[Finding]:
    """Yield the version of UCX that sends messages between hosts without MPI."""
    for host in found.hosts:
        told = known[host.ranks[0]].get("ucx")
        if told and told["devices"]:
            yield Finding("UCX", f"{host.name}: {told['file']}, {', '.join(told['devices'])}")
        elif told:
            yield Finding(
                "UCX",
                f"{host.name}: {told['file']} has no device for other hosts",
                "unset UCX_TLS and UCX_NET_DEVICES, or name devices that ucx_info -d shows",
            )


def _hosts(found: Survey, known: dict[int, dict[str, Any]]) -> Iterator[Finding]:
    """Yield a table of the hosts, and the problems of their limits and clocks."""
    clocks = {pair.hosts[1]: pair.measured for pair in found.pairs if pair.hosts[0] == 0}
    rows = [["host", "ranks", "cores", "CPU limit", "memlock", "files", "/dev/shm", "clock"]]
    problems = []
    for number, each in enumerate(found.hosts):
        limits = known[each.ranks[0]]["limits"]
        cores = len({core for rank in each.ranks for core in known[rank]["limits"]["cores"]})
        shm = limits["shm"]
        rows.append(
            [
                each.name,
                spans(each.ranks),
                str(cores),
                "none" if limits["quota"] is None else f"{limits['quota']:g} CPUs",
                _limit(limits["memlock"], size_text),
                _limit(limits["files"], str),
                "none" if shm is None else f"{size_text(shm[1])} of {size_text(shm[0])}",
                _clock(clocks.get(number), number),
            ]
        )
        wrong = [
            *_limit_problems(each, known[each.ranks[0]], len(found.facts)),
            *_clock_problems(each, clocks.get(number)),
        ]
        problems += [(number, finding) for finding in wrong]
    worst = {number for number, _ in problems}
    yield from _table("hosts", rows, sorted(range(len(found.hosts)), key=lambda n: n not in worst))
    for _, finding in problems:
        yield finding


def _limit_problems(host: Host, facts: dict[str, Any], size: int) -> Iterator[Finding]:
    limits = facts["limits"]
    if limits["files"] is not None and limits["files"] < size + SPARE:
        yield Finding(
            "limits",
            f"{host.name}: {limits['files']} open files are few for connections to {size} ranks",
            "ulimit -n 65536, in the job script or in /etc/security/limits.conf",
        )
    if limits["quota"] is not None and limits["quota"] < len(host.ranks):
        yield Finding(
            "limits",
            f"{host.name}: its control group grants the time of {limits['quota']:g} CPUs to "
            f"{count(len(host.ranks), 'rank')}, which are stopped when it is used up",
            "ask for as many CPUs as ranks, or start fewer ranks",
        )
    if facts.get("rdma") and limits["memlock"] is not None and limits["memlock"] < LOCKED:
        yield Finding(
            "limits",
            f"{host.name}: {size_text(limits['memlock'])} of memory may be locked, and "
            f"{facts['rdma'][0]} needs more",
            "ulimit -l unlimited, also for the service that starts ranks (LimitMEMLOCK)",
        )
    if limits["shm"] is None or limits["shm"][1] < FREE:
        yield Finding(
            "limits",
            f"{host.name}: MPI may die in a /dev/shm that is too small",
            "delete old files; docker run --shm-size=1g; emptyDir with medium: Memory",
        )


def _clock_problems(host: Host, measured: dict[str, float] | None) -> Iterator[Finding]:
    if measured and abs(measured["clock"]) > CLOCKS + measured["clock_error"]:
        how = "ahead of" if measured["clock"] > 0 else "behind"
        yield Finding(
            "clocks",
            f"{host.name}: its clock is {_seconds(measured['clock'])} {how} that of rank 0",
            "have chrony or systemd-timesyncd set the clocks of all hosts",
        )


def _pairs(found: Survey) -> Iterator[Finding]:
    """Yield a table of the pairs of hosts, and the slow and silent ones."""
    measured = [pair for pair in found.pairs if pair.measured]
    if measured:
        rows = [["hosts", "through", "latency", "there", "back"]]
        rows += [
            [
                f"{found.hosts[pair.hosts[0]].name} to {found.hosts[pair.hosts[1]].name}",
                _way(pair.through),
                time_text(pair.measured["latency"]),
                *(f"{pair.measured[way] / 1e9:.3g} GB/s" for way in ("there", "back")),
            ]
            for pair in measured
        ]
        order = sorted(range(len(measured)), key=lambda n: _rate(measured[n]))
        yield from _table("pairs", rows, order)
    rates = [pair.measured[way] for pair in measured for way in ("there", "back")]
    highest = max(rates, default=0.0)
    for pair in found.pairs:
        names = " and ".join(found.hosts[number].name for number in pair.hosts)
        if pair.problem is not None:
            yield Finding(
                "pairs",
                f"{names}: {pair.problem}",
                "look for a firewall, a cut link, or an interface that only some hosts have "
                "(UCX_NET_DEVICES with MPICH and UCX, --mca btl_tcp_if_include with Open MPI)",
            )
        elif _rate(pair) < SLOW * highest and not pair.through["here"]:
            yield Finding(
                "pairs",
                f"{names}: {_rate(pair) / 1e9:.3g} GB/s, and the highest bandwidth of all pairs is "
                f"{highest / 1e9:.3g} GB/s",
                "look at their cables, switch ports and interfaces, and who else uses them",
            )


def _calls(found: Survey) -> Iterator[Finding]:
    """Yield whether a communicator of all ranks can be used."""
    if found.calls is None:
        yield Finding("allreduce", "left out because of the problems above")
        return
    wrong = grouped((r, told["wrong"]) for r, told in enumerate(found.calls) if told is not None)
    kinds = sorted({told["memory"] or "none" for told in found.calls if told is not None})
    errors = [(text, mask) for text, mask in wrong.items() if text is not None]
    for text, mask in errors[:ERRORS]:
        yield Finding("allreduce", f"{ranks(mask)}: {text}", "correct this, then try again")
    if len(errors) > ERRORS:
        yield Finding("allreduce", f"... and {count(len(errors) - ERRORS, 'other error')}")
    if set(wrong) == {None} and all(found.calls):
        text = f"right on {count(len(found.calls), 'rank')}, shared memory: {', '.join(kinds)}"
        yield Finding("allreduce", text)


def _table(name: str, rows: list[list[str]], worst: list[int]) -> Iterator[Finding]:
    """Yield the lines of a table; of a long one, the worst `SHOWN`."""
    shown = sorted(worst[:SHOWN])
    for line in aligned([rows[0], *(rows[1 + number] for number in shown)], left=range(2)):
        yield Finding(name, line)
    if len(shown) < len(worst):
        yield Finding(name, f"... and {len(worst) - len(shown)} more, which are no worse")


def _told(values: dict[str, int]) -> str:
    if len(values) == 1:
        return f"{next(iter(values))} on all ranks"
    return ", ".join(f"{value} on {ranks(mask)}" for value, mask in values.items())


def _limit(value: int | None, write: Callable[[Any], str]) -> str:
    return "unlimited" if value is None else write(value)


def _clock(measured: dict[str, float] | None, number: int) -> str:
    if not measured:
        return "here" if number == 0 else "unknown"
    if abs(measured["clock"]) <= measured["clock_error"]:
        return f"within {time_text(measured['clock_error'], 2)}"
    return f"{'+' if measured['clock'] > 0 else '-'}{_seconds(measured['clock'])}"


def _seconds(clock: float) -> str:
    """Write the error of a clock, which may be hours."""
    return time_text(abs(clock)) if abs(clock) < 1000 else f"{abs(clock):.0f} s"


def _rate(pair: Pair) -> float:
    """Return the lower of the two bandwidths."""
    return min(pair.measured.get("there", 0.0), pair.measured.get("back", 0.0))


def _way(through: dict[str, Any]) -> str:
    """Write the known route of messages from one host to another."""
    if through["here"]:
        return "this machine"
    ways = [_ends(way) for way in through["tcp"]]
    told = [f"TCP, {ways[0]}"] if ways else []
    if len(ways) > 1:
        told = [f"{told[0]} and {len(ways) - 1} more"]
    told += through["devices"]
    if not told and through["route"] is not None:
        told = [f"no TCP; the route is {_ends(through['route'])}"]
    return ", ".join(told) or "unknown"


def _ends(way: list[str]) -> str:
    here, name, there, other = way
    return f"{name or 'unknown'} {here} to {other} {there}"
