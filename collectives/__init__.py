"""Collective communication for Python: algorithms as data, proven, run by a core without the GIL.

Examples
--------
>>> import numpy as np, collectives as cc
>>> total = cc.allreduce(np.arange(4.0))
>>> bool((total == cc.size() * np.arange(4.0)).all())
True
"""

import sys as _sys
import typing as _typing

from collectives import algorithms, errors
from collectives import coreless as _coreless
from collectives._version import __version__
from collectives.errors import CollectivesError
from collectives.text.words import missing as _missing

__all__ = ["CollectivesError", "__version__", "algorithms", "errors"]

if _coreless.HAS_CORE:
    try:
        from collectives._core import PlannedCall, Reduction, Request
        from collectives._core import set_awaits as _set_awaits
    except ImportError as _error:
        raise errors.CoreError(
            f"collectives in {__path__[0]} has no usable core: {_error}. If that is a source tree, "
            f"start Python in another folder to use an installed one, or build it: pip install -e ."
        ) from _error
    from collectives import default as _default
    from collectives import reductions
    from collectives.calls.exact_sums import sum_local
    from collectives.calls.grouped import GroupedRequest
    from collectives.calls.waiting import wait_all, wait_any
    from collectives.communicator import Communicator
    from collectives.default import *  # noqa: F403 - all that is public there, is here, too
    from collectives.launch.spawning import spawn
    from collectives.process import shared_arrays as _shared_arrays
    from collectives.process.printed_log import log_to_stderr
    from collectives.process.shared_arrays import shared_arrays
    from collectives.reductions import (
        AVG,
        BAND,
        BOR,
        BXOR,
        LAND,
        LOR,
        LXOR,
        MAX,
        MAXLOC,
        MIN,
        MINLOC,
        PROD,
        SUM,
        SUM_REPRODUCIBLE,
        reduction,
    )

    __all__ += [
        "AVG",
        "BAND",
        "BOR",
        "BXOR",
        "LAND",
        "LOR",
        "LXOR",
        "MAX",
        "MAXLOC",
        "MIN",
        "MINLOC",
        "PROD",
        "SUM",
        "SUM_REPRODUCIBLE",
        "Communicator",
        "GroupedRequest",
        "PlannedCall",
        "Reduction",
        "Request",
        "log_to_stderr",
        "reduction",
        "reductions",
        "shared_arrays",
        "spawn",
        "sum_local",
        "wait_all",
        "wait_any",
    ]
    __all__ += _default.__all__

    _shared_arrays.begin()

    def _awaited(request: _typing.Any) -> _typing.Generator[_typing.Any, None, _typing.Any]:
        from collectives.background.awaiting import awaited  # few programs need it

        return awaited(request)

    _set_awaits(_awaited)
elif _coreless.RUNS_IN_PYTHON:
    __all__ += sorted(_coreless.SLOW)

# The modules that users import; `dir` shows those that are imported.
_MODULES = {
    *("background", "check", "compression", "dask", "draw", "elastic", "federated", "horovod"),
    *("jax", "keras", "mpi4py", "picture", "ray", "server", "simulate", "spark", "tensorflow"),
    *("topology", "torch"),
}


def __dir__() -> list[str]:
    shown = {name for name in globals() if name in _MODULES or name.startswith("__")}
    return sorted(shown.union(__all__))


if not _typing.TYPE_CHECKING:  # type checkers shall find names that are missing

    def __getattr__(name: str) -> object:
        if not _coreless.HAS_CORE:
            if name == "_core":
                return _sys.modules[_coreless.CORE]
            if name in _coreless.NAMES:
                raise _coreless.error(f"collectives.{name}")
            if name in _coreless.SLOW:
                return _coreless.find(name, "names")
        raise _missing(_sys.modules[__name__], "module 'collectives'", name, __all__)
