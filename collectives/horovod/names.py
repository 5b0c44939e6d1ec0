"""The modules of Horovod, and the modules of this library that replace them."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from collectives.horovod.util import FRONT_ENDS

if TYPE_CHECKING:
    from importlib.metadata import Distribution, DistributionFinder

T = TypeVar("T")

VERSION = "0.28.1"  # of the interface

# Front ends and their submodules have Horovod's names. This table has the other names: the value is
# a module of this library, or the module and the attribute of each name.
MODULES: dict[str, str | dict[str, str]] = {
    "horovod": {
        "__version__": "collectives.horovod.names:VERSION",
        "run": "collectives.horovod.names:run",
    },
    "horovod.common": {},
    "horovod.common.basics": "collectives.horovod.basics",
    "horovod.common.elastic": "collectives.horovod.elastic",
    "horovod.common.exceptions": "collectives.horovod.errors",
    "horovod.common.process_sets": "collectives.horovod.process_sets",
    "horovod.common.util": "collectives.horovod.util",
    "horovod.ray": {"RayExecutor": "collectives.horovod.engines:RayExecutor"},
    "horovod.ray.runner": {"RayExecutor": "collectives.horovod.engines:RayExecutor"},
    "horovod.runner": {"run": "collectives.horovod.names:run"},
    "horovod.spark": {"run": "collectives.horovod.engines:run_on_spark"},
    "horovod.spark.runner": {"run": "collectives.horovod.engines:run_on_spark"},
    "horovod.tensorflow.util": {
        "_executing_eagerly": "tensorflow:executing_eagerly",
        "_make_subgraph": "tensorflow:function",
    },
}
MISSING = {
    "mxnet": "mxnet has no front end here",
    "spark": "horovod.spark has run",
    "ray": "horovod.ray has RayExecutor",
    "runner": "ranks are started by horovod.run or by collectives run --as-horovod",
    "tensorflow.data": "its service for tf.data is not there",
    "tensorflow.gradient_aggregation": "pass backward_passes_per_step= to the optimizer",
    "tensorflow.gradient_aggregation_eager": "pass backward_passes_per_step= to the optimizer",
}


def exported(names: Mapping[str, Any], *modules: str) -> list[str]:
    """Return the public names of a front end, and the `modules` in it that Horovod also has. Local.

    Star imports bring these names, and also re-export them for type checkers.
    """
    return sorted(
        name
        for name, value in names.items()
        if name[0] != "_" and (name in modules or not isinstance(value, ModuleType))
    )


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A finder of Horovod's modules."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != "horovod":
            return None
        known = _known(fullname)
        if known is None:
            raise ModuleNotFoundError(
                f"{fullname} cannot be imported under collectives.as_horovod: {_reason(fullname)}",
                name=fullname,
            )
        is_package = not isinstance(known, str) and any(
            each.startswith(f"{fullname}.") for each in MODULES
        )
        return importlib.machinery.ModuleSpec(
            fullname,
            self,
            loader_state=known,
            is_package=is_package or fullname == "horovod.runner",
        )

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        if not isinstance(spec.loader_state, str):
            return None
        module = importlib.import_module(spec.loader_state)
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        spec = module.__spec__
        assert spec is not None
        if isinstance(spec.loader_state, importlib.machinery.ModuleSpec):
            module.__spec__ = spec.loader_state  # the module keeps its own spec
            return
        for name, place in spec.loader_state.items():
            source, _, attribute = place.partition(":")
            setattr(module, name, getattr(importlib.import_module(source), attribute))

    def find_distributions(self, context: DistributionFinder.Context) -> Iterable[Distribution]:
        """Yield the distribution of Horovod, for `importlib.metadata`."""
        from importlib import metadata

        class Installed(metadata.Distribution):
            def read_text(self, filename: str) -> str | None:
                text = f"Metadata-Version: 2.1\nName: horovod\nVersion: {VERSION}\n"
                return text if filename == "METADATA" else None

            def locate_file(self, path: Any) -> Any:
                raise FileNotFoundError(f"horovod has no file {path} under collectives.as_horovod")

        if context.name is None or context.name.lower() == "horovod":
            yield Installed()


def _known(fullname: str) -> str | dict[str, str] | None:
    """Return the replacement of a module of Horovod, or None."""
    if fullname in MODULES:
        return MODULES[fullname]
    name = fullname.removeprefix("horovod.")
    found = f"collectives.{name}"
    if name.partition(".")[0] not in FRONT_ENDS or importlib.util.find_spec(found) is None:
        return None
    return found


def _reason(fullname: str) -> str:
    parts = fullname.split(".")[1:]
    places = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
    return next((MISSING[each] for each in places if each in MISSING), "it is not there")


_finder = _Finder()


def install() -> None:
    """Replace Horovod by this library in the imports of this process. Local.

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


class _Installing:
    """An object that installs the finder when it is unpickled."""

    def __reduce__(self) -> Any:
        return install, ()


class Installed:
    """A function for other processes, which install the finder before they unpickle it and its
    arguments.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __reduce__(self) -> Any:
        return _second, (_Installing(), self._function)

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self._function(*args, **keywords)


def _second(installed: None, function: T) -> T:
    return function


def _call(func: Callable[..., T], args: Sequence[Any], kwargs: Mapping[str, Any]) -> T:
    return func(*args, **kwargs)


# Options of Horovod that would change the ranks or their execution.
ELSEWHERE = (
    "executable",
    "host_discovery_script",
    "hostfile",
    "hosts",
    "max_np",
    "max_num_proc",
    "min_np",
    "min_num_proc",
    "mpi_args",
    "output_filename",
)


def run(
    func: Callable[..., T],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int = 1,
    *,
    np: int | None = None,
    **options: Any,
) -> list[T]:
    """Call a function on ranks of this host, by `collectives.spawn`. Local.

    Options of the launcher that have no meaning here, such as ``use_mpi``, are ignored.
    """
    from collectives.launch.spawning import spawn

    asked = [name for name in ELSEWHERE if options.get(name) is not None]
    if asked:
        raise NotImplementedError(
            f"horovod.run starts its ranks on this host, and takes no {', '.join(asked)}: start "
            f"the program with collectives run --as-horovod"
        )
    return spawn(Installed(_call), num_proc if np is None else np, func, args, kwargs or {})
