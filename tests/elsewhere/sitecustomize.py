"""Make this Python like that of a machine without the core: Python runs this file at its start.

With this folder in PYTHONPATH, modules of Unix and of other packages cannot be imported, and `os`
lacks names as on Windows. COLLECTIVES_TEST_WITHOUT names further modules, separated by commas.
"""

import os
import platform
import sys

MODULES = ("fcntl", "grp", "pwd", "resource", "termios", "mpi4py", "cloudpickle")
NAMES = (
    *("O_CLOEXEC", "O_DIRECTORY", "O_NOFOLLOW", "O_NONBLOCK", "O_TMPFILE"),
    *("fchmod", "geteuid", "memfd_create", "sched_getaffinity", "sched_yield"),
)
SYSTEM, MACHINE = "Darwin", "arm64"

for module in (*MODULES, *filter(None, os.environ.get("COLLECTIVES_TEST_WITHOUT", "").split(","))):
    sys.modules[module] = None  # type: ignore[assignment]  # to import it is an error
for name in NAMES:
    delattr(os, name)
platform.system = lambda: SYSTEM
platform.machine = lambda: MACHINE
