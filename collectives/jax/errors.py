"""The errors of collectives in compiled programs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from collectives.compiled import jax as compiled
from collectives.errors import CollectivesError
from collectives.horovod.errors import HorovodInternalError


@contextmanager
def own_errors() -> Iterator[None]:
    """Raise the library's own errors where compiled programs have failed because of them.
    Local.

    A collective that fails in a compiled program ends the program, and JAX raises an error of its
    own, which has the text. In a ``with`` statement, or below a decorator of this name, it is the
    error of the library instead. At the end, it is waited for what was started in the statement.

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
