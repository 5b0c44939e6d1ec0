"""Make a release of the tagged commit: what ``make release`` calls. Nothing is uploaded.

::

    python wheels/release.py [--python 3.11 ...] [--machine x86_64 ...] [--to dist/release]

The tag, the version of the package and the first heading of CHANGES.md must agree. The source
distribution is made of the commit alone, and all wheels are made of the source distribution. A
local index has them with the packages that they need. Each wheel for this machine is installed
from this index alone, and tried (`try_wheels.py`). A bill of materials (CycloneDX) and the hashes
of all files are added. The command needs what `make_wheels.py` needs, and `build`, `twine` and
`cyclonedx-bom`.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable
from datetime import date
from pathlib import Path

import make_wheels
import try_wheels

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "collectives-mpi"
TAG = re.compile(r"v(\d+\.\d+\.\d+((a|b|rc)\d+)?)")
SUMS = "SHA256SUMS"
BILL = "sbom.cdx.json"


def run(*words: object, env: dict[str, str] | None = None, cwd: Path = ROOT) -> str:
    """Run a command; return its output, or end with it if the command fails."""
    shown = " ".join(map(str, words))
    print(f"$ {shown}", flush=True)
    done = subprocess.run(
        [str(each) for each in words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env={**os.environ, **(env or {})},
    )
    if done.returncode:
        sys.exit(f"{shown}\n{done.stdout}")
    return done.stdout


def git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        sys.exit(f"git {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout.strip()


def tagged() -> str:
    """Return the tag of the commit, in a checkout without changes."""
    changed = git("status", "--porcelain")
    if changed:
        sys.exit(f"these files are not as the commit has them:\n{changed}")
    return git("describe", "--exact-match", "--tags")


def current_version() -> str:
    """Return the version of the package."""
    return str(runpy.run_path(str(ROOT / "collectives" / "_version.py"))["__version__"])


def version_of(tag: str, version: str, changes: str, today: date) -> str:
    """Return the version of a tag; end unless that of the package and CHANGES.md agree with it."""
    match = TAG.fullmatch(tag)
    if match is None:
        sys.exit(f"the tag is {tag}, and must be like v1.2.3 or v1.2.3rc1")
    if match[1] != version:
        sys.exit(f"the tag is {tag}, and the package has the version {version}")
    heading = re.search(r"^## (.*)\n", changes, re.MULTILINE)
    found = heading and re.fullmatch(r"(\S+) \((\d{4}-\d{2}-\d{2})\)", heading[1])
    if not found or found[1] != version:
        said = heading[1] if heading else "nothing"
        sys.exit(f"CHANGES.md begins with {said!r}, and must with '{version} ({today})'")
    try:
        released = date.fromisoformat(found[2])
    except ValueError:
        sys.exit(f"CHANGES.md dates the release {found[2]}, which is not a date")
    if released > today:
        sys.exit(f"CHANGES.md dates the release {released}, which is after today, {today}")
    if changes[heading.end() :].partition("\n## ")[0].count("\n- ") == 0:
        sys.exit(f"CHANGES.md has no entry for {version}")
    return version


def source_distribution(tag: str, folder: Path, to: Path) -> Path:
    """Make the source distribution of a commit in `to`; return its sources, unpacked again."""
    commit = folder / "commit"
    files = subprocess.run(["git", "archive", tag], capture_output=True, cwd=ROOT, check=True)
    with tarfile.open(fileobj=io.BytesIO(files.stdout)) as archive:
        archive.extractall(commit, filter="data")
    run(sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", to, commit)
    [made] = to.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        archive.extractall(folder, filter="data")
    return folder / made.name.removesuffix(".tar.gz")


def make_all(sources: Path, to: Path, pythons: list[str], machines: list[str]) -> list[Path]:
    """Make all wheels of unpacked sources; return the files of the release."""
    words = ["--python", *pythons, "--machine", *machines, "--dist", to]
    print(run(sys.executable, sources / "wheels" / "make_wheels.py", *words), end="")
    pure = {"COLLECTIVES_PURE": "1"}
    build = (sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", to, sources)
    run(*build, env=pure)
    files = sorted(to.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *files)
    return files


def needed(wheel: Path, python: str, mpis: Iterable[str], folder: Path) -> None:
    """Download what a wheel needs with an interpreter, and MPIs, into a folder."""
    words = ["download", "-q", "--only-binary", ":all:", "-d", folder, wheel, *mpis]
    run(sys.executable, "-m", "pip", "--python", python, *words)


def index(files: Iterable[Path], folder: Path) -> str:
    """Write the pages of an index (PEP 503) of files into a folder; return its address."""
    pages: dict[str, list[str]] = {}
    for file in sorted(files):
        project = re.sub(r"[-_.]+", "-", file.name.partition("-")[0]).lower()
        address = f"{file.as_uri()}#sha256={digest(file)}"
        pages.setdefault(project, []).append(f'<a href="{address}">{file.name}</a><br>\n')
    for project, links in pages.items():
        (folder / project).mkdir(parents=True)
        text = "<!DOCTYPE html>\n<title>{}</title>\n{}"
        (folder / project / "index.html").write_text(text.format(project, "".join(links)))
    return folder.as_uri()


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def write_hashes(folder: Path) -> None:
    """Write the hashes of all files of a folder, as ``sha256sum --check`` reads them."""
    files = sorted(each for each in folder.iterdir() if each.name != SUMS)
    (folder / SUMS).write_text("".join(f"{digest(each)}  {each.name}\n" for each in files))


def write_bill(python: str, version: str, address: str, sources: Path, to: Path) -> None:
    """Write the bill of materials of an environment with a wheel and its dependencies."""
    bill = to / BILL
    with tempfile.TemporaryDirectory() as name:
        made = try_wheels.Environment(Path(name), python, f"{PACKAGE}=={version}", address)
        words = ["--pyproject", sources / "pyproject.toml", "--mc-type", "library"]
        words += ["--output-reproducible", "-o", bill, made.bin / "python"]
        run(sys.executable, "-m", "cyclonedx_py", "environment", *words)
    materials = json.loads(bill.read_text())
    materials["metadata"]["component"]["version"] = version  # pyproject.toml has none
    bill.write_text(json.dumps(materials, indent=2) + "\n")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="make a release of the tagged commit")
    parser.add_argument("--python", nargs="+", default=make_wheels.VERSIONS, metavar="VERSION")
    parser.add_argument("--machine", nargs="+", default=make_wheels.MACHINES)
    parser.add_argument("--to", type=Path, default=ROOT / "dist" / "release")
    options = parser.parse_args(words)
    tag = tagged()
    changes = (ROOT / "CHANGES.md").read_text(encoding="utf-8")
    version = version_of(tag, current_version(), changes, date.today())
    if options.to.exists():
        sys.exit(f"{options.to} exists already")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        to, others = folder / "release", folder / "needed"
        to.mkdir()
        others.mkdir()
        sources = source_distribution(tag, folder, to)
        files = make_all(sources, to, options.python, options.machine)
        wheels = [each for each in files if try_wheels.is_for_this_machine(each)]
        pythons = {wheel: try_wheels.interpreter(try_wheels.version(wheel)) for wheel in wheels}
        for wheel, python in pythons.items():
            if python:
                needed(wheel, python, try_wheels.MPIS, others)
        here = {each.name: each for each in [*others.iterdir(), *files]}
        address = index(here.values(), folder / "index")
        if try_wheels.main(["--index", address, *map(str, wheels)]):
            return 1
        python = next(filter(None, pythons.values()), sys.executable)
        write_bill(python, version, address, sources, to)
        write_hashes(to)
        shutil.copytree(to, options.to)
    print(f"{version}: {len(list(options.to.iterdir()))} files in {options.to}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
