"""``collectives run``: start a program on n ranks with the right launcher."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from collectives.cli import arguments, horovodrun
from collectives.errors import ArgumentError, BindingError
from collectives.launch import host_list, launcher, local, session
from collectives.launch.growing import Growing, Limits
from collectives.launch.host_list import Host
from collectives.launch.job import Job
from collectives.launch.several import Several
from collectives.process import abort, environment
from collectives.process import program as program_file

VALUED = {"-n", "-np", "--ranks", "--mpiexec", "--mpiexec-args", "--restarts"}
VALUED |= {"-H", "--hosts", "-hostfile", "--hostfile", "--num-proc"}
VALUED |= {"--min-np", "--min-num-proc", "--max-np", "--max-num-proc", "--host-discovery-script"}
VALUED |= {"--slots-per-host", "--slots", "--elastic-timeout", "--reset-limit"}

AS_HOROVOD = ["-m", "collectives.as_horovod"]

EPILOG = """\
An exception on one rank ends all ranks, so that the others do not wait for it. COLLECTIVES_ABORT=0
turns this off. Each rank runs the program as `python -m mpi4py` does, which also ends all ranks
after a non-zero `sys.exit`, and in programs that never import collectives. The command is replaced
by mpiexec, so exit status and signals are those of mpiexec. With --no-mpi, the command starts the
ranks itself, on this host or by ssh on the hosts of -H. Its exit status is that of the first rank
that fails.
"""


def add_launch(parser: argparse.ArgumentParser) -> None:
    """Add the options of every subcommand that starts ranks."""
    parser.add_argument(
        "--mpiexec", metavar="PATH", help="the launcher (default: the one of the MPI in use)"
    )
    parser.add_argument(
        "--mpiexec-args",
        metavar="ARGS",
        default="",
        help="additional arguments for mpiexec, in quotes",
    )


def add_no_mpi(parser: argparse.ArgumentParser) -> None:
    """Add the option of subcommands that can start ranks without MPI."""
    parser.add_argument("--no-mpi", action="store_true", help="start the ranks without MPI")


def library() -> launcher.Library:
    """Return the MPI library that mpi4py loads, for a command that has `--no-mpi`. Local."""
    try:
        return launcher.library()
    except BindingError as error:
        raise BindingError(f"{error}; or start the ranks without MPI: --no-mpi") from error


def check_launch(options: argparse.Namespace) -> None:
    """Check that options for mpiexec come without `--no-mpi`. Local."""
    if options.no_mpi and (options.mpiexec or options.mpiexec_args):
        raise ArgumentError("--mpiexec and --mpiexec-args have no meaning with --no-mpi")


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "run",
        help="start a program on n ranks",
        description="Start a Python program on n ranks, with the mpiexec of the MPI in use, or "
        "without MPI.",
        usage="collectives run -n N [options] (script.py | -m module | -c code) [args ...]",
        epilog=EPILOG,
    )
    parser.add_argument(
        "-n", "-np", "--ranks", "--num-proc", type=arguments.positive, help="number of ranks"
    )
    add_launch(parser)
    add_no_mpi(parser)
    parser.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS,...",
        help="with --no-mpi: start the ranks on these hosts, by ssh (default for -n: all slots)",
    )
    parser.add_argument(
        "-hostfile",
        "--hostfile",
        metavar="FILE",
        help="a file of hosts, instead of -H, with a line such as `host1 slots=2` for each host",
    )
    parser.add_argument(
        "--no-torch-variables",
        action="store_true",
        help="with --no-mpi: do not set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, "
        "GROUP_RANK, MASTER_ADDR and MASTER_PORT, which torchrun sets, too",
    )
    parser.add_argument(
        "--prefix", action="store_true", help="print the rank before each line of output"
    )
    parser.add_argument(
        "--elastic",
        action="store_true",
        help="let ranks continue when others are lost (without MPI, or with Open MPI)",
    )
    _add_growth(parser)
    parser.add_argument(
        "--restarts",
        type=arguments.positive,
        default=0,
        metavar="N",
        help="start the program again if it fails, at most N times",
    )
    _add_imports(parser)
    parser.add_argument(
        "--dry-run", action="store_true", help="print the command instead of running it"
    )
    parser.set_defaults(main=main)


def _add_imports(parser: argparse.ArgumentParser) -> None:
    """Add the options that change the imports of the program, and its arrays."""
    parser.add_argument(
        "--as-horovod",
        action="store_true",
        help="let this library provide `import horovod`, so that programs for it run unchanged; "
        "without -n, run a command, such as `bash script.sh`, that finds `horovodrun` on its PATH",
    )
    parser.add_argument(
        "--accelerate",
        action="store_true",
        help="run the collectives of MPI.COMM_WORLD, and of communicators made from it, in this "
        "library, so that programs for mpi4py run unchanged",
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="at the end, print how often rank 0 made each call, and how long these took: calls of "
        "this library and of mpi4py, by size",
    )
    parser.add_argument(
        "--shared-arrays",
        action="store_true",
        help="allocate NumPy's arrays in memory that the ranks of a host share, so that "
        "collectives need not copy them",
    )


def _add_growth(parser: argparse.ArgumentParser) -> None:
    """Add the options of jobs that grow, which are spelled as those of horovodrun."""
    parser.add_argument(
        "--host-discovery-script",
        metavar="COMMAND",
        help="with --no-mpi: run this command every second; it prints a line such as host1:2 for "
        "each host and its slots, and ranks join and leave as these change",
    )
    parser.add_argument(
        "--min-np",
        "--min-num-proc",
        metavar="N",
        type=arguments.positive,
        help="wait for new ranks while there are fewer than N (default: -n, or 1)",
    )
    parser.add_argument(
        "--max-np",
        "--max-num-proc",
        metavar="N",
        type=arguments.positive,
        help="start at most N ranks (default: all slots)",
    )
    parser.add_argument(
        "--slots-per-host",
        "--slots",
        metavar="N",
        type=arguments.positive,
        default=1,
        help="slots of a host that is listed without a number (default: 1)",
    )
    parser.add_argument(
        "--elastic-timeout",
        metavar="SECONDS",
        type=arguments.positive,
        default=600,
        help="end the job after this time with fewer than --min-np ranks (default: 600)",
    )
    parser.add_argument(
        "--reset-limit",
        metavar="N",
        type=arguments.positive,
        default=sys.maxsize,
        help="end the job when its ranks have changed more than N times (default: no limit)",
    )


# The option by which each launcher prints the rank before each line.
PREFIX = {"mpich": "-prepend-rank", "intel": "-prepend-rank", "openmpi": "--output tag"}


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Separate the words of the command from those of the program that it starts. Local.

    All words after a script, ``-m`` or ``-c`` belong to the program, even if they look like options
    of the command.
    """
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] not in ("-m", "-c", "--"):
        at += 2 if words[at] in VALUED else 1
    rest = at + 1 if words[at : at + 1] == ["--"] else at
    return list(words[:at]), list(words[rest:])


