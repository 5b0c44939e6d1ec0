"""The gradients of one step, reduced over the ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np

from collectives.graphs.terms import Terms
from collectives.horovod.arrays import allreduce_async
from collectives.horovod.ops import Sum


class Plan(NamedTuple):
    """How a distributed optimizer reduces its gradients.

    Attributes
    ----------
    on : module
        That of the framework, as `backends` has it.
    terms : Terms
    sparse_as_dense : bool
        Whether gradients that list some rows only are reduced with all rows.
    passes : int
        How many backward passes add up to a gradient that is reduced.
    averages : bool
        Whether that is divided by the number of passes.
    local : list
        Layers and variables whose gradients are not reduced.
    scales_local : bool
        Whether those are divided by the number of ranks.
    """

    on: Any
    terms: Terms
    sparse_as_dense: bool
    passes: int
    averages: bool
    local: list[Any]
    scales_local: bool

    @property
    def is_alone(self) -> bool:
        """Whether this rank has nobody to reduce with."""
        return not self.terms.process_set.included() or self.terms.is_alone

    def local_ids(self) -> set[int]:
        """Return the ids of the variables whose gradients are not reduced. Local.

        Layers may have been built since the last call.
        """
        found: set[int] = set()
        for each in self.local:
            variables = each.trainable_variables if isinstance(each, keras.Layer) else [each]
            found.update(id(variable) for variable in variables)
        return found


def reduced(grads: Sequence[Any], variables: Sequence[Any], plan: Plan) -> list[Any]:
    """Return gradients as they are reduced over the ranks. Collective."""
    made = list(grads)
    if plan.is_alone:
        return made
    local = plan.local_ids() if plan.local else ()
    shared = [k for k, each in enumerate(variables) if id(each) not in local]
    results = _shared([made[k] for k in shared], [variables[k] for k in shared], plan)
    size = plan.terms.process_set.comm().size
    for k, each in enumerate(made):
        if id(variables[k]) in local and each is not None and plan.scales_local:
            made[k] = keras.ops.divide(each, float(size))
    for k, result in zip(shared, results, strict=True):
        made[k] = result
    return made


def _shared(grads: list[Any], variables: list[Any], plan: Plan) -> list[Any]:
    """Return the gradients of variables that all ranks share."""
    on, terms = plan.on, plan.terms
    missing: list[int] = []
    if on.ARE_SEEN_LATE:
        grads, missing = _filled(grads, variables, terms)
    there = [k for k, each in enumerate(grads) if each is not None and k not in missing]
    rows = [k for k in there if on.is_sparse(grads[k]) and not plan.sparse_as_dense]
    whole = [k for k in there if k not in rows]
    results: dict[int, Any] = {}
    if whole:
        made = on.reduced([on.densified(grads[k]) for k in whole], terms)
        results = dict(zip(whole, made, strict=True))
    for k in rows:
        name = f"{terms.name}, rows of {k + 1} of {len(grads)}"
        results[k] = on.rows_reduced(grads[k], terms._replace(name=name))
    return [results.get(k) for k in range(len(grads))]


def _filled(grads: list[Any], variables: list[Any], terms: Terms) -> tuple[list[Any], list[int]]:
    """Return gradients with zeros where only other ranks have one, and which no rank has."""
    marks = np.array([each is not None for each in grads], np.float32)
    name = f"{terms.name}, which there are"
    found = allreduce_async(marks, marks, name, Sum, process_set=terms.process_set).wait()
    filled = [
        keras.ops.zeros(variable.shape, variable.dtype) if each is None else each
        for each, variable in zip(grads, variables, strict=True)
    ]
    return filled, np.flatnonzero(found == 0).tolist()
