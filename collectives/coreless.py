"""The package on machines without the core: the names that are missing there, and their error.

The wheel for every machine has the sources of the other wheels, and no ``_core``. So algorithms can
be proven, drawn, simulated, explored and synthesized on every machine with Python. Without NumPy,
they can be proven and drawn.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib.util import find_spec
from types import ModuleType

from collectives.errors import CoreError

CORE = "collectives._core"
MACHINES = "Linux on x86-64 and aarch64"
NAMES = frozenset(
    re.findall(
        r"\w+",
        """
        AVG BAND BOR BXOR LAND LOR LXOR MAX MAXLOC MIN MINLOC PROD SUM SUM_REPRODUCIBLE Communicator
        GroupedRequest PlannedCall Reduction Request allgather allgather_object allgatherv allreduce
        allreduce_many allreduce_object alltoall alltoall_object alltoallv barrier broadcast
        broadcast_object exscan exscan_object gather gather_object gatherv iallgather iallgatherv
        iallreduce iallreduce_many ialltoall ialltoallv ibarrier ibroadcast iexscan igather igatherv
        irecv ireduce ireduce_scatter ireduce_scatterv iscan iscatter iscatterv isend isendrecv
        local_rank local_size log_to_stderr plan rank recv reduce reduce_object reduce_scatter
        reduce_scatterv reduction reductions same scan scan_object scatter scatter_object scatterv
        send sendrecv shared_arrays size spawn stop_requested sum_local wait_all wait_any world
        """,
    )
)


def _is_built() -> bool:
    spec = find_spec(CORE)
    return spec is not None and spec.origin is not None  # else it is the folder of its sources


HAS_CORE = _is_built()


def error(who: str = "This part of the library", verb: str = "needs") -> CoreError:
    """Return the error for `who`, which needs the core. Local."""
    system = {"Darwin": "macOS"}.get(platform.system(), platform.system())
    machine = platform.machine()
    if system == "Linux" and machine in ("x86_64", "aarch64"):
        folder = os.path.dirname(__file__)
        if os.path.exists(os.path.join(folder, "_core.pyx")):
            return CoreError(
                f"{who} {verb} the core of the library, and Python has found its sources in "
                f"{os.path.dirname(folder)} first, where the core is not compiled. Start Python in "
                f"another folder to use the installed library, or compile the core there: "
                f"pip install -e ."
            )
        version = f"{platform.python_implementation()} {platform.python_version()}"
        return CoreError(
            f"{who} {verb} the core of the library, but collectives in {folder} has no usable core "
            f"for {version}. Install it from its sources, or from a wheel for this Python: "
            f"pip install --force-reinstall ."
        )
    return CoreError(
        f"{who} {verb} the core of the library, which exists for {MACHINES}; this is {system} on "
        f"{machine}. Algorithms can be proven, drawn, simulated, explored and synthesized here. "
        f"Run the others on such a machine, or in a container with Linux"
    )


class _Missing(ModuleType):
    """A stand-in for the core: importing a name from it raises an error about the missing core."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # tools look at all modules
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name)
        raise error()


if not HAS_CORE:
    sys.modules[CORE] = _Missing(CORE)
