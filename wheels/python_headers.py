"""The headers of a version of CPython: those of an interpreter on this machine, else Debian's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "collectives" / "debian"
# Debian's newest versions are in this suite; nothing of it is installed.
SUITE = "sid"


def is_whole(headers: Path) -> bool:
    """Say whether headers are there, and none of them is elsewhere, as Debian has it."""
    settings = headers / "pyconfig.h"
    return settings.exists() and "linux-gnu" not in settings.read_text()


def installed(version: str) -> Path | None:
    """Return the headers of an interpreter on PATH, or of pyenv."""
    found = shutil.which(f"python{version}")
    if found:
        code = "import sysconfig; print(sysconfig.get_path('include'))"
        told = subprocess.run([found, "-c", code], capture_output=True, text=True)
        if told.returncode == 0 and is_whole(Path(told.stdout.strip())):
            return Path(told.stdout.strip())
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    every = sorted(root.glob(f"versions/{version}.*/include/python{version}/Python.h"))
    return every[-1].parent if every else None


def archive() -> str:
    """Return the address of the archive from which this machine, with Debian, has its packages."""
    words = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]
    found = ""
    if shutil.which(words[0]):
        found = subprocess.run([*words, "Origin: Debian"], capture_output=True, text=True).stdout
    if not found:
        sys.exit("install the versions of Python: only a Debian machine finds their headers itself")
    return found.split()[0]


def unpacked(*packages: str) -> Path:
    """Return a folder with packages of Debian for this machine, downloaded and unpacked once."""
    root = CACHE / "root"
    state = CACHE / "state"
    if not (state / "lists").is_dir():
        (state / "lists" / "partial").mkdir(parents=True)
        (state / "status").touch()
        (CACHE / "sources.list").write_text(f"deb {archive()} {SUITE} main\n")
    settings = {
        "Dir::State": state,
        "Dir::State::status": state / "status",
        "Dir::Cache": CACHE / "cache",
        "Dir::Etc::sourcelist": CACHE / "sources.list",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::Etc::trustedparts": "/usr/share/keyrings",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in settings.items())]
    subprocess.run([*apt, "update"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run([*apt, "download", *packages], check=True, stdout=subprocess.DEVNULL, cwd=CACHE)
    for package in packages:
        for file in CACHE.glob(f"{package}_*.deb"):
            subprocess.run(["dpkg", "-x", file, root], check=True)
    return root


@lru_cache
def find(version: str) -> Path:
    """Return the folder with the headers of a version, such as "3.14".

    Their settings of this machine hold for all machines for which there are wheels.
    """
    found = installed(version)
    if found:
        return found
    include = CACHE / "root" / "usr" / "include"
    if not is_whole(include / f"python{version}"):
        unpacked(f"libpython{version}-dev")
        [settings] = include.glob(f"*-linux-gnu/python{version}/pyconfig.h")
        shutil.copy(settings, include / f"python{version}" / "pyconfig.h")
    return include / f"python{version}"
