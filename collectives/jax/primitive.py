"""One collective on arrays of JAX, and its rules for the transformations of JAX."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap

from collectives import _core
from collectives.communicator import Communicator
from collectives.compiled.jax import called_back, is_compiled, is_traced, settled
from collectives.errors import ArgumentError, UnsupportedTypeError
from collectives.reductions import AVG, SUM, Reduction

FOLDS = ("allreduce", "reduce", "reduce_scatter")


class CallParameters(NamedTuple):
    """A collective with its arguments, except for the array. Equal arguments make equal objects.

    Attributes
    ----------
    kind : str
        The name of the collective. A ``"reduce"`` gives zeros to all ranks but the root.
    comm : Communicator
    op : Reduction or str
    root : int
    prescale, postscale : float
    algorithm, bits : str or None
    timeout : float or None
    """

    kind: str
    comm: Communicator
    op: Reduction | str = SUM
    root: int = 0
    prescale: float = 1.0
    postscale: float = 1.0
    algorithm: str | None = None
    bits: str | None = None
    timeout: float | None = None

    def __call__(self, x: jax.Array) -> jax.Array:
        """Make the call with `x`, now or in the compiled program. Collective."""
        if not is_compiled(x):
            check_dtype(x)
            settled()
            result: jax.Array = self.run(x)
            return result
        self.check(x)
        made: jax.Array = called_back(
            self.run, jax.ShapeDtypeStruct(self.shape(x.shape), x.dtype), x
        )
        return made

    def run(self, x: Any) -> Any:
        """Make the call with `x`, an array of NumPy or JAX; return the result. Collective."""
        options: dict[str, Any] = {"algorithm": self.algorithm, "timeout": self.timeout}
        if self.kind in FOLDS:
            options |= {"op": self.op, "prescale": self.prescale, "postscale": self.postscale}
            options["bits"] = self.bits
        if self.kind in ("broadcast", "reduce"):
            options["root"] = self.root
        result = getattr(self.comm, self.kind)(x, **options)
        if result is None:  # of a reduce, on all ranks but the root
            return (np if isinstance(x, np.ndarray) else jnp).zeros(x.shape, x.dtype)
        return result

    def check(self, like: Any) -> None:
        """Raise the error of the call for an array like `like`, with any values. Local."""
        check_dtype(like)
        self.comm._engine.check_root(self.root)
        blank = np.empty(like.shape, like.dtype)
        op = self.op if self.kind in FOLDS else None
        scales = self.prescale, self.postscale
        number = _core.COLLECTIVES.index(self.kind)
        how = self.algorithm, self.bits
        self.comm._engine.inspect(number, blank, None, op, 0, *how, *scales)

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the result for an array of this `shape`. Local."""
        size = self.comm.size
        if self.kind == "allgather":
            return (size, *shape)
        if self.kind != "reduce_scatter":
            return shape
        if shape and shape[0] % size == 0:
            return (shape[0] // size, *shape[1:])
        return (prod(shape) // size,)

    def batched(self, xs: jax.Array) -> jax.Array:
        """Make one call for `xs`, arrays along the first axis; return the results along it.
        Collective.
        """
        if self.kind == "allgather":
            return jnp.moveaxis(transformed(self, xs), 1, 0)
        if self.kind not in ("reduce_scatter", "alltoall"):
            return transformed(self, xs)
        count, *shape = xs.shape
        self.check(jax.ShapeDtypeStruct(tuple(shape), xs.dtype))
        # The data for a rank is contiguous in each array, and has to be contiguous here.
        size = self.comm.size
        parts = xs.reshape(count, size, prod(shape) // size)
        moved = transformed(self, jnp.moveaxis(parts, 1, 0))
        if self.kind == "alltoall":
            return jnp.moveaxis(moved, 0, 1).reshape(xs.shape)
        return moved.reshape(count, *self.shape(tuple(shape)))

    def transposed(self, cotangent: jax.Array, shape: tuple[int, ...]) -> jax.Array:
        """Return the cotangent of an array of this `shape`, given the `cotangent` of the result.
        Collective.
        """
        other, factor = DUALS[self.kind], 1.0
        call = self._replace(kind=other, algorithm=None)
        if self.kind in FOLDS and self.op not in (SUM, AVG):
            name = getattr(self.op, "name", self.op)
            raise ArgumentError(f"{self.kind} with op {name} has no gradient: SUM and AVG have one")
        if self.kind != other:  # only one of them scales
            if self.kind in FOLDS:
                size = self.comm.size if self.op == AVG else 1
                factor = self.prescale * self.postscale / size
            call = call._replace(op=SUM, prescale=1.0, postscale=1.0)
        result = transformed(call, cotangent).reshape(shape)
        return result if factor == 1.0 else result * factor


# Each collective is linear: a matrix with a block for each two ranks. Its transpose is that of the
# other one.
DUALS = {
    "allreduce": "allreduce",
    "reduce_scatter": "allgather",
    "allgather": "reduce_scatter",
    "broadcast": "reduce",
    "reduce": "broadcast",
    "alltoall": "alltoall",
}


def check_dtype(x: Any) -> None:
    """Raise an error if the elements of an array are no numbers. Local."""
    if not isinstance(x.dtype, np.dtype):
        raise UnsupportedTypeError(
            f"x has the dtype {x.dtype}, which only JAX knows; of a key, pass "
            f"jax.random.key_data(key)"
        )


def transformed(call: CallParameters, x: jax.Array) -> jax.Array:
    """Make a call with an array, which JAX may trace, differentiate or batch. Collective."""
    if not is_traced(x):
        return call(x)
    return _differentiable(call, x.shape, x)


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _differentiable(call: CallParameters, shape: tuple[int, ...], x: jax.Array) -> jax.Array:
    if not is_traced(x):
        return call(x)
    one = custom_vmap(call.__call__)
    one.def_vmap(lambda size, is_batched, xs: (call.batched(xs), True))
    made: jax.Array = one(x)
    return made


def _forward(call: CallParameters, shape: tuple[int, ...], x: jax.Array) -> tuple[jax.Array, None]:
    return _differentiable(call, shape, x), None


def _backward(
    call: CallParameters, shape: tuple[int, ...], _: None, cotangent: jax.Array
) -> tuple[Any]:
    if cotangent.dtype == jax.dtypes.float0:  # of integers
        return (np.zeros(shape, jax.dtypes.float0),)
    return (call.transposed(cotangent, shape),)


_differentiable.defvjp(_forward, _backward)
