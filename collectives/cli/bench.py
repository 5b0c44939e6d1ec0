"""``collectives bench``: measure the algorithms, and compare them with MPI's own collectives."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from collectives import reductions
from collectives.algorithms.bits import BITS
from collectives.cli import arguments, bench_table, run, spawn
from collectives.errors import ArgumentError
from collectives.measuring import candidates
from collectives.measuring.operations import OPERATIONS
from collectives.picture import plots
from collectives.process import environment

EPILOG = f"""\
Operations: {", ".join(OPERATIONS)}; several separated by commas, or all for all collectives. Sizes
are bytes of the whole array: of the larger one, if input and output differ in size. The command
starts the ranks itself, for each n in turn. Started by mpiexec, or by collectives run --no-mpi, it
measures on those ranks. Without MPI, there are no times of MPI to compare with. In
operations that a rank can finish before others have begun (reduce, broadcast, gather, scatter,
scan, exscan), the time is measured until the last rank is done. With --peers and no operations, it
measures those that all peers have. The line below a table gives the distance of the cores of ranks
0 and 1: "near" means that a flag takes less than 250 ns from one to the other and back. The exit
status is 1 if an element was wrong.
"""

# The operations that gloo also has; --peers measures them by default.
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
        "bench",
        help="measure algorithms and compare them with MPI's own",
        description="Measure algorithms, and compare them with MPI's own collectives.",
        epilog=EPILOG,
    )
    parser.add_argument(
        "operations",
        type=arguments.operations,
        nargs="?",
        metavar="operation,...",
        help="collectives to measure: allreduce, allgather, ..., or all",
    )
    arguments.add_sizes(parser, ranks="2", end="64M")
    _add_call(parser)
    _add_measurement(parser)
    _add_output(parser)
    arguments.add_load(parser)
    run.add_launch(parser)
    run.add_no_mpi(parser)
    spawn.add_child(parser)
    parser.set_defaults(main=main)


def _add_call(parser: argparse.ArgumentParser) -> None:
    """Add the options of the calls."""
    add = parser.add_argument
    add("--dtype", default="float32", help="dtype of the arrays (default: float32)")
    add("--op", default="sum", help="sum, prod, min, max, avg, land, ... (default: sum)")
    add("--root", type=int, default=0, help="root of a rooted collective (default: 0)")
    add(
        "--algorithm",
        default="auto",
        help="auto (default), textbook (all but the literature of collectives list), all, or names "
        "separated by commas",
    )
    add(
        "--bits",
        choices=BITS,
        help="size: in operations that reduce, also measure the library's choice with bits='size', "
        "with which the bits of an element do not depend on the size of the array",
    )
    add(
        "--segment",
        type=arguments.nbytes,
        metavar="SIZE",
        help="size of a segment in bytes (default: the library's choice)",
    )
    add(
        "--buffers",
        choices=("private", "shared"),
        default="private",
        help="memory for the arrays of the library's calls (default: private); shared: memory of "
        "Communicator.empty",
    )


def _add_measurement(parser: argparse.ArgumentParser) -> None:
    """Add the options of the measurement."""
    add = parser.add_argument
    add(
        "--warmup",
        type=arguments.positive,
        default=3,
        help="iterations before the first batch (default: 3)",
    )
    add(
        "--iters",
        type=arguments.positive,
        help="iterations in a batch (default: as many as take about 30 ms)",
    )
    add(
        "--repeat",
        type=arguments.positive,
        default=5,
        help="number of batches of each algorithm (default: 5)",
    )
    add(
        "--check",
        type=int,
        choices=(0, 1),
        default=1,
        help="verify results (1, the default) or not (0)",
    )
    add(
        "--prune",
        type=float,
        metavar="X",
        help="leave out algorithms that take more than X times the time of the fastest",
    )
    add(
        "--peers",
        action="store_true",
        help="also measure torch.distributed with gloo (if torch is installed), and the time of "
        "copying as many bytes",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    """Add the options of the output and the files."""
    add = parser.add_argument
    add(
        "--markdown",
        action="store_true",
        help="also print a table of all times divided by MPI's; with --peers a table of each "
        "operation, too",
    )
    add("--json", metavar="FILE", help="also write all results to this file")
    add("--plot", metavar="FILE.png", help="also write a plot to this file (needs matplotlib)")


def main(options: argparse.Namespace) -> int:
    """Check the arguments; then spawn ranks, or measure if this process is a rank."""
    arguments.load(options.load)
    _check(options)
    if environment.is_rank():
        from collectives.cli import bench_ranks

        return bench_ranks.main(options)
    options.ranks = options.ranks or [2]
    for n in options.ranks:
        for name in options.operations:
            candidates.chosen(options.algorithm, name, n)
    status, reports = spawn.on_each(options, len(options.ranks))
    if len(reports) < len(options.ranks):
        return status
    return bench_table.finish(options, [bench_table.read(each) for each in reports])


def _check(options: argparse.Namespace) -> None:
    if options.operations is None:
        if not options.peers:
            raise ArgumentError(
                f"name the collectives to measure: all, or one of {', '.join(OPERATIONS)}"
            )
        options.operations = list(COMMON)
    if options.factor < 2:
        raise ArgumentError(f"--factor is {options.factor}, and must be at least 2")
    if options.end < options.begin:
        raise ArgumentError(f"--end is {options.end} bytes, less than --begin, {options.begin}")
    if options.prune is not None and not options.prune >= 1:
        raise ArgumentError(f"--prune is {options.prune:g}, and must be at least 1")
    has_mpi = not (options.no_mpi or environment.has_rendezvous())
    if options.markdown and not (has_mpi or options.peers):
        raise ArgumentError(
            "--markdown prints times divided by MPI's, and there is no MPI; with --peers, it also "
            "prints those of gloo"
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
        plots.check()


def _check_folds(options: argparse.Namespace) -> None:
    """Check the reduction and the dtype, if an operation folds."""
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
