"""``collectives tune``: find the fastest algorithms on this machine, and write the profile."""

from __future__ import annotations

import argparse
import math
import os
from typing import Any

from collectives.algorithms.bits import ANY, BITS
from collectives.algorithms.spec import COLLECTIVES
from collectives.choice import profile
from collectives.choice.sections import Section
from collectives.cli import arguments, run, spawn
from collectives.errors import ArgumentError
from collectives.measuring import coverage
from collectives.measuring.operations import OPERATIONS
from collectives.process import environment
from collectives.text.table import aligned
from collectives.text.words import count, size_text, time_text

EPILOG = """\
The command measures with the MPI in use, and with the transport that the ranks use. With
COLLECTIVES_SHM=0, ranks of one host use MPI instead of shared memory; the profile has a separate
section for that. The command starts the ranks itself, for each n in turn. Started by mpiexec, it
measures on those ranks. It keeps entries of the profile for other collectives, numbers of ranks and
MPI libraries. After Ctrl-C, it writes the results so far. In the printed table, the time is that of
the largest size of a row, and the gain is the time of the choice without a profile divided by that
of the choice with the profile.
"""

# Seconds for the start and the end of the ranks, as a part of the budget.
STARTING = 2.0


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "tune",
        help="measure this machine, and write a profile for the choice of algorithms",
        description="Measure algorithms on this machine, and write the fastest of them to the "
        "profile, from which calls choose.",
        epilog=EPILOG,
    )
    add = parser.add_argument
    arguments.add_sizes(parser, ranks="2,4,8", end="16M")
    add(
        "--collectives",
        type=arguments.operations,
        metavar="NAME,...",
        help="collectives to measure (default: all)",
    )
    add(
        "--bits",
        choices=BITS,
        default=ANY,
        help="size: measure the algorithms for calls with bits='size', in collectives that reduce",
    )
    add(
        "--budget",
        type=float,
        metavar="SECONDS",
        default=150.0,
        help="time for everything (default: 150); with less time, each candidate has fewer calls",
    )
    add(
        "--profile",
        metavar="FILE",
        help="the profile to write (default: COLLECTIVES_PROFILE, or the profile of this machine)",
    )
    add("--show", action="store_true", help="print what the profile covers, and measure nothing")
    add("--dry-run", action="store_true", help="print the planned measurements, and write nothing")
    run.add_launch(parser)
    run.add_no_mpi(parser)
    spawn.add_child(parser)
    add("--limit", type=float, help=argparse.SUPPRESS)  # seconds of the ranks of one n
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Check the arguments; then spawn ranks, or measure if this process is a rank."""
    _check(options)
    if options.child is not None:
        from collectives.cli import tune_ranks

        return tune_ranks.main(options)
    file = options.profile or profile.path()
    if file is None:
        raise ArgumentError(
            "COLLECTIVES_PROFILE names no file to write; unset it, or pass --profile"
        )
    if options.show:
        print("\n".join(coverage.lines(file)))
        return 0
    if environment.is_rank():
        from collectives.cli import tune_ranks

        return tune_ranks.main(options, lambda report: _finish(file, [report]))
    options.ranks = options.ranks or [2, 4, 8]
    if options.dry_run:
        _plan(options, file)
        return 0
    return _spawn(options, file)


def _check(options: argparse.Namespace) -> None:
    if options.factor < 2:
        raise ArgumentError(f"--factor is {options.factor}, and must be at least 2")
    if options.begin < 1:
        raise ArgumentError(f"--begin is {options.begin}, and must be at least 1")
    if options.end < options.begin:
        raise ArgumentError(f"--end is {options.end} bytes, less than --begin, {options.begin}")
    if not options.budget > 0:
        raise ArgumentError(f"--budget is {options.budget:g}, and must be above 0")
    able = [name for name, each in COLLECTIVES.items() if options.bits == ANY or each.folds]
    if options.collectives in (None, list(COLLECTIVES)):
        options.collectives = able
    wrong = [name for name in options.collectives if name not in able]
    if wrong:
        mode = "" if options.bits == ANY else f" with --bits {options.bits}"
        raise ArgumentError(
            f"--collectives has {wrong[0]}, and must be of {', '.join(able)}, or all{mode}"
        )
    if options.ranks and min(options.ranks) < 2:
        raise ArgumentError("-n is 1, and one rank has nothing to choose; it must be at least 2")


def _plan(options: argparse.Namespace, file: str) -> None:
    """Print the planned measurement."""
    from collectives.measuring import candidates, tuning

    todo = tuning.points(options.collectives, options.begin, options.end, options.factor)
    library = "shared memory" if options.no_mpi else run.library().name
    print(f"{library}; {count(len(todo), 'point')} on each number of ranks:")
    for name in options.collectives:
        sizes = [size_text(each.nbytes) for each in todo if each.collective == name]
        print(f"  {name:<15} {', '.join(sizes) if OPERATIONS[name].moves else 'once'}")
    for n in options.ranks:
        names = sum(
            len(candidates.candidates(name, n, bits=options.bits)) for name in options.collectives
        )
        print(f"{count(n, 'rank')}: {count(names, 'algorithm')}, up to {_share(options, n):.0f} s")
    print(f"It would write {file}")


def _share(options: argparse.Namespace, n: int) -> float:
    """Return the seconds of the budget for n ranks."""
    seconds: float = options.budget * n / sum(options.ranks)
    return max(1.0, seconds - STARTING)


def _spawn(options: argparse.Namespace, file: str) -> int:
    """Start the ranks for each n, and add their results to the profile."""
    # Measure without a profile, and without settings that would change the measured calls.
    os.environ["COLLECTIVES_PROFILE"] = "0"
    for name in ("COLLECTIVES_TUNE", "COLLECTIVES_SEGMENT"):
        os.environ.pop(name, None)
    status, reports = spawn.on_each(options, 1, lambda n: ("--limit", str(_share(options, n))))
    if reports:
        _finish(file, reports)
    return status


def _finish(file: str, reports: list[dict[str, Any]]) -> None:
    """Write the profile, and print the choices."""
    sections = [profile.parse(report["profile"]).sections[0] for report in reports]
    for section, report in zip(sections, reports, strict=True):
        print("\n".join(_table(section, report)), flush=True)
    try:
        profile.add(sections, file, mends=True)
    except OSError as error:
        raise ArgumentError(f"the profile {file} cannot be written: {error}") from error
    if left := sum(report["left"] for report in reports):
        print(f"Not measured, because the time was up: {count(left, 'point')}; increase --budget")
    print(f"The profile is {file}")


def _table(section: Section, report: dict[str, Any]) -> list[str]:
    """Return the lines about one number of ranks."""
    where = "in shared memory" if section.transport == "shm" else f"through {section.transport}"
    ((p, known),) = section.parameters.items()
    library = f"{section.library}, " if section.library else ""
    lines = [f"# {library}{count(p, 'rank')} {where}", f"# {known.text()}"]
    table = [("collective", "up to", "algorithm", "without a profile", "time", "gain")]
    for name, sizes in section.rows.items():
        for row in sizes[p]:
            at = report["defaults"][name]
            without = dict.fromkeys(at[str(nbytes)][0] for nbytes, _ in row.times)
            gains = [at[str(nbytes)][1] / seconds for nbytes, seconds in row.times]
            cells = (
                name,
                "any" if row.limit is None else size_text(row.limit),
                f"{row.algorithm}/{size_text(row.segment)}" if row.segment else row.algorithm,
                ", ".join(without),
                time_text(row.times[-1][1]),
                f"{math.prod(gains) ** (1 / len(gains)):.2f}",
            )
            table.append(cells)
    return lines + aligned(table, left=(0, 2, 3))
