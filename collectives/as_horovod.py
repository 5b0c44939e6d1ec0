"""Programs that import Horovod run unchanged: its names are modules of this library.

``import collectives.as_horovod`` before ``import horovod.torch``, or start the program with
``collectives run --as-horovod -n 4 train.py``, or in each rank with
``python -m collectives.as_horovod train.py``. This affects only the process, and those that
`multiprocessing` starts for it. It has no effect if it is imported after Horovod.
"""

from __future__ import annotations

import os
import runpy
import sys
from typing import Any

from collectives.horovod.names import install

__all__ = ["install"]

PROGRAM = "_COLLECTIVES_AS_HOROVOD"  # the variable that tells processes of multiprocessing


def _run(globals: dict[str, Any]) -> None:
    """Run the program that the arguments name in a module of the name ``__main__``.

    Processes that `multiprocessing` starts import this file as that module, and run the program
    that the environment names.
    """
    is_child = globals["__name__"] != "__main__"
    if is_child:
        sys.argv[0] = os.environ[PROGRAM]
    else:
        del sys.argv[0]
    if not sys.argv:
        sys.exit("usage: python -m collectives.as_horovod (script.py | -m module | -c code) ...")
    path = sys.argv[0]
    if path == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        return
    if path == "-c":
        exec(compile(sys.argv.pop(1), "<string>", "exec"), globals)
        return
    if not is_child:
        os.environ[PROGRAM] = os.path.abspath(path)
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    globals.update(__file__=path, __doc__=None)
    exec(code, globals)


install()
if __name__ in ("__main__", "__mp_main__"):
    _run(globals())
