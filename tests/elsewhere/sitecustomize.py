"""Make this Python like that of a machine without the core: Python runs this file at its start.

With this folder in PYTHONPATH, modules of Unix and of other packages cannot be imported, and `os`,
`signal` and `socket` lack names as on Windows. COLLECTIVES_TEST_WITHOUT names further modules,
separated by commas. To fork, to make a Unix socket, or to open a file of /dev/shm is an error.
"""

import os
import platform
import signal
import socket
import subprocess  # noqa: F401 - before the names are gone that it needs on Unix
import sys

MODULES = ("fcntl", "grp", "mmap", "pwd", "resource", "termios", "mpi4py", "cloudpickle")
NAMES = {
    os: (
        *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_TMPFILE"),
        *("fchmod", "fork", "forkpty", "geteuid", "getpgid", "killpg", "memfd_create", "setsid"),
        *("register_at_fork", "sched_getaffinity", "sched_yield"),
    ),
    signal: (
        *("SIGALRM", "SIGCHLD", "SIGHUP", "SIGUSR1", "SIGUSR2", "alarm", "pause", "pthread_kill"),
        *("pidfd_send_signal", "pthread_sigmask", "setitimer", "sigpending", "sigwait"),
    ),
    socket: ("AF_UNIX", "SO_REUSEPORT", "socketpair", "send_fds", "recv_fds"),
}
SYSTEM, MACHINE = "Darwin", "arm64"
UNIX = 1  # the number of AF_UNIX


def refuse(event, args):
    """Refuse what Windows lacks, also where a name was not hidden."""
    is_shared = event == "open" and str(args[0]).startswith("/dev/shm")
    if is_shared or event == "os.fork" or (event == "socket.__new__" and args[1] == UNIX):
        raise RuntimeError(f"Windows has no {event} of {args}")


for module in (*MODULES, *filter(None, os.environ.get("COLLECTIVES_TEST_WITHOUT", "").split(","))):
    sys.modules[module] = None  # type: ignore[assignment]  # to import it is an error
for owner, names in NAMES.items():
    for name in names:
        if hasattr(owner, name):
            delattr(owner, name)
platform.system = lambda: SYSTEM
platform.machine = lambda: MACHINE
sys.addaudithook(refuse)