def joined(words: Sequence[str]) -> list[str]:
    """Join ``--mpiexec-args -l`` to one word, which argparse would take for two options. Local."""
    result: list[str] = []
    for word in words:
        if result and result[-1] == "--mpiexec-args":
            result[-1] += f"={word}"
        else:
            result.append(word)
    return result


def main(options: argparse.Namespace) -> int:
    """Replace this process by mpiexec, so that signals and the exit status need no forwarding.
    Without MPI, start the ranks.
    """
    program: list[str] = options.program
    if _is_command(options):
        return horovodrun.run(program)
    if program[:1] in (["python"], ["python3"]) and not os.path.exists(program[0]):
        del program[0]  # mpiexec and horovodrun need it
    arguments.check_program(program)
    hosts = _hosts(options)
    if sys.stdout is not None:
        sys.stdout.flush()
    shown = [f"{environment.ABORT}=0"] if options.elastic else []
    if options.shared_arrays:
        os.environ[environment.SHARED_ARRAYS] = "1"
        shown.append(f"{environment.SHARED_ARRAYS}=1")
    if options.report:
        os.environ[environment.REPORT] = "1"
        shown.append(f"{environment.REPORT}=1")
    if options.no_mpi:
        return _without_mpi(options, hosts, shown)
    lib = library()
    if options.elastic and lib.family != "openmpi":
        raise BindingError(
            f"{lib.name} ends the job when a rank is lost: --elastic needs Open MPI, or --no-mpi"
        )
    extra = options.mpiexec_args
    if options.prefix:
        extra = f"{PREFIX[lib.family]} {extra}"
    if options.elastic:
        os.environ[environment.ABORT] = "0"
        extra = f"--with-ft ulfm {extra}"
    # Only a runner detects the SystemExit of a program, and errors before it imports this library.
    runner: list[str] = []
    changes = [program_file.ACCELERATES] * options.accelerate
    changes += [program_file.REPORTS] * options.report
    if abort.wished() or changes:
        runner.append(program_file.__file__)
    for module in changes:
        runner += [program_file.WITH, module]
    if options.as_horovod:
        runner += AS_HOROVOD
    command = launcher.find(lib, options.mpiexec).command(
        options.ranks, [sys.executable, *runner, *program], extra
    )
    if options.dry_run:
        print(*shown, shlex.join(command))
        return 0
    if not options.restarts:
        os.execv(command[0], command)
    lost = session.LOST if lib.family == "openmpi" and not options.elastic else None
    return session.restarted(lambda: session.stand_in(command, lost), options.restarts)


