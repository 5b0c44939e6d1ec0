"""The collectives on arrays of JAX, eagerly and inside compiled programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from collectives import default
from collectives.communicator import Communicator
from collectives.compiled import jax as compiled
from collectives.compiled.jax import called_back, is_compiled, settled
from collectives.errors import ArgumentError, CollectivesError
from collectives.horovod.errors import HorovodInternalError
from collectives.jax.primitive import CallParameters, transformed
from collectives.reductions import ALL, SUM, Reduction
from collectives.text.words import shown


def allreduce(
    x: Any,
    *,
    op: Reduction | str = SUM,
    comm: Communicator | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    algorithm: str | None = None,
    bits: str | None = None,
    timeout: float | None = None,
) -> jax.Array:
    """Fold the arrays of all ranks, element by element; every rank gets the result.
    Collective.

    Its gradient is the allreduce of the gradients of all ranks, with the same `op`: the sum of
    the contributions of all ranks' results. A batch of `jax.vmap` is one call.

    Parameters
    ----------
    x : array
        An array of JAX, which may be traced, or an argument of `jax.numpy.asarray`. Shape and dtype
        are the same on all ranks.
    op : Reduction or str
        As for `Communicator.allreduce`. ``SUM`` and ``AVG`` have a gradient.
    comm : Communicator, optional
        The ranks; the default communicator if it is None.
    prescale, postscale, algorithm, bits, timeout
        As for `Communicator.allreduce`.

    Returns
    -------
    jax.Array
        With the shape and the dtype of `x`.

    Raises
    ------
    CollectivesError
        As for `Communicator.allreduce`. Errors in arguments are raised when a function is traced;
        for errors when a compiled program runs, see `own_errors`.
    """
    scales = {"prescale": prescale, "postscale": postscale}
    how = {"algorithm": algorithm, "bits": bits, "timeout": timeout}
    return _made("allreduce", x, comm, op=op, **how, **scales)


def reduce_scatter(
    x: Any,
    *,
    op: Reduction | str = SUM,
    comm: Communicator | None = None,
    prescale: float = 1.0,
    postscale: float = 1.0,
    algorithm: str | None = None,
    bits: str | None = None,
    timeout: float | None = None,
) -> jax.Array:
    """Fold the arrays of all ranks; each rank gets an equal part of the result.
    Collective.

    Its gradient is the allgather of the gradients of the parts.

    Parameters
    ----------
    x : array
        As for `allreduce`. Its number of elements is a multiple of the number of ranks.
    op, comm, prescale, postscale, algorithm, bits, timeout
        As for `allreduce`.

    Returns
    -------
    jax.Array
        One part, cut along the first axis if that is possible, and of one dimension otherwise.

    Raises
    ------
    CollectivesError
        As for `allreduce`.
    """
    scales = {"prescale": prescale, "postscale": postscale}
    how = {"algorithm": algorithm, "bits": bits, "timeout": timeout}
    return _made("reduce_scatter", x, comm, op=op, **how, **scales)


def allgather(
    x: Any,
    *,
    comm: Communicator | None = None,
    algorithm: str | None = None,
    timeout: float | None = None,
) -> jax.Array:
    """Give the arrays of all ranks to every rank.
    Collective.

    Its gradient is the reduce_scatter of the gradients, with ``SUM``.

    Parameters
    ----------
    x : array
        As for `allreduce`.
    comm, algorithm, timeout
        As for `allreduce`.

    Returns
    -------
    jax.Array
        Of shape ``(size, *x.shape)``, in the order of the ranks.

    Raises
    ------
    CollectivesError
        As for `allreduce`.
    """
    return _made("allgather", x, comm, algorithm=algorithm, timeout=timeout)


def broadcast(
    x: Any,
    *,
    root: int = 0,
    comm: Communicator | None = None,
    algorithm: str | None = None,
    timeout: float | None = None,
) -> jax.Array:
    """Give the root's array to every rank.
    Collective.

    Its gradient is the sum of the gradients of all ranks on the root, and zero on others.

    Parameters
    ----------
    x : array
        As for `allreduce`. Only the root's array is read.
    root : int
        The rank that has the data.
    comm, algorithm, timeout
        As for `allreduce`.

    Returns
    -------
    jax.Array
        With the shape and the dtype of `x`.

    Raises
    ------
    CollectivesError
        As for `allreduce`.
    """
    return _made("broadcast", x, comm, root=root, algorithm=algorithm, timeout=timeout)


def alltoall(
    x: Any,
    *,
    comm: Communicator | None = None,
    algorithm: str | None = None,
    timeout: float | None = None,
) -> jax.Array:
    """Send a part of each rank's array to each rank: a transpose over the ranks.
    Collective.

    Its gradient is the alltoall of the gradients, which go back to the ranks of the parts.

    Parameters
    ----------
    x : array
        As for `allreduce`. Its first ``x.size // size`` elements go to rank 0, and so on.
    comm, algorithm, timeout
        As for `allreduce`.

    Returns
    -------
    jax.Array
        With the shape of `x`: the received parts, the one from rank 0 first.

    Raises
    ------
    CollectivesError
        As for `allreduce`.
    """
    return _made("alltoall", x, comm, algorithm=algorithm, timeout=timeout)


def barrier(*, comm: Communicator | None = None, timeout: float | None = None) -> None:
    """Wait until all ranks have called it.
    Collective.

    In a compiled program, the collectives that come later wait for it.

    Parameters
    ----------
    comm, timeout
        As for `allreduce`.

    Raises
    ------
    CollectivesError
        As for `Communicator.barrier`.
    """
    ranks = communicator(comm)
    if is_compiled():
        called_back(partial(ranks.barrier, timeout=timeout), None)
    else:
        settled()
        ranks.barrier(timeout=timeout)


def _made(kind: str, x: Any, comm: Communicator | None, **options: Any) -> jax.Array:
    op = options.get("op")
    if isinstance(op, str):
        options["op"] = next((each for each in ALL if each.name == op.upper()), op)
    x = x if isinstance(x, jax.Array) else jnp.asarray(x)
    return transformed(CallParameters(kind, communicator(comm), **options), x)


def communicator(comm: Any) -> Communicator:
    """Return the passed communicator, or the default one. Local."""
    if comm is None:
        return default.world()
    if not isinstance(comm, Communicator):
        raise ArgumentError(f"comm is {shown(comm)}, and must be a Communicator or None")
    return comm


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise the library's own errors for compiled programs that have failed because of them.
    Local.

    A collective that fails in a compiled program ends the program, and JAX raises an error of its
    own, which has the text. In a ``with`` statement of this function, or in a function that it
    decorates, the error of the library is raised instead. The end of the statement waits for the
    programs that were started in it.

    Raises
    ------
    CollectivesError
        The error of the collective.

    Examples
    --------
    >>> import jax, jax.numpy as jnp, collectives.jax as cj
    >>> with cj.own_errors():
    ...     total = jax.jit(cj.allreduce)(jnp.ones(3))
    """
    try:
        with compiled.own_errors():
            yield
    except HorovodInternalError as error:
        if isinstance(error.__cause__, CollectivesError):
            raise error.__cause__ from None
        raise
