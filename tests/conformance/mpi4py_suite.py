"""Run all of mpi4py's own tests, and its demos, unmodified with accelerated communicators.

::

    python tests/conformance/mpi4py_suite.py SOURCES [--ranks 2,3,4] [--only test_cco_obj,ex-3.01]

SOURCES is a folder with the sources of mpi4py, of the version that is installed. A demo counts only
if it succeeds without this library, too, and a test that fails only if it passes without. The table
has the numbers of calls here and in MPI, on rank 0. Its exit status is 1 if another test fails than
those of `DIFFERENT`.
"""

import argparse
import atexit
import os
import re
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

DEADLINE = 600  # seconds, for a file
SHORT = 60  # seconds, for a demo without this library
INPUT = "100\n"  # for demos that ask for a number
TESTS = ("test_*.py",)
FAILED = re.compile(r"^(?:FAIL|ERROR): (.+)$", re.MULTILINE)  # of unittest
# The tests that end in another way than with plain communicators, and the reasons.
PLAIN = "objects of fromhandle are plain communicators, as docs/hpc/mpi4py.md says"
DIFFERENT = {
    "testHandle (test_objmodel.TestObjModel.testHandle)": PLAIN,
    "testCartcomm (test_comm_topo.TestTopoWorld.testCartcomm)": PLAIN,
    "testCommLock (test_p2p_obj.TestP2PObjWorld.testCommLock)": "bcast takes no lock of mpi4py",
}
SERVED = "MPI4PY_SUITE_SERVED"  # the variable that names the file of served calls
DEMOS = ("helloworld.py", "osu_*.py", "compute-pi/*.py", "mpi-ref-v1/ex-*.py", "init-fini/*.py")
DEMOS += ("reductions/test_*.py", "sequential/test_*.py", "nxtval/*.py", "profiling/*.py")
DEMOS += ("threads/*.py", "mandelbrot/*.py")
UNCOUNTED = "init-fini"  # demos that import mpi4py.MPI in their own way


def follow(file: str) -> None:
    """Run a program in this rank, and write down the served calls of all communicators."""
    from collectives.mpi4py import communicators

    communicators.FIRST = 0  # all that can run here does
    count()
    sys.path.insert(0, str(Path(file).parent))
    runpy.run_path(file, run_name="__main__")


def count() -> None:
    """At the end of this process, write down the served calls of all communicators, on rank 0."""
    from mpi4py import MPI

    from collectives.mpi4py import calls

    states = [MPI.COMM_WORLD._state]  # type: ignore[attr-defined]  # it is accelerated
    begin = calls._State.__init__

    def noted(state: Any) -> None:
        begin(state)
        states.append(state)

    calls._State.__init__ = noted  # type: ignore[method-assign]

    def tell(rank: int = MPI.COMM_WORLD.Get_rank()) -> None:
        served = [each for state in states for each in state.served().values()]
        if rank == 0:
            here, left = (sum(each) for each in zip(*served, strict=True)) if served else (0, 0)
            Path(os.environ[SERVED]).write_text(f"{here} {left}")

    atexit.register(tell)


def failures(file: Path, words: list[str], ranks: int, served: Path | None) -> set[str]:
    """Run a program on so many ranks, accelerated if it is said where to count; return the tests
    that have failed, or the name of the file if it has failed as a whole.
    """
    command = [sys.executable, "-m", "collectives", "run", "-n", str(ranks)]
    if served is not None:
        command.append("--accelerate")
        if file.parent.name != UNCOUNTED:
            command += [__file__, "--follow"]
    command.append(str(file))
    variables = os.environ | {SERVED: str(served)}
    try:
        done = subprocess.run(
            [*command, *words],
            env=variables,
            cwd=file.parent,
            timeout=SHORT if served is None else DEADLINE,
            input=INPUT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return {file.stem}
    failed = set(FAILED.findall(done.stdout))
    if done.returncode and served is not None and not failed <= DIFFERENT.keys():
        print(done.stdout[-3000:])
    return failed or {file.stem} if done.returncode else set()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sources", type=Path, help="the folder of mpi4py's sources")
    parser.add_argument("--ranks", default="2,3,4", help="numbers of ranks")
    parser.add_argument("--only", default="", help="names of files, with commas; all by default")
    options = parser.parse_args()
    sources = options.sources.resolve()
    tests = sorted(file for each in TESTS for file in (sources / "test").glob(each))
    demos = sorted(file for each in DEMOS for file in (sources / "demo").glob(each))
    only = options.only.split(",") if options.only else None
    failed = 0
    print(f"{'file':32} ranks {'result':8} {'here':>8} {'MPI':>8}")
    for file in (*tests, *demos):
        if only is not None and file.stem not in only:
            continue
        for ranks in map(int, options.ranks.split(",")):
            program, words = file, []
            if file in tests:
                program, words = sources / "test" / "main.py", ["-f", file.stem]
            elif failures(file, words, ranks, None):
                print(f"{file.stem:32} {ranks:5} needs other ranks, or what is missing here")
                continue
            with tempfile.TemporaryDirectory() as folder:
                served = Path(folder) / "served"
                found = failures(program, words, ranks, served)
                here, left = served.read_text().split() if served.exists() else ("?", "?")
            differs = found - failures(program, words, ranks, None) if found else set()
            unknown = differs - DIFFERENT.keys()
            failed += len(unknown)
            result = "FAILS" if unknown else "differs" if differs else "passes"
            print(f"{file.stem:32} {ranks:5} {result:8} {here:>8} {left:>8}", flush=True)
            for name in sorted(differs):
                print(f"  {name}: {DIFFERENT.get(name, 'passes with plain communicators')}")
    return 1 if failed else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--follow"]:
        del sys.argv[:2]
        follow(sys.argv[0])
    else:
        sys.exit(main())
