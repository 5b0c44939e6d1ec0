"""A rank of ``collectives run``: a program under mpi4py's runner, whose error is reported once.

Ranks start this file by its path, so that they import nothing from their working folder. A program
that does not use the package does not load it, except to report an error. For each ``--with
MODULE`` among the first arguments, a module of the package is imported, too, and its
``install(MPI)`` called, before the first importer of ``mpi4py.MPI`` gets that module. If the
program ends without importing ``mpi4py.MPI``, rank 0 reports this.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

WITH = "--with"
ACCELERATES = "collectives.mpi4py.communicators"
REPORTS = "collectives.mpi4py.report"
OPTIONS = {ACCELERATES: "--accelerate", REPORTS: "--report"}
UNUSED = "collectives run: {} had no effect, because the program has not imported mpi4py.MPI"


def main() -> None:
    """Run the program that the arguments name. Local."""
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path[0] = os.getcwd()  # as with `python -m mpi4py`
    run = _runner()
    installer = None
    modules = []
    while sys.argv[1:2] == [WITH]:
        modules.append(sys.argv[2])
        del sys.argv[1:3]
    if modules:
        installer = _Installer(home, modules)
        sys.meta_path.insert(0, installer)
    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "write_through", False):  # python -u: lines of ranks must not mix
            stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    try:
        run()
    except SystemExit:
        _tell_if_unused(installer, home)
        raise
    except BaseException:
        sys.path.append(home)
        with contextlib.suppress(Exception):
            from collectives.process import abort

            abort.watch()
        raise
    _tell_if_unused(installer, home)


def _runner() -> Callable[[], None]:
    """Return mpi4py's runner, or one for a job without MPI, which needs no mpi4py."""
    try:
        from mpi4py import run
    except ModuleNotFoundError:
        return _run
    main: Callable[[], None] = run.main
    return main


def _run() -> None:
    """Run the program of the arguments as Python does."""
    import runpy

    del sys.argv[0]
    if sys.argv[0] == "-c":
        made = sys.modules["__main__"] = ModuleType("__main__")
        exec(compile(sys.argv.pop(1), "<string>", "exec", dont_inherit=True), vars(made))
    elif sys.argv[0] == "-m":
        del sys.argv[0]
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(sys.argv[0]))
        runpy.run_path(sys.argv[0], run_name="__main__")


def _tell_if_unused(installer: _Installer | None, home: str) -> None:
    """Report on rank 0 that an option had no effect."""
    if installer is None or installer not in sys.meta_path:
        return
    sys.meta_path.remove(installer)
    sys.path.append(home)
    from collectives.process import environment

    if environment.is_first_rank():
        print(UNUSED.format(OPTIONS[installer.modules[0]]), file=sys.stderr, flush=True)


class _Installer:
    """An import hook with which modules of the package change ``mpi4py.MPI``."""

    def __init__(self, home: str, modules: list[str]) -> None:
        self.home, self.modules = home, modules

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "mpi4py.MPI":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(MPI: ModuleType) -> None:
            execute(MPI)
            sys.path.append(self.home)  # where the package is, if nowhere else
            for module in self.modules:
                importlib.import_module(module).install(MPI)

        setattr(spec.loader, "exec_module", exec_module)  # noqa: B010  mypy forbids the other
        return spec


if __name__ == "__main__":
    main()
