"""``collectives bench``: measure the algorithms beside MPI's own collectives."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from collectives import reductions
from collectives.cli import arguments, run, spawn, tables
from collectives.errors import ArgumentError, CollectivesError
from collectives.launch import launcher
from collectives.measuring import candidates
from collectives.measuring.operations import OPERATIONS
from collectives.picture import figures

__all__ = ["add_parser"]

EPILOG = f"""\
Operations: {", ".join(OPERATIONS)}; several with commas between, or all of the collectives. Sizes
are bytes of the whole array: the larger side, where input and output differ. Starts the ranks
itself, for each n in turn; under an mpiexec that is already there, it measures on those ranks.
Where a rank could be done before others have begun (reduce, broadcast, gather, scatter, scan,
exscan), a time lasts until the last one is done. --peers without operations measures those that
all peers have. The line below a table says whether ranks 0 and 1 share a cache: near, if a flag
goes from one to the other and back in less than 250 ns. The exit status is 1 if an element was
wrong.
"""

# What gloo has, too: the operations of --peers where none is named.
COMMON = (
    "allreduce",
    "broadcast",
    "reduce",
    "allgather",
    "reduce_scatter",
    "alltoall",
    "barrier",
)


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "bench", help="measure algorithms beside MPI's own", description=__doc__, epilog=EPILOG
    )
    add = parser.add_argument
    add(
        "operations",
        type=arguments.operations,
        nargs="?",
        metavar="operation,...",
        help="what to measure: allreduce, allgather, ..., or all",
    )
    add("-n", "--ranks", type=arguments.counts, metavar="N,...", help="ranks (default: 2)")
    add("-b", "--begin", type=arguments.nbytes, default=8, metavar="SIZE", help="default: 8")
    add("-e", "--end", type=arguments.nbytes, default=64 << 20, metavar="SIZE", help="default: 64M")
    add(
        "-f",
        "--factor",
        type=arguments.positive,
        help="between sizes (default: 4; with --consistency 2)",
    )
    add("--dtype", default="float32", help="default: float32")
    add("--op", default="sum", help="sum, prod, min, max, avg, land, ... (default: sum)")
    add("--root", type=int, default=0, help="root of a rooted collective")
    add("--algorithm", default="auto", help="auto (default), all, or names with commas between")
    add("--segment", type=arguments.nbytes, metavar="SIZE", help="bytes of a segment")
    add(
        "--buffers",
        choices=("private", "shared"),
        default="private",
        help="where the arrays of the library's calls are; shared: in memory of Communicator.empty",
    )
    add("--warmup", type=arguments.positive, default=3, help="iterations before all (default: 3)")
    add("--iters", type=arguments.positive, help="iterations in a block (default: about 30 ms)")
    add("--repeat", type=arguments.positive, default=5, help="blocks of each (default: 5)")
    add("--check", type=int, choices=(0, 1), default=1, help="0: do not verify results")
    add("--prune", type=float, metavar="X", help="leave out what takes X times the fastest's time")
    add(
        "--peers",
        action="store_true",
        help="beside MPI's own, measure torch.distributed with gloo (if torch is installed) and "
        "how long copying as many bytes takes",
    )
    add(
        "--markdown",
        action="store_true",
        help="print a table of all times over MPI's, too; with --peers one of each operation",
    )
    add(
        "--consistency",
        action="store_true",
        help="say where an operation takes longer than others that would do its work",
    )
    add("--tolerance", type=float, default=1.1, metavar="X", help="of --consistency (default: 1.1)")
    add("--json", metavar="FILE", help="write everything to a file, too")
    add("--plot", metavar="FILE.png", help="draw it (needs matplotlib)")
    arguments.add_load(parser)
    run.add_launch(parser)
    spawn.add_child(parser)
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Check the arguments; then spawn ranks, or measure if this is one."""
    arguments.load(options.load)
    _check(options)
    if launcher.inside():
        from collectives.cli import bench_ranks

        return bench_ranks.main(options)
    options.ranks = options.ranks or [2]
    for n in options.ranks:
        for name in options.operations:
            candidates.chosen(options.algorithm, name, n)
    return _spawn(options)


def _check(options: argparse.Namespace) -> None:
    if options.operations is None:
        if not options.consistency and not options.peers:
            raise ArgumentError(f"say what to measure: all, or one of {', '.join(OPERATIONS)}")
        options.operations = list(OPERATIONS if options.consistency else COMMON)
    if options.factor is None:
        options.factor = 2 if options.consistency else 4
    if options.factor < 2:
        raise ArgumentError(f"--factor is {options.factor}, and must be at least 2")
    if options.end < options.begin:
        raise ArgumentError(f"--end is {options.end} bytes, less than --begin, {options.begin}")
    for name, value in (("--prune", options.prune), ("--tolerance", options.tolerance)):
        if value is not None and not value >= 1:
            raise ArgumentError(f"{name} is {value:g}, and must be at least 1")
    if options.consistency and options.algorithm != "auto":
        raise ArgumentError(
            "--consistency measures what the library chooses; leave --algorithm out"
        )
    _check_folds(options)
    contracts = [OPERATIONS[name].contract for name in options.operations]
    if options.root and not any(contract.rooted for contract in contracts):
        raise ArgumentError(
            f"--root is {options.root}, but {' and '.join(options.operations)} has no root"
        )
    for n in options.ranks or []:
        if not 0 <= options.root < n:
            raise ArgumentError(f"--root is {options.root}, and must be below {n}, the ranks")
    for path in filter(None, (options.json, options.plot)):
        if not Path(path).absolute().parent.is_dir():
            raise ArgumentError(f"{path}: there is no such folder")
    if options.plot:
        figures.check()


def _check_folds(options: argparse.Namespace) -> None:
    """Check operation and dtype, where something is folded."""
    known = {each.name.lower(): each for each in reductions.ALL}
    if options.op.lower() not in known:
        raise ArgumentError(f"--op is {options.op!r}, and must be one of {', '.join(known)}")
    op = known[options.op.lower()]
    options.op = op.name
    folding = [name for name in options.operations if OPERATIONS[name].reduces]
    scans = [name for name in folding if name in ("scan", "exscan")]
    if op.average and scans:
        raise ArgumentError(f"--op is avg, which {scans[0]} does not take: it folds fewer ranks")
    if folding and options.dtype not in op.dtypes():
        raise ArgumentError(
            f"--dtype is {options.dtype!r}, and must be one of {', '.join(op.dtypes())} for --op "
            f"{options.op.lower()}"
        )


def _spawn(options: argparse.Namespace) -> int:
    """Start the ranks for each n, and put their reports together."""
    starter = launcher.find(launcher.library(), options.mpiexec)
    reports = []
    for n in options.ranks:
        status, report = spawn.spawn(starter, n, options.words, options.mpiexec_args)
        if report is None and status >= 128:
            return status
        if report is None:
            raise CollectivesError(f"the {n} ranks ended without a result, exit status {status}")
        reports.append(report)
    return tables.finish(options, reports)
