"""The names that programs import from ``horovod.common.util``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from collectives.horovod import basics
from collectives.process import environment

FRONT_ENDS = ("torch", "tensorflow", "keras")


def _built(function: Any) -> Any:
    """Return a function of `basics` that also accepts `verbose`."""
    return lambda verbose=False: function()


mpi_built = _built(basics.mpi_built)
gloo_built = _built(basics.gloo_built)
nccl_built = _built(basics.nccl_built)
ddl_built = _built(basics.ddl_built)
ccl_built = _built(basics.ccl_built)


def check_extension(*arguments: Any, **options: Any) -> bool:
    """Return True: there are no extensions to compile."""
    return True


def extension_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether there is a front end with that name."""
    return ext_base_name.removeprefix("horovod.") in FRONT_ENDS


def gpu_available(ext_base_name: str, verbose: bool = False) -> bool:
    """Return whether torch has a GPU, for its front end; other frameworks copy from GPUs
    themselves.
    """
    torch = sys.modules.get("torch")
    is_of_torch = ext_base_name.removeprefix("horovod.") == "torch"
    return torch is not None and is_of_torch and bool(torch.cuda.is_available())


def env(**kwargs: str | None) -> AbstractContextManager[None]:
    """Return a context with environment variables, except for values of None."""
    return environment.having(**kwargs)


def num_rank_is_power_2(num_rank: int) -> bool:
    """Return whether a number is a power of two."""
    return num_rank > 0 and num_rank.bit_count() == 1


def split_list(values: Sequence[Any], n: int) -> list[Sequence[Any]]:
    """Divide a list into `n` parts whose lengths differ by at most one."""
    share, more = divmod(len(values), n)
    ends = [k * share + min(k, more) for k in range(n + 1)]
    return [values[ends[k] : ends[k + 1]] for k in range(n)]


def is_iterable(x: Any) -> bool:
    """Return whether a value can be iterated over."""
    return isinstance(x, Iterable) or hasattr(x, "__getitem__")


def is_version_greater_equal_than(ver: str, target: str) -> bool:
    """Return whether a version is at least `target`, which has three numbers."""
    from packaging import version

    if not (isinstance(ver, str) and isinstance(target, str)) or target.count(".") != 2:
        raise ValueError(
            f"the versions are {ver!r} and {target!r}, and must be texts, the second one such as "
            f"'2.4.0'"
        )
    return version.parse(ver) >= version.parse(target)
