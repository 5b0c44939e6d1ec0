"""JAX: collectives on its arrays, eagerly and in compiled programs, and data parallel training.

`calls` has the collectives. They take and return arrays of JAX, and can be used under `jax.jit`,
`jax.grad`, `jax.vmap` and in loops; `primitive` defines the result of these transformations. In a
compiled program, they run in the order in which they were traced. `training` averages gradients and
sends parameters. Of the other packages of the library, only `compiled` imports JAX. optax is
imported only where it is used.
"""

try:
    import jax as _jax
except ImportError as error:
    raise ImportError(
        f"collectives.jax needs JAX, which cannot be imported ({error}): pip install jax"
    ) from error

from collectives.jax.calls import (
    allgather,
    allreduce,
    alltoall,
    barrier,
    broadcast,
    own_errors,
    reduce_scatter,
)
from collectives.jax.training import allreduce_gradients, broadcast_parameters, distributed

__all__ = [
    "allgather",
    "allreduce",
    "allreduce_gradients",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_parameters",
    "distributed",
    "own_errors",
    "reduce_scatter",
]

del _jax
