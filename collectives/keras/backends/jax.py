"""Keras on JAX: gradients are dense, and what is missing is known when a step is traced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from collectives.graphs.jax import own_errors, reduced

__all__ = [
    "ARE_SEEN_LATE",
    "branch",
    "densified",
    "is_sparse",
    "own_errors",
    "reduced",
    "rows_reduced",
    "unconverted",
]

ARE_SEEN_LATE = False


def is_sparse(tensor: Any) -> bool:
    """Return whether a `tensor` lists some rows only: none does. Local."""
    return False


def densified(tensor: Any) -> Any:
    """Return a `tensor` with all rows: itself. Local."""
    return tensor


def rows_reduced(tensor: Any, terms: Any) -> Any:
    """Refuse a `tensor` that lists some rows only, whatever the `terms`: there is none. Local."""
    raise NotImplementedError


def branch(condition: Any, yes: Callable[[], object], no: Callable[[], object]) -> None:
    """Run `yes` or `no`, as the `condition` says. Local."""
    yes() if condition else no()


def unconverted(function: Any) -> Any:
    """Return the `function`, which nothing rewrites. Local."""
    return function
