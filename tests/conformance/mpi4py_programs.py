"""Run the tests of a program that uses mpi4py, with and without accelerated communicators.

::

    python tests/conformance/mpi4py_programs.py CHECKOUT [--ranks 2,3] TEST... [-- WORDS...]

CHECKOUT is a folder with the program's sources, and each TEST a file or folder of tests in it. The
program must be installed, or be found there. WORDS go to pytest. Each file is run by itself, and
each test must end in the same way on each rank with both communicators. The table has the outcomes
of the tests on rank 0, their seconds, and the numbers of calls here and in MPI. The exit status is
1 if a test ends in another way.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import mpi4py_suite
import pytest

DEADLINE = 900  # seconds, for a file
OUTCOMES = "MPI4PY_PROGRAMS_OUTCOMES"  # the variable that names the folder of outcomes


class Outcomes:
    """A plugin of pytest that writes down how each test ended."""

    def __init__(self) -> None:
        self._found: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._found[report.nodeid] = report.outcome

    def pytest_sessionfinish(self) -> None:
        from mpi4py import MPI

        file = Path(os.environ[OUTCOMES]) / f"{MPI.COMM_WORLD.Get_rank()}.json"
        file.write_text(json.dumps(self._found))


def follow(words: list[str]) -> int:
    """Run tests in this rank, and write down how they end."""
    sys.path[0] = os.getcwd()  # as with `python -m pytest`
    if mpi4py_suite.SERVED in os.environ:
        mpi4py_suite.count()
    return int(pytest.main(words, plugins=[Outcomes()]))


class Run(NamedTuple):
    """The outcome of the tests of a file."""

    outcomes: list[dict[str, str]]  # of each rank; no ranks, if they did not end
    seconds: float
    here: int
    mpi: int
    text: str

    def counts(self) -> str:
        found = Counter(self.outcomes[0].values()) if self.outcomes else {}
        words = (f"{n} {outcome}" for outcome, n in sorted(found.items()))
        return ", ".join(words) if self.outcomes else "did not end"


def run(checkout: Path, words: list[str], ranks: int, accelerated: bool) -> Run:
    command = [sys.executable, "-m", "collectives", "run", "-n", str(ranks)]
    command += ["--accelerate"] * accelerated
    command += [__file__, "--follow", *words]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        served = folder / "served"
        variables = os.environ | {OUTCOMES: name}
        variables |= {mpi4py_suite.SERVED: str(served)} if accelerated else {}
        before = time.monotonic()
        try:
            text = subprocess.run(
                command,
                env=variables,
                cwd=checkout,
                timeout=DEADLINE,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ).stdout
        except subprocess.TimeoutExpired as error:
            text = (error.stdout or b"").decode()
        seconds = time.monotonic() - before
        files = [folder / f"{rank}.json" for rank in range(ranks)]
        ended = all(file.exists() for file in files)
        outcomes = [json.loads(file.read_text()) for file in files] if ended else []
        here, mpi = map(int, served.read_text().split()) if served.exists() else (0, 0)
    return Run(outcomes, seconds, here, mpi, text)


def differences(plain: Run, accelerated: Run) -> list[str]:
    """Return the tests that end in different ways, as `rank: test`."""
    found = []
    for rank, (theirs, ours) in enumerate(zip(plain.outcomes, accelerated.outcomes, strict=False)):
        names = theirs.keys() | ours.keys()
        found += [f"{rank}: {name}" for name in sorted(names) if theirs.get(name) != ours.get(name)]
    if len(plain.outcomes) != len(accelerated.outcomes):
        found.append("all tests: one of the runs did not end")
    if not any(plain.outcomes):
        found.append("all tests: none runs")
    return found


def main() -> int:
    words, extra = sys.argv[1:], []
    if "--" in words:
        at = words.index("--")
        words, extra = words[:at], words[at + 1 :]
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("checkout", type=Path, help="the folder of the program's sources")
    parser.add_argument("tests", nargs="+", help="files or folders of tests in it")
    parser.add_argument("--ranks", default="2,3", help="numbers of ranks")
    options = parser.parse_args(words)
    checkout = options.checkout.resolve()
    places = [checkout / test for test in options.tests]
    files = [each for place in places for each in sorted(place.rglob("test_*.py")) or [place]]
    failed = False
    for ranks in map(int, options.ranks.split(",")):
        total = Counter()  # type: Counter[str]
        for file in files:
            name = str(file.relative_to(checkout))
            arguments = ["-p", "no:cacheprovider", "-q", *extra, name]
            plain = run(checkout, arguments, ranks, False)
            ours = run(checkout, arguments, ranks, True)
            total.update(plain=plain.seconds, ours=ours.seconds, here=ours.here, mpi=ours.mpi)
            print(
                f"{name} on {ranks} ranks: {plain.counts()} in {plain.seconds:.0f} s; accelerated: "
                f"{ours.counts()} in {ours.seconds:.0f} s, {ours.here} calls here, "
                f"{ours.mpi} in MPI",
                flush=True,
            )
            for each in differences(plain, ours):
                failed = True
                print(f"  DIFFERS on rank {each}", flush=True)
            if differences(plain, ours):
                print(ours.text[-3000:])
        print(f"all on {ranks} ranks: {dict(total)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(follow(sys.argv[2:]) if sys.argv[1:2] == ["--follow"] else main())
