"""Ranks that Slurm's srun has started without an MPI: their rendezvous, and their secret.

Slurm's variables are no secret: other users see the numbers of jobs and steps. The secret is in a
file in the home folder, which the hosts of a cluster share and only the user can read. Each job
derives its own secret from it.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import stat
from pathlib import Path
from typing import NamedTuple

from collectives.errors import ArgumentError, CommunicatorError
from collectives.process import environment
from collectives.process.waiting import Naps, Wait, until
from collectives.text import files

# Ports from which rank 0 takes one; they are below those that the kernel assigns.
FIRST_PORT, PORTS = 20000, 10000

NBYTES = 32  # of the secret
GIVES = 5.0  # seconds in which another rank gives its file the name


class Place(NamedTuple):
    """The address at which this rank meets the others, and its number."""

    address: str
    rank: int
    size: int
    secret: bytes


def place(secret: bytes | None) -> Place:
    """Return the place of a task of srun; without a `secret`, use that of the user. Local."""
    values = {
        name: os.environ.get(name, "")
        for name in (
            "SLURM_PROCID",
            "SLURM_STEP_NUM_TASKS",
            "SLURM_STEP_NODELIST",
            "SLURM_JOB_ID",
            "SLURM_STEP_ID",
        )
    }
    rank, size, nodes, job, step = values.values()
    missing = [name for name, value in values.items() if not value]
    if missing or not rank.isdecimal() or int(rank) >= int(size):
        raise ArgumentError(
            f"srun has started this process, but {', '.join(missing) or 'SLURM_PROCID'} is missing "
            f"or wrong"
        )
    name = f"slurm {job} {step}".encode()
    number = int.from_bytes(hashlib.sha256(name).digest()[:4], "big") % PORTS
    host = hosts(nodes)[0]
    derived = hmac.digest(secret or _secret_of_user(), name, "sha256")
    return Place(f"first:{host}:{FIRST_PORT + number}", int(rank), int(size), derived)


def hosts(text: str) -> list[str]:
    """Return the names in a list of nodes, such as ``n[01-03,7],login``. Local."""
    names = []
    for word in re.findall(r"(?:[^,\[\]]|\[[^\[\]]*\])+", text):
        names += _expanded(word)
    if not names:
        raise ArgumentError(f"{text!r} is no list of nodes")
    return names


def _expanded(word: str) -> list[str]:
    """Return the names of a word with numbers in any number of brackets."""
    found = re.search(r"\[([^\]]*)\]", word)
    if found is None:
        return [word]
    numbers: list[str] = []
    for part in found[1].split(","):
        ends = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        if ends is None:
            raise ArgumentError(f"{word!r} is no list of nodes: {part!r} is no span of numbers")
        first, last = ends[1], ends[2] or ends[1]
        numbers += [f"{each:0{len(first)}d}" for each in range(int(first), int(last) + 1)]
    before, after = word[: found.start()], _expanded(word[found.end() :])
    return [f"{before}{number}{rest}" for number in numbers for rest in after]


def _secret_of_user() -> bytes:
    """Return the secret of this user, and make it if there is none."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"))
    path = folder / "collectives" / "secret"
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not path.exists():
            new = path.with_name(f".secret.{os.uname().nodename}.{os.getpid()}")
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with open(os.open(new, flags, 0o600), "wb") as file:
                file.write(os.urandom(NBYTES))
            try:
                files.give_name(str(new), str(path))
            except FileExistsError:  # another rank was first, and is about to give it
                new.unlink()
                until(path.exists, Wait(Naps(), timeout=GIVES))
        with open(
            os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb"
        ) as file:
            about = os.fstat(file.fileno())
            text = file.read(NBYTES + 1)
    except OSError as error:
        raise CommunicatorError(
            f"the secret of this user's jobs is not in {path}: {error.strerror}; or set "
            f"{environment.SECRET} in the job script, to a text that nobody else knows"
        ) from error
    if about.st_uid != os.getuid() or about.st_mode & 0o077 or not stat.S_ISREG(about.st_mode):
        raise CommunicatorError(f"{path} must be a file that only you may read: remove it")
    if len(text) != NBYTES:
        raise CommunicatorError(f"{path} must have {NBYTES} bytes: remove it")
    return text
