"""Keras on torch: gradients are dense, and a step runs when all of them are there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from collectives.graphs.terms import Terms
from collectives.horovod.handles import Submitted, grouped, submit
from collectives.horovod.ops import scaling
from collectives.torch.blocking import grouped_allreduce
from collectives.torch.compression import Compression
from collectives.torch.handles import array, new
from collectives.torch.reducing import is_double

own_errors = nullcontext  # errors of the library come out as they are
ARE_SEEN_LATE = True


@torch.compiler.disable  # type: ignore[untyped-decorator]
def reduced(tensors: Sequence[torch.Tensor], terms: Terms) -> list[torch.Tensor]:
    """Return `tensors` as they are reduced over the ranks, by `terms`. Collective."""
    factors = terms.prescale, terms.postscale
    with torch.no_grad():
        if terms.codec is not None:
            return _coded(tensors, terms)
        compression: Any = terms.compression or Compression.none
        return grouped_allreduce(
            tensors, None, terms.name, compression, terms.op, *factors, terms.process_set
        )


def _coded(tensors: Sequence[torch.Tensor], terms: Terms) -> list[torch.Tensor]:
    """Return tensors that were sent by a codec of the library."""
    comm = terms.process_set.comm()

    def start(tensor: torch.Tensor, name: str | None) -> Submitted:
        x = array(tensor)
        scales = terms.prescale, terms.postscale
        how = scaling(terms.op, True, *scales, comm.size, is_double(tensor))
        coded = {"compression": terms.codec, "group": comm, "op": how.op}
        coded |= {"prescale": how.prescale, "postscale": how.postscale}
        return submit("allreduce", name, x, new(x), **coded), None

    made: list[torch.Tensor] = grouped(terms.name, tensors, start).wait()
    return made


def is_sparse(tensor: torch.Tensor) -> bool:
    """Return whether a `tensor` lists some rows only: `densified` leaves none. Local."""
    return False


def densified(tensor: torch.Tensor) -> torch.Tensor:
    """Return a `tensor` with all rows. Local."""
    return tensor if tensor.layout is torch.strided else tensor.to_dense()


def rows_reduced(tensor: Any, terms: Any) -> Any:
    """Refuse a `tensor` that lists some rows only, whatever the `terms`: there is none. Local."""
    raise NotImplementedError


def branch(condition: Any, yes: Callable[[], object], no: Callable[[], object]) -> None:
    """Run `yes` or `no`, as the `condition` says. Local."""
    yes() if condition else no()


def unconverted(function: Any) -> Any:
    """Return the `function`, which nothing rewrites. Local."""
    return function
