"""Data parallel training: gradients that are reduced, optimizers of optax, and equal parameters."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import Any

import jax
import jax.numpy as jnp

from collectives.communicator import Communicator
from collectives.compiled.jax import reduced
from collectives.compression import Compressor
from collectives.errors import ArgumentError, MismatchError
from collectives.horovod.gradients import GradientOptions
from collectives.horovod.ops import Average, Sum
from collectives.horovod.process_sets import ProcessSet
from collectives.jax.calls import broadcast, communicator, own_errors
from collectives.reductions import AVG, SUM, Reduction
from collectives.text.words import shown, spans


def allreduce_gradients(
    gradients: Any,
    *,
    op: Reduction | str = AVG,
    comm: Communicator | None = None,
    compression: Compressor | str | None = None,
    name: str = "gradients",
) -> Any:
    """Average the gradients of all ranks.
    Collective.

    In a compiled program, gradients are submitted to `collectives.background` while it computes
    others. Small ones are sent together.

    Parameters
    ----------
    gradients : nested value of array
        As `jax.grad` returns it, of the same structure, shapes and dtypes on all ranks.
    op : Reduction or str
        ``AVG``, or ``SUM``.
    comm : Communicator, optional
        The ranks; the default communicator if it is None.
    compression : Compressor or str, optional
        Send fewer bytes: a codec of `collectives.compression`, or its name, such as ``"int8"``. It
        adds the rest of a gradient that it has not sent to the same gradient in the next step.
    name : str
        The name of the gradients. If a program compresses, each model needs a different one.

    Returns
    -------
    nested value of jax.Array

    Raises
    ------
    ArgumentError
        If an argument cannot be accepted.
    CollectivesError
        As for `collectives.background.submit`; see `own_errors` for compiled programs.
    """
    chosen = {AVG: Average, SUM: Sum, "AVG": Average, "SUM": Sum}.get(
        op.upper() if isinstance(op, str) else op
    )
    if chosen is None:
        raise ArgumentError(f"op is {shown(op)}, and must be AVG or SUM for gradients")
    ranks = _process_set(communicator(comm))
    leaves, structure = jax.tree.flatten(gradients)
    options = GradientOptions(
        chosen, compression=compression, process_set=ranks, name=name, labels=_labels(structure)
    )
    with own_errors():
        return jax.tree.unflatten(structure, reduced(leaves, options))


@lru_cache(maxsize=64)
def _labels(structure: Any) -> list[str]:
    """Return the places of leaves in a nested value, such as ``['w'][0]``; empty for a leaf."""
    numbered = jax.tree.unflatten(structure, range(structure.num_leaves))
    pairs, _ = jax.tree_util.tree_flatten_with_path(numbered)
    return [jax.tree_util.keystr(path) for path, _ in pairs]


def _process_set(comm: Communicator) -> ProcessSet:
    """Return the process set of a communicator, for the submissions of gradients."""
    made = ProcessSet(range(comm.size))
    made.communicator = comm
    return made


def distributed(
    optimizer: Any,
    *,
    op: Reduction | str = AVG,
    comm: Communicator | None = None,
    compression: Compressor | str | None = None,
    name: str = "gradients",
) -> Any:
    """Return an optimizer of optax that averages the gradients of all ranks first.
    Local.

    Its state is that of the optimizer, which can load it.

    Parameters
    ----------
    optimizer : optax.GradientTransformation
    op, comm, compression, name
        As for `allreduce_gradients`, which ``update`` calls.

    Returns
    -------
    optax.GradientTransformationExtraArgs

    Raises
    ------
    ImportError
        If optax cannot be imported.
    """
    try:
        import optax
    except ImportError as error:
        raise ImportError(
            f"collectives.jax.distributed needs optax, which cannot be imported ({error}): "
            f"pip install optax; or pass gradients to allreduce_gradients"
        ) from error
    inner = optax.with_extra_args_support(optimizer)
    options: dict[str, Any] = {"op": op, "comm": comm, "compression": compression, "name": name}

    def update(updates: Any, state: Any, params: Any = None, **extra: Any) -> Any:
        return inner.update(allreduce_gradients(updates, **options), state, params, **extra)

    return optax.GradientTransformationExtraArgs(inner.init, update)


def broadcast_parameters(
    parameters: Any, *, root: int = 0, comm: Communicator | None = None
) -> Any:
    """Give the parameters of one rank to all ranks.
    Collective.

    Parameters
    ----------
    parameters : nested value of array
        Parameters, the state of an optimizer, or both: of the same structure, shapes and dtypes on
        all ranks. Keys of `jax.random` and numbers of Python are arrays, too.
    root : int
        The rank whose parameters they are.
    comm : Communicator, optional
        As for `allreduce_gradients`.

    Returns
    -------
    nested value of jax.Array

    Raises
    ------
    MismatchError
        If the parameters of the ranks have different structures, shapes or dtypes. Nothing was
        sent.
    CollectivesError
        As for `broadcast`.
    """
    ranks = communicator(comm)
    leaves, structure = jax.tree.flatten(parameters)
    arrays = [jnp.asarray(each) for each in leaves]
    kinds = [f"{x.dtype}{list(x.shape)}" for x in arrays]
    _compare(f"{structure} of {', '.join(kinds)}", ranks)
    return jax.tree.unflatten(structure, [_sent(x, root, ranks) for x in arrays])


def _compare(text: str, comm: Communicator) -> None:
    """Raise an error on all ranks if a text is not the same on all of them. Collective."""
    digests = comm.allgather_object(hashlib.sha256(text.encode()).digest())
    others = [rank for rank, each in enumerate(digests) if each != digests[0]]
    if others:
        raise MismatchError(
            f"the parameters of rank{'s' if len(others) > 1 else ''} {spans(others)} have another "
            f"structure, or other shapes or dtypes, than those of rank 0; here they are {text}"
        )


def _sent(x: jax.Array, root: int, comm: Communicator) -> jax.Array:
    """Broadcast an array, or a key."""
    if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
        bits = _sent(jax.random.key_data(x), root, comm)
        key: jax.Array = jax.random.wrap_key_data(bits, impl=jax.random.key_impl(x))
        return key
    return broadcast(x, root=root, comm=comm)