def _is_command(options: argparse.Namespace) -> bool:
    """Return whether a command was given that calls `horovodrun` itself."""
    program: list[str] = options.program
    if not options.as_horovod or options.ranks or not program or _grows(options):
        return False
    is_python = program[0] in ("-m", "-c") or program[0].endswith(".py")
    is_python = is_python or os.path.basename(program[0]).startswith("python")
    if options.hosts or options.hostfile or is_python:
        return False
    others = [word for word in options.words[1:] if word != "--as-horovod"]
    if others:
        raise ArgumentError(
            f"{shlex.join(others)} would have no effect on a command that calls horovodrun: give "
            "options to horovodrun, or start a Python program with -n"
        )
    return True


def _hosts(options: argparse.Namespace) -> list[Host]:
    """Return the given hosts, and set the number of ranks if it was not given."""
    ways = {
        "-H": options.hosts,
        "--hostfile": options.hostfile,
        "--host-discovery-script": options.host_discovery_script,
    }
    given = [name for name, value in ways.items() if value]
    if len(given) > 1:
        raise ArgumentError(f"{' and '.join(given)} both name hosts: leave one of them out")
    if given and not options.no_mpi:
        raise ArgumentError(f"{given[0]} needs --no-mpi; name hosts for MPI in --mpiexec-args")
    if _grows(options) and not options.no_mpi:
        raise ArgumentError("--min-np and --max-np need --no-mpi")
    found: list[Host] = []
    if options.hosts or options.hostfile:
        read = host_list.listed if options.hosts else host_list.from_file
        found = read(options.hosts or options.hostfile)
    if _grows(options):
        return found
    if not given:
        if options.ranks is None:
            raise ArgumentError("run needs the number of ranks: -n N")
        return []
    hosts = host_list.filled(found, options.ranks)
    options.ranks = sum(host.slots for host in hosts)
    return [] if all(host.is_here for host in hosts) else hosts


def _grows(options: argparse.Namespace) -> bool:
    """Return whether ranks may join the job later."""
    return bool(options.host_discovery_script or options.min_np or options.max_np)


def _growing(options: argparse.Namespace, hosts: list[Host]) -> Growing:
    """Return a job whose ranks may join later."""
    least = options.min_np or options.ranks or 1
    first = options.ranks or least
    most = options.max_np or sys.maxsize
    if not least <= first <= most:
        ends = "" if options.max_np is None else f", and at most --max-np, which is {most}"
        raise ArgumentError(f"-n is {first}, and must be at least --min-np, which is {least}{ends}")
    if not (hosts or options.host_discovery_script):
        hosts = [Host("localhost", options.max_np or first)]
    limits = Limits(first, least, most, options.elastic_timeout, options.reset_limit)
    return Growing(options.host_discovery_script or hosts, options.slots_per_host, limits)


def _without_mpi(options: argparse.Namespace, hosts: list[Host], shown: Sequence[str]) -> int:
    """Start the ranks, or print their commands after the variables that are `shown`."""
    check_launch(options)
    if options.accelerate:
        raise ArgumentError("--accelerate is for programs that use mpi4py: leave --no-mpi out")
    program = [*AS_HOROVOD, *options.program] if options.as_horovod else options.program
    if not options.dry_run:

        def start() -> int:
            job: Job | None = None
            if _grows(options):
                job = _growing(options, hosts)
            elif hosts:
                job = Several(hosts, plain=options.no_torch_variables)
            is_elastic = options.elastic or _grows(options)
            return local.call(
                options.ranks,
                program,
                options.prefix,
                is_elastic,
                job,
                plain=options.no_torch_variables,
            )

        return session.restarted(start, options.restarts) if options.restarts else start()
    names = [f"{host.name}:" for host in hosts for _ in range(host.slots)]
    size = options.ranks or options.min_np or 1
    for rank in range(size):
        place = f"COLLECTIVES_RANK={rank}", f"COLLECTIVES_SIZE={size}"
        print(*names[rank : rank + 1], *shown, *place, shlex.join([sys.executable, *program]))
    return 0
