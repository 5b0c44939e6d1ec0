"""The launcher: the ``mpiexec`` that belongs to the MPI that mpi4py loads.

A launcher of another MPI is a common mistake: it starts n programs each of which is the only rank,
or it aborts. So this module determines the family of the library and of every candidate, and uses
only a launcher of the same family.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from collectives.errors import BindingError
from collectives.process import binding

NAMES = {"mpich": "MPICH", "openmpi": "Open MPI", "intel": "Intel MPI", "other": "another MPI"}

# Arguments and variables of jobs on other hosts: the number of cores of this host does not matter
# for these.
HOSTS = {"-f", "-hosts", "-host", "--host", "-H", "-hostfile", "--hostfile", "-machinefile"}
HOSTS |= {"--machinefile", "--hosts", "-machine"}
BATCH = ("SLURM_JOB_NODELIST", "PBS_NODEFILE", "LSB_HOSTS", "PE_HOSTFILE")

# The MPI operator of Kubernetes names the hosts here; Open MPI does not read it from version 5 on.
HOSTFILE = "OMPI_MCA_orte_default_hostfile"

# Open MPI 5 detects a cut link to a host by these: it sends a probe after 30 s of silence, then
# every 10 s, and gives up after 9 probes without an answer. By default it takes eight minutes.
KEEPALIVE = "oob_tcp_keepalive"
KEEPALIVES = {"time": "30", "intvl": "10", "probes": "9"}


def rank_program(code: str) -> list[str]:
    """Return the command with which each rank runs `code`. Local.

    The ranks import the package that this process has imported, even if there is another one in the
    current folder (for example a source tree that is not built). An exception on one rank ends all
    of them.
    """
    return [sys.executable, "-m", "mpi4py", *code_words(code)]


def code_words(code: str) -> list[str]:
    """Return the arguments with which Python runs `code` with this package. Local."""
    home = str(Path(__file__).resolve().parents[2])
    return ["-c", f"import sys; sys.path.insert(0, {home!r})\n{code}"]


@dataclass(frozen=True)
class Library:
    """The MPI library that mpi4py loads: its name, its family, and its file, if known."""

    name: str
    family: str
    path: str | None


@dataclass(frozen=True)
class Launcher:
    """An ``mpiexec``, and the MPI library that it belongs to."""

    path: str
    library: Library

    def command(self, n: int, program: Sequence[str], extra: str = "") -> list[str]:
        """Return the command that runs `program` on `n` ranks, with `extra` arguments. Local.

        By default, Open MPI does not run as root, nor with more ranks than cores; options allow
        both. If ranks share cores, an option makes Open MPI yield the CPU while it waits. Otherwise
        each message would cost a time slice. A file of hosts that the MPI operator of Kubernetes
        has written is passed on. If there are other hosts, Open MPI checks that they answer.
        """
        words = [self.path]
        options = shlex.split(extra)
        if self.library.family == "openmpi":
            if os.geteuid() == 0:
                words.append("--allow-run-as-root")
            if HOSTFILE in os.environ and not HOSTS.intersection(options):
                options = ["--hostfile", os.environ[HOSTFILE], *options]
            elsewhere = HOSTS.intersection(options) or any(name in os.environ for name in BATCH)
            if not elsewhere and n > physical_cores():
                words.append("--oversubscribe")
            if not elsewhere and n > len(os.sched_getaffinity(0)):
                words += ["--mca", "mpi_yield_when_idle", "1"]
            asked = KEEPALIVE in extra or any(KEEPALIVE in name for name in os.environ)
            if elsewhere and self.library.name.startswith("Open MPI 5") and not asked:
                for name, value in KEEPALIVES.items():
                    words += ["--prtemca", f"{KEEPALIVE}_{name}", value]
        return [*words, *options, "-n", str(n), *program]


def physical_cores() -> int:
    """Count the cores that this process may use, as Open MPI does: without hyper-threads. Local."""
    cores = set()
    for cpu in os.sched_getaffinity(0):
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            cores.add(path.read_text(encoding="ascii"))
        except OSError:
            cores.add(str(cpu))
    return len(cores)


def library() -> Library:
    """Find the MPI library that mpi4py loads, without initialising it. Local."""
    try:
        import mpi4py
    except ImportError:
        raise BindingError(f"mpi4py is not installed: pip install mpi4py; {remedy()}") from None
    if "mpi4py.MPI" not in sys.modules:
        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        text = " ".join(str(error).split())
        raise BindingError(f"no MPI library can be loaded: {text}; {remedy()}") from error
    return Library(binding.library_name(MPI), binding.family(MPI), _mapped())


def remedy() -> str:
    """Return the advice to install an MPI. Local."""
    return f"install an MPI: {binding.INSTALL}"


def _mapped() -> str | None:
    """Return the file of the loaded libmpi, and not one of mpi4py's, which have longer names."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            path = line.rstrip("\n").partition("/")[2]
            if re.match(r"libmpi(ch)?(_abi)?\.so", os.path.basename(path)):
                return "/" + path
    return None


def candidates(path: str | None) -> Iterator[str]:
    """Yield the launchers to try: near the library, in this environment, then in PATH."""
    folders = []
    if path is not None:
        # /usr/lib/x86_64-linux-gnu/openmpi/lib/libmpi.so.40 belongs to /usr/bin/mpiexec.
        folders += [parent / "bin" for parent in Path(path).resolve().parents[1:5]]
    folders.append(Path(sys.prefix, "bin"))
    folders += [Path(each) for each in os.environ.get("PATH", "").split(os.pathsep) if each]
    seen = set()
    for folder in folders:
        for name in ("mpiexec", "mpirun"):
            found = shutil.which(str(folder / name))
            if found is not None and found not in seen:
                seen.add(found)
                yield found


def family_of(path: str) -> str:
    """Return the family of a launcher's MPI, by the text of its version. Local."""
    try:
        done = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=20,
            check=False,
            errors="replace",
        )
    except (OSError, subprocess.TimeoutExpired):
        return "other"
    text = done.stdout
    for mark, family in (
        ("Intel", "intel"),
        ("HYDRA", "mpich"),
        ("Open MPI", "openmpi"),
        ("OpenRTE", "openmpi"),
        ("prterun", "openmpi"),
    ):
        if mark in text:
            return family
    return "other"


def find(lib: Library, wanted: str | None = None) -> Launcher:
    """Return the launcher of a library. Local."""
    refused = []
    if wanted is not None and shutil.which(wanted) is None:
        raise BindingError(f"--mpiexec {wanted}: there is no such program")
    for path in candidates(lib.path) if wanted is None else [str(shutil.which(wanted))]:
        family = family_of(path)
        if family == lib.family:
            return Launcher(path, lib)
        refused.append(f"{path} is that of {NAMES[family]}")
        if wanted is not None:
            raise BindingError(
                f"{refused[0]}, and mpi4py loads {lib.name}: it cannot start its ranks. Leave "
                f"--mpiexec out, and the right one is looked for"
            )
    where = f" ({lib.path})" if lib.path else ""
    text = f"mpi4py loads {lib.name}{where}, and no mpiexec of {NAMES[lib.family]} was found"
    if refused:
        text += f": {'; '.join(refused)}, which cannot start its ranks"
    raise BindingError(
        f"{text}. Put the mpiexec of {lib.name} on PATH, or install the MPI into this environment: "
        f"{binding.INSTALL}"
    )
