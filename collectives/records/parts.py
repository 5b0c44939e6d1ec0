"""The folder of a timeline's tapes, ``out.json.parts``, which belongs to one user.

The timeline may lie in a folder where other users can write. So no rank follows a link there. The
rank that makes the file also makes the folder. The other ranks, and readers of the tapes of dead
ranks, open it, check that it is a folder of their own user, and use the open folder from then on. A
tape is a new file.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from collectives.errors import ArgumentError

SUFFIXES = (".json", ".records")
FLAGS = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Parts:
    """The open folder of the tapes of a timeline.

    Attributes
    ----------
    path : Path
        The folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = folder(path)
        self.file: int = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | FLAGS)
        if not self._is_own():
            os.close(self.file)
            raise PermissionError(f"{self.path} belongs to another user")

    def __enter__(self) -> Parts:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the folder. Local."""
        os.close(self.file)

    def _is_own(self) -> bool:
        owner = os.fstat(self.file).st_uid
        if owner == os.geteuid():
            return True
        # A file server may know this user by another number, which its files have, too.
        name = f".{os.urandom(8).hex()}"
        try:
            probe = self.create(name, os.O_WRONLY)
        except OSError:
            return False
        try:
            return os.fstat(probe).st_uid == owner
        finally:
            os.close(probe)
            os.unlink(name, dir_fd=self.file)

    def create(self, name: str, flags: int) -> int:
        """Return a new file called `name`, open with `flags`. Local."""
        return os.open(name, flags | FLAGS | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=self.file)

    def open(self, name: str, flags: int = os.O_RDWR) -> int:
        """Return the file called `name`, open with `flags`. Local."""
        return os.open(name, flags | FLAGS, dir_fd=self.file)

    def has(self, name: str) -> bool:
        """Return whether there is a file called `name`. Local."""
        try:
            os.stat(name, dir_fd=self.file, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def ranks(self) -> list[int]:
        """Return the ranks that have records in the folder. Local."""
        names = [each.removesuffix(".records") for each in self._names(".records")]
        return sorted(int(each) for each in names)

    def _names(self, suffix: str) -> list[str]:
        return [
            each
            for each in os.listdir(self.file)
            if each.endswith(suffix) and each.removesuffix(suffix).isdecimal()
        ]

    def remove(self, rank: int) -> None:
        """Delete the tape of a `rank`, and the folder if that was the last one. Local."""
        for suffix in SUFFIXES:
            self._delete(f"{rank}{suffix}")
        discard(self.path)

    def clear(self) -> None:
        """Delete all tapes, including those with only one of their files. Local."""
        for suffix in SUFFIXES:
            for each in self._names(suffix):
                self._delete(each)

    def _delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self.file)


def folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder of the tapes that belong to the timeline in `path`. Local."""
    return Path(f"{os.fspath(path)}.parts")


def find(path: str | os.PathLike[str]) -> Parts | None:
    """Return the tapes of the timeline in `path`, if this user has any there. Local."""
    try:
        return Parts(path)
    except OSError:
        return None


def make(path: str | os.PathLike[str]) -> Parts:
    """Return the folder for the timeline in `path`: a new one, or that of an earlier one. Local."""
    try:
        os.mkdir(folder(path), 0o700)
    except FileExistsError:
        pass  # see below whose it is
    except OSError as error:
        text = f"the timeline {path} cannot be written: {error.strerror}"
        raise ArgumentError(text) from None
    try:
        return Parts(path)
    except OSError:
        raise ArgumentError(
            f"the timeline {path} cannot be recorded: {folder(path)} is not a folder of this "
            f"user; remove it, or choose another path"
        ) from None


def discard(path: Path) -> None:
    """Remove the folder if nothing is in it. Local."""
    with contextlib.suppress(OSError):
        os.rmdir(path)
