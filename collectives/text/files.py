"""Files that users name: replaced in one step, and never written through a link of another user.

A file may lie in a folder where others can write. So the new text is written to another file beside
it, which replaces the old one, or the link, at the end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterator
from typing import Any

# Windows has none of these flags.
CLOEXEC, NOFOLLOW, NONBLOCK = (
    getattr(os, f"O_{name}", 0) for name in ("CLOEXEC", "NOFOLLOW", "NONBLOCK")
)

# Names in these folders stand for streams: the library writes to them, and does not replace them.
STREAMS = ("/dev", "/dev/fd", "/proc/self/fd")

# The errors of a link where the file system has none: FAT, and many that are mounted by FUSE.
WITHOUT_LINKS = {errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK}


def write(path: str | os.PathLike[str], data: str | bytes) -> None:
    """Write a file: its readers see the old one or the new one. Local."""
    encoded = data.encode() if isinstance(data, str) else data
    whole = os.path.abspath(os.fspath(path))
    folder = os.path.dirname(whole)
    try:
        if folder in STREAMS or _is_own_pipe(whole):
            with open(whole, "wb") as stream:
                stream.write(encoded)
            return
        new = os.path.join(folder, f".collectives-{os.urandom(8).hex()}")
        try:
            with open(_new(folder, new), "wb") as stream:
                _keep_mode(whole, stream.fileno())
                stream.write(encoded)
                stream.flush()
                os.fsync(stream.fileno())
                if not os.path.lexists(new):
                    # With a folder, which an absolute path does not need, links are followed.
                    own = stream.fileno()
                    os.link(f"/proc/self/fd/{own}", new, src_dir_fd=own, follow_symlinks=True)
            os.replace(new, whole)  # which Windows refuses while the file is open
            _keep_name(folder)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(new)
            raise
    except OSError as error:
        # Not with the name of the other file.
        raise OSError(error.errno, error.strerror, os.fspath(path)) from None


def give_name(new: str, name: str, folder: int | None = None) -> None:
    """Give the file `new` a `name`, in an open `folder`; raise FileExistsError if another file has
    got it. Local.
    """
    try:
        os.link(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError as error:
        if error.errno not in WITHOUT_LINKS:
            raise
        head, tail = os.path.split(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | CLOEXEC
        os.close(os.open(os.path.join(head, f".{tail}.taken"), flags, 0o600, dir_fd=folder))
        os.rename(new, name, src_dir_fd=folder, dst_dir_fd=folder)
    else:
        os.unlink(new, dir_fd=folder)


@contextlib.contextmanager
def locked(path: str, seconds: float) -> Iterator[None]:
    """Lock a file against other processes, which wait for it `seconds` at most. Local.

    The process that has locked the file beside it removes that file; the next one makes another.
    """
    folder, name = os.path.split(os.path.abspath(path))
    lock = os.path.join(folder, f".{name}.lock")
    until = time.monotonic() + seconds
    while (file := _lock(lock)) is None:
        if time.monotonic() > until:
            raise TimeoutError(errno.ETIMEDOUT, f"another process has kept {lock} locked", path)
        time.sleep(0.01)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(lock)
        os.close(file)


def _lock(lock: str) -> int | None:
    """Return the locked file, or None if another process has locked or removed it."""
    import fcntl  # Unix has it

    file = os.open(lock, os.O_RDWR | os.O_CREAT | CLOEXEC | NOFOLLOW, 0o666)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP):  # some file systems have no locks
                raise
        if os.path.samestat(os.fstat(file), os.lstat(lock)):
            return file
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(file)
        raise
    os.close(file)
    return None


def write_json(path: str | os.PathLike[str], document: dict[str, Any]) -> None:
    """Write the results of measurements: a line for each fact, each run and each row."""
    import json

    entries = [f"{json.dumps(key)}: {_rows_text(each, 2)}" for key, each in document.items()]
    write(path, "{\n " + ",\n ".join(entries) + "\n}\n")


def _rows_text(value: Any, depth: int) -> str:
    """Return `value` as JSON: a list of dicts has a line for each, and so have their `rows`."""
    import json

    pad = "\n" + " " * depth
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[" + pad + ("," + pad).join(_rows_text(each, depth + 1) for each in value) + "]"
    if isinstance(value, dict) and "rows" in value:
        texts = (f"{json.dumps(key)}: {_rows_text(each, depth)}" for key, each in value.items())
        return "{" + ", ".join(texts) + "}"
    return json.dumps(value)


def _new(folder: str, name: str) -> int:
    """Return a new file, without a name if possible, so that no file remains after a kill."""
    flags = os.O_WRONLY | CLOEXEC
    if hasattr(os, "O_TMPFILE") and os.path.exists("/proc/self/fd"):
        with contextlib.suppress(OSError):
            return os.open(folder, flags | os.O_TMPFILE, 0o666)
    return os.open(name, flags | os.O_CREAT | os.O_EXCL | NOFOLLOW, 0o666)


def _keep_name(folder: str) -> None:
    """Write the present names of a folder to the disk, so that they survive a loss of power."""
    with contextlib.suppress(OSError):  # it cannot be read, or the file system or Windows cannot
        file = os.open(folder, os.O_RDONLY | CLOEXEC)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def _keep_mode(path: str, file: int) -> None:
    """Give an open file the permissions of the one that it will replace, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        known = os.lstat(path)
        if stat.S_ISREG(known.st_mode) and hasattr(os, "fchmod"):
            os.fchmod(file, stat.S_IMODE(known.st_mode))


def _is_own_pipe(path: str) -> bool:
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISFIFO(found.st_mode) and found.st_uid == _own_user()


def _own_user() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else 0  # Windows has no numbers of users


def make_folder(path: str | os.PathLike[str]) -> None:
    """Make the folder `path` if there is none, and the folders above it. Local."""
    with contextlib.suppress(FileNotFoundError):
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode) and found.st_uid not in (0, _own_user()):
            raise PermissionError(errno.EPERM, "It is a link of another user", os.fspath(path))
    os.makedirs(path, exist_ok=True)
