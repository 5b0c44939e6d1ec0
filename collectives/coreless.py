"""The package on machines without the core: the names that are missing there, and their error.

The wheel for every machine has the sources of the other wheels, and no ``_core``. So algorithms can
be proven, drawn, simulated, explored and synthesized on every machine with Python. Without NumPy,
they can be proven and drawn. With NumPy, `collectives.slow` runs the collectives in Python, and the
module ``collectives._core`` has the names of `collectives.slow.core`.
"""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from collectives.errors import CoreError

CORE = "collectives._core"
MACHINES = "Linux on x86-64 and aarch64"
# The names of `collectives` that need the core, or the ranks in Python.
COMMUNICATING = frozenset(
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

# Those that need the core.
NAMES = frozenset(
    ("SUM_REPRODUCIBLE", "log_to_stderr", "shared_arrays", "stop_requested", "sum_local")
)

SLOW = COMMUNICATING - NAMES

# The packages and modules that need it.
ROOMS = frozenset(
    {
        *("as_horovod", "background", "communicator", "compiled", "compression", "dask"),
        *("default", "elastic", "engines", "federated", "growth", "horovod", "jax", "keras"),
        *("mpi4py", "ray", "server", "spark", "tensorflow", "torch"),
    }
)


def _is_built() -> bool:
    spec = find_spec(CORE)
    return spec is not None and spec.origin is not None  # else it is the folder of its sources


HAS_CORE = _is_built()


def _is_hidden() -> bool:
    """Return whether these are sources in which the core could be compiled, or which hide an
    installation that has it.
    """
    has_sources = os.path.exists(os.path.join(os.path.dirname(__file__), "_core.pyx"))
    return has_sources and _may_have_core()


def _may_have_core() -> bool:
    return platform.system() == "Linux" and platform.machine() in ("x86_64", "aarch64")


def _has_numpy() -> bool:
    try:
        return find_spec("numpy") is not None
    except ValueError:  # a test has hidden it
        return False


# True if the collectives run in Python.
RUNS_IN_PYTHON = not HAS_CORE and not _is_hidden() and _has_numpy()


def error(who: str = "This part of the library", verb: str = "needs") -> CoreError:
    """Return the error for `who`, which needs the core. Local."""
    system = {"Darwin": "macOS"}.get(platform.system(), platform.system())
    machine = platform.machine()
    if _may_have_core():
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
        f"{machine}. With NumPy, the collectives run in Python here, and algorithms can be proven, "
        f"drawn, simulated, explored and synthesized. Run the rest on such a machine, or in a "
        f"container with Linux"
    )


def find(name: str, module: str) -> object:
    """Return a name of a `module` of `collectives.slow`, or raise CoreError. Local."""
    who = f"collectives.{name}"
    if not RUNS_IN_PYTHON:
        raise error(who)
    if name == "reductions":
        return import_module("collectives.reductions")
    found: dict[str, object] = vars(import_module(f"collectives.slow.{module}"))
    if name not in found:
        raise error(who)
    return found[name]


class _StandIn(ModuleType):
    """The module of the core, whose names are found when they are asked for."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):  # tools look at all modules
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}", name=name)
        return find(name, "core")


class _Finder:
    """A finder of modules that refuses those which need the core."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Raise CoreError for a module that needs the core. Local."""
        package, _, rest = name.partition(".")
        if package == "collectives" and rest.partition(".")[0] in ROOMS:
            raise error(name)


if not HAS_CORE:
    sys.modules[CORE] = _StandIn(CORE)
    sys.meta_path.insert(0, _Finder)
