"""Programs that import Horovod run unchanged: its names are answered by this library.

``import collectives.as_horovod`` before ``import horovod.torch``, or start the program with
``collectives run --as-horovod -n 4 train.py``, or in each rank with
``python -m collectives.as_horovod train.py``. Only this process is concerned, and those that
`multiprocessing` starts for it. Nothing else is changed. It is no use to import it after Horovod.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import os
import runpy
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any, NoReturn

__all__ = ["install"]

VERSION = "0.28.1"  # of the interface

# Front ends have the names of Horovod's, also for what is below them; what is imported for others.
FRONT_ENDS = ("torch", "tensorflow", "keras")
MODULES = {
    "horovod.common.basics": "collectives.horovod.basics",
    "horovod.common.elastic": "collectives.horovod.elastic",
    "horovod.common.exceptions": "collectives.horovod.errors",
    "horovod.common.process_sets": "collectives.horovod.process_sets",
}
EMPTY = ("horovod", "horovod.common", "horovod.common.util")
MISSING = ("mxnet", "spark", "ray", "runner")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """It finds the modules of Horovod."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "horovod":
            return None
        if fullname in EMPTY:
            is_package = fullname != "horovod.common.util"
            return importlib.machinery.ModuleSpec(fullname, self, is_package=is_package)
        known = _known(fullname)
        if known is None:
            part = fullname.split(".")[1]
            reason = f"{part} has no front end here" if part in MISSING else "it is not there"
            raise ModuleNotFoundError(
                f"{fullname} cannot be imported under collectives.as_horovod: {reason}",
                name=fullname,
            )
        return importlib.machinery.ModuleSpec(fullname, self, loader_state=known)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        if spec.loader_state is None:
            return None
        module = importlib.import_module(spec.loader_state)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        if spec.loader_state is not None:
            module.__spec__ = spec.loader_state  # it stays what it is
        elif spec.name == "horovod":
            module.__dict__.update(__version__=VERSION, run=_run_refused)
        elif spec.name == "horovod.common.util":
            module.__dict__.update(_UTIL)


def _known(fullname: str) -> str | None:
    """Return the module of this library for one of Horovod, if there is one."""
    found = MODULES.get(fullname)
    name = fullname.removeprefix("horovod.")
    if name.partition(".")[0] in FRONT_ENDS:
        found = f"collectives.{name}"
    if found is None or importlib.util.find_spec(found) is None:
        return None
    return found


def _run_refused(*arguments: Any, **options: Any) -> NoReturn:
    """Refuse ``horovod.run``."""
    raise NotImplementedError(
        "horovod.run() starts no ranks here: start the program with collectives run --as-horovod "
        "-n N script.py"
    )


def _is_true(*arguments: Any, **options: Any) -> bool:
    return True


def _split_list(values: list[Any], count: int) -> list[list[Any]]:
    share, more = divmod(len(values), count)
    ends = [k * share + min(k, more) for k in range(count + 1)]
    return [values[ends[k] : ends[k + 1]] for k in range(count)]


# Of `horovod.common.util`, what public programs and Horovod's tests use.
_UTIL = {
    "check_extension": _is_true,
    "extension_available": lambda name, **options: name.removeprefix("horovod.") in FRONT_ENDS,
    "gpu_available": lambda *arguments, **options: False,
    "is_iterable": lambda value: hasattr(value, "__iter__"),
    "num_rank_is_power_2": lambda count: count > 0 and count & (count - 1) == 0,
    "split_list": _split_list,
}

PROGRAM = "_COLLECTIVES_AS_HOROVOD"  # the variable that tells processes of multiprocessing

_finder = _Finder()


def install() -> None:
    """Have the imports of Horovod answered by this library in this process. Local.

    Raises
    ------
    ImportError
        If Horovod itself has been imported before.
    """
    if _finder in sys.meta_path:
        return
    if "horovod" in sys.modules:
        raise ImportError("horovod has been imported before collectives.as_horovod")
    sys.meta_path.insert(0, _finder)


def _run(globals: dict[str, Any]) -> None:
    """Run the program that the arguments name in a module of the name ``__main__``.

    Processes that `multiprocessing` starts import that module again, which is this file: so they
    come here, too, and find the program in the environment.
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
