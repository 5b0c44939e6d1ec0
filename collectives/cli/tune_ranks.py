"""The ranks' side of ``collectives tune``: measure, and write the results after each point."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from collectives import Communicator, __version__
from collectives.algorithms.bits import row_name
from collectives.choice import profile
from collectives.choice.model import probe
from collectives.choice.profile import Profile
from collectives.choice.sections import Section, hosts_of
from collectives.cli import spawn
from collectives.measuring import state, tuning
from collectives.measuring.bench import Bench, mpi_of
from collectives.process import binding, environment
from collectives.text.progress import Bar

TIMEOUT = 300.0  # seconds after which a wait fails, unless the environment sets it


def main(
    options: argparse.Namespace, finish: Callable[[dict[str, Any]], None] | None = None
) -> int:
    """Measure; rank 0 writes the report to a file, or passes it to `finish`. Collective."""
    timeout = environment.seconds("COLLECTIVES_TIMEOUT", TIMEOUT)
    comm = Communicator(timeout=timeout, bits=options.bits)  # even if the environment sets others
    library = "" if binding.family(binding.load()) == "host" else comm._library
    mpi = mpi_of(comm)
    bench = Bench(comm, mpi)
    todo = tuning.points(options.collectives, options.begin, options.end, options.factor)
    first = comm.rank == 0
    bar = Bar(options.progress or sys.stderr.isatty(), first, lines=True)
    limit = options.limit or options.budget
    section = Section(
        comm.transport,
        library,
        hosts_of(comm._chooser.groups),
        time.strftime("%Y-%m-%d", time.gmtime()),
        shlex.join(["collectives", *_words(options)]),
        {comm.size: probe(comm)} if comm.size > 1 else {},
    )
    steps: list[tuning.TunedPoint] = []
    whole = sum(each.weight for each in todo)
    report: dict[str, Any] = {}
    trips = [state.round_trip(comm, mpi)]
    bar.show(0, f"{comm.size} ranks")
    for step in tuning.course(bench, todo, limit):
        if steps and step.point.collective != steps[-1].point.collective:
            trips.append(state.round_trip(comm, mpi))
        steps.append(step)
        done = sum(each.point.weight for each in steps) / whole
        bar.show(done, f"{comm.size} ranks, {step.point.collective}, {step.point.nbytes} bytes")
        if first:
            known = {comm.size: tuple(each for each in trips if each is not None)}
            now = replace(section, round_trips=known if known[comm.size] else {})
            report = _report(now, steps, len(todo), options)
            if options.child is not None:
                spawn.keep(options, report)
    bar.clear()
    if first and finish is not None and report:
        finish(report)
    return 0


def _words(options: argparse.Namespace) -> list[str]:
    """Return the words of the command line, without the options that only the ranks get."""
    words: list[str] = options.words
    return words[: words.index("--child")] if "--child" in words else words


def _report(
    section: Section, steps: list[tuning.TunedPoint], number: int, options: argparse.Namespace
) -> dict[str, Any]:
    """Return the results: a profile, the choices without it, and the number of points left."""
    ((p, _),) = section.parameters.items()
    found = tuning.rows(steps, options.factor)
    rows = {row_name(name, options.bits): {p: listed} for name, listed in found.items()}
    cpu, cores = profile.machine()
    known = Profile(cpu, cores, __version__, (replace(section, rows=rows),))
    defaults: dict[str, dict[str, Any]] = {}
    for step in steps:
        took = step.result.seconds[step.default]
        at = defaults.setdefault(row_name(step.point.collective, options.bits), {})
        at[str(step.point.nbytes)] = str(step.default).removesuffix("/0"), took
    measured = sum(step.point.weight > 0 for step in steps)
    return {"profile": known.text(), "defaults": defaults, "left": number - measured}
