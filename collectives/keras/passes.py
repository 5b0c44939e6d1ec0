"""Gradients that add up over several backward passes, until an optimizer takes a step.

The sums, and the number of passes that are in them, are variables of the optimizer: Keras hands
them through compiled steps on JAX. They are not saved, and each rank has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras

from collectives.keras.gradients import Plan


class Sums:
    """The sums of the gradients of some variables."""

    def __init__(self, variables: Sequence[Any], plan: Plan) -> None:
        self.plan = plan
        self.count = keras.Variable(0, dtype="int32", trainable=False, name="passes")
        self.places = {id(each): k for k, each in enumerate(variables)}
        self.sums = [
            keras.Variable(
                keras.initializers.Zeros(),
                shape=each.shape,
                dtype=each.dtype,
                trainable=False,
                name=f"sum_of_gradients_{k}",
            )
            for k, each in enumerate(variables)
        ]
        self.seen: set[int] = set()  # which have had a gradient

    @property
    def variables(self) -> list[Any]:
        """All variables of it."""
        return [self.count, *self.sums]

    def add(
        self,
        grads: Sequence[Any],
        variables: Sequence[Any],
        step: Callable[[list[Any]], object],
        skip: Callable[[], object],
    ) -> None:
        """Add gradients; after the last pass, take a step with their sums. Collective."""
        on = self.plan.on
        sums = [self.sums[self.places[id(each)]] for each in variables]
        for k, (each, total) in enumerate(zip(grads, sums, strict=True)):
            if each is not None:
                total.assign_add(keras.ops.cast(on.densified(each), total.dtype))
                self.seen.add(k)
        self.count.assign_add(1)

        def last() -> None:
            step(self.settled([each.value for each in sums]))
            for each in self.variables:
                each.assign(keras.ops.zeros(each.shape, each.dtype))
            if on.ARE_SEEN_LATE:
                self.seen.clear()

        on.branch(keras.ops.equal(self.count, self.plan.passes), last, skip)

    def added(self, totals: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
        """Return sums with gradients added, where variables cannot be changed. Local."""
        self.seen.update(k for k, each in enumerate(grads) if each is not None)
        return [
            total if each is None else total + keras.ops.cast(each, total.dtype)
            for total, each in zip(totals, grads, strict=True)
        ]

    def settled(self, totals: Sequence[Any]) -> list[Any]:
        """Return the gradients that sums stand for: None where there was none. Local."""
        found = [each if k in self.seen else None for k, each in enumerate(totals)]
        if not self.plan.averages:
            return found
        count = float(self.plan.passes)
        return [None if each is None else keras.ops.divide(each, count) for each in found]
