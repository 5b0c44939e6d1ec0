"""Distributed optimizers: the class of an optimizer is swapped for one with more methods.

The object stays the same, and its ``__class__`` still returns the old class, which Keras saves.
Gradients may add up over several backward passes, until the optimizer takes a step (`Sums`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import keras

from collectives.horovod.gradients import Framework, GradientOptions, Reducer, derived
from collectives.keras.values import check_alike

# The modules that reduce gradients on each backend of Keras; only the one in use is imported.
BACKENDS = {
    "tensorflow": ("collectives.compiled.tensorflow", "TensorFlow"),
    "torch": ("collectives.keras.torch", "Torch"),
    "jax": ("collectives.compiled.jax", "Jax"),
}


def backend() -> Framework:
    """Return the object that reduces gradients on Keras's backend. Local."""
    name = keras.backend.backend()
    if name not in BACKENDS:
        raise ImportError(
            f"collectives.keras needs Keras on TensorFlow, torch or JAX, and its backend is "
            f"{name}: set KERAS_BACKEND=tensorflow, torch or jax"
        )
    module, kind = BACKENDS[name]
    made: Framework = getattr(importlib.import_module(module), kind)()
    return made


class Distribution(Reducer):
    """The attributes that a distributed optimizer adds to its former class."""

    def __init__(self, on: Framework, options: GradientOptions) -> None:
        super().__init__(on, options)
        self.sums: Sums | None = None
        self.is_inside: bool = False  # whether a method of the optimizer's own class runs
        self.is_checked: bool = False  # whether the variables of the ranks have been compared

    def reduced(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        labels: Sequence[str] | None = None,
    ) -> list[Any]:
        """Return the gradients of variables, reduced over the ranks. Collective."""
        if not self.is_checked and not self.is_alone:
            local, options = self.local_keys(), self.options
            shared = [each for each in variables if self.on.key(each) not in local]
            check_alike(shared, f"variables of {options.name}", options.process_set)
            self.is_checked = True
        return super().reduced(gradients, variables, labels)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Restore the optimizer's own methods in a ``with`` statement. Local."""
        before, self.is_inside = self.is_inside, True
        try:
            yield
        finally:
            self.is_inside = before


class Sums:
    """The sums of the gradients of some variables over several passes.

    The sums and the number of their passes are variables of the optimizer, because Keras passes
    these through compiled steps on JAX. They are not saved, and each rank has its own.
    """

    on: Framework
    options: GradientOptions

    def __init__(self, variables: Sequence[Any], distribution: Distribution) -> None:
        self.on, self.options = distribution.on, distribution.options
        self.count: Any = keras.Variable(0, dtype="int32", trainable=False, name="passes")
        self.places: dict[int, int] = {id(each): k for k, each in enumerate(variables)}
        self.sums: list[Any] = [
            keras.Variable(
                keras.initializers.Zeros(),
                shape=each.shape,
                dtype=each.dtype,
                trainable=False,
                name=f"sum_of_gradients_{k}",
            )
            for k, each in enumerate(variables)
        ]
        self.seen: set[int] = set()  # variables that have had a gradient

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
        """Add gradients; after the last pass, make a step with their sums. Collective."""
        sums = [self.sums[self.places[id(each)]] for each in variables]
        for k, (each, total) in enumerate(zip(grads, sums, strict=True)):
            if each is not None:
                total.assign_add(keras.ops.cast(self.on.prepared(each, k + 1, True), total.dtype))
                self.seen.add(k)
        self.count.assign_add(1)

        def last() -> None:
            step(self.settled([each.value for each in sums]))
            for each in self.variables:
                each.assign(keras.ops.zeros(each.shape, each.dtype))
            if self.on.sees_late:
                self.seen.clear()

        self.on.branch(keras.ops.equal(self.count, self.options.passes), last, skip)

    def added(self, totals: Sequence[Any], grads: Sequence[Any]) -> list[Any]:
        """Return the sums with gradients added, if variables cannot be changed. Local."""
        self.seen.update(k for k, each in enumerate(grads) if each is not None)
        return [
            total if each is None else total + keras.ops.cast(each, total.dtype)
            for total, each in zip(totals, grads, strict=True)
        ]

    def settled(self, totals: Sequence[Any]) -> list[Any]:
        """Return the sums as gradients: None for a variable without a gradient. Local."""
        found = [each if k in self.seen else None for k, each in enumerate(totals)]
        if not self.options.averages_passes:
            return found
        count = float(self.options.passes)
        return [None if each is None else keras.ops.divide(each, count) for each in found]


def holder_of(optimizer: Any) -> Any:
    """Return the object that counts the steps: the `optimizer`, or its inner one. Local."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def is_distributed(optimizer: Any) -> bool:
    """Return whether an `optimizer` reduces its gradients. Local."""
    return "_distribution" in getattr(optimizer, "__dict__", {})


def distribute(optimizer: Any, distribution: Distribution) -> Any:
    """Have an `optimizer` of Keras 3 reduce its gradients; return it. Local."""
    holder, passes = holder_of(optimizer), distribution.options.passes
    if passes > 1:
        if holder is not optimizer:
            swap_class(holder, _Counting)
        vars(holder)["_passes"] = passes
    swap_class(optimizer, _Distributed, apply=distribution.on.unconverted(_Distributed.apply))
    vars(optimizer)["_distribution"] = distribution  # otherwise Keras would search it for variables
    distribution.sums = None
    if passes > 1 and optimizer.built:
        distribution.sums = Sums(optimizer._trainable_variables, distribution)
    return optimizer


def release(optimizer: Any) -> Distribution:
    """Undo the distribution of an `optimizer`; return it. Local."""
    distribution: Distribution = optimizer._distribution
    for each in (optimizer, holder_of(optimizer)):
        vars(each).pop("_passes", None)
        vars(each).pop("_distribution", None)
        kind: Any = type(each)
        if issubclass(kind, _Counting):
            _CLASS.__set__(each, kind._plain)
    return distribution


def state_of(optimizer: Any) -> list[Any]:
    """Return the variables of an `optimizer` that all ranks share. Local."""
    with optimizer._distribution.inside() if is_distributed(optimizer) else nullcontext():
        found = optimizer.variables
        return list(found() if callable(found) else found)


def swap_class(optimizer: Any, methods: type, **more: Any) -> None:
    """Give an optimizer a class of the same name with more methods. Local."""
    plain: Any = type(optimizer)
    more |= {"__class__": property(lambda self: plain), "_plain": plain}
    _CLASS.__set__(optimizer, derived(plain, methods, **more))


_CLASS: Any = vars(object)["__class__"]  # sets an object's class, even if the object overrides it


class _Counting:
    """An optimizer whose steps take several passes. The optimizer's own class comes next in the
    method resolution order, so ``super()`` refers to it.
    """

    _passes = 1

    @property
    def iterations(self) -> Any:
        """The number of steps taken. Learning rate schedules count the passes instead."""
        parent: Any = super()
        if self._passes == 1:
            return parent.iterations
        return keras.ops.floor_divide(parent.iterations, self._passes)

    def __reduce__(self) -> Any:
        """Copy and pickle the original optimizer, which is not distributed."""
        parent: Any = super()
        function, *rest = parent.__reduce__()
        mine: Any = type(self)
        return getattr(mine._plain, function.__name__), *rest


def _of_steps(count: Any, passes: int) -> Any:
    """Return the passes of the steps taken: if loss scaling skips a step, its passes do not count.
    Local.
    """
    return keras.ops.subtract(count, keras.ops.mod(count, passes))


class _Distributed(_Counting):
    """The methods of an optimizer whose gradients are reduced."""

    _distribution: Distribution
    _trainable_variables: list[Any]
    built: bool

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Reduce the gradients, and update the variables with them. Collective."""
        parent, now = super(), self._distribution
        own: Any = parent
        if now.is_inside:
            own.apply(grads, trainable_variables)
            return
        grads = list(grads)
        given = trainable_variables if trainable_variables is None else list(trainable_variables)
        variables = self._trainable_variables if given is None else given

        def step(made: list[Any]) -> None:
            with now.inside():
                own.apply(made, given)

        if now.options.passes == 1 or not grads or len(grads) != len(variables):
            step(now.reduced(grads, variables) if len(grads) == len(variables) else grads)
            return
        if not self.built:
            self.build(variables)
        assert now.sums is not None

        def last(totals: list[Any]) -> None:
            step(now.reduced(totals, variables))
            counter = holder_of(self)._iterations
            counter.assign(_of_steps(counter.value, now.options.passes))

        now.sums.add(grads, variables, last, lambda: holder_of(self)._iterations.assign_add(1))

    def stateless_apply(
        self, optimizer_variables: Any, grads: Sequence[Any], trainable_variables: Any
    ) -> Any:
        """Return the variables as `apply` changes them. Collective."""
        own: Any = super()
        now, variables = self._distribution, self._trainable_variables

        def step(made: list[Any], state: list[Any]) -> Any:
            with now.inside():
                return own.stateless_apply(state, made, trainable_variables)

        if now.options.passes == 1:
            return step(now.reduced(grads, variables), optimizer_variables)
        assert now.sums is not None
        with now.inside():
            mine = list(self.variables)
        state, (count, *totals) = optimizer_variables[: len(mine)], optimizer_variables[len(mine) :]
        totals = now.sums.added(totals, grads)
        place = next(k for k, each in enumerate(mine) if each is holder_of(self)._iterations)

        def last() -> Any:
            assert now.sums is not None
            values, made = step(now.reduced(now.sums.settled(totals), variables), state)
            made = list(made)
            made[place] = _of_steps(made[place], now.options.passes)
            zeros = [keras.ops.zeros_like(each) for each in (count, *totals)]
            return list(values), [*made, *zeros]

        def skip() -> Any:
            made = [each + 1 if k == place else each for k, each in enumerate(state)]
            return list(trainable_variables), [*made, count + 1, *totals]

        return keras.ops.cond(keras.ops.equal(count + 1, now.options.passes), last, skip)

    def build(self, variables: Any) -> None:
        """Make the state for the `variables` to train. Local."""
        own: Any = super()
        own.build(variables)
        now = self._distribution
        if now.options.passes > 1 and now.sums is None:
            now.sums = Sums(self._trainable_variables, now)

    @property
    def variables(self) -> Any:
        """Its variables, also those that keep the sums of several passes."""
        own: Any = super()
        found, now = own.variables, self._distribution
        if now.sums is not None and not now.is_inside:
            found.extend(now.sums.variables)
        return found

    def save_own_variables(self, store: Any) -> None:
        """Write its variables into a `store`, in the format of the original optimizer.
        Local.
        """
        own: Any = super()
        with self._distribution.inside():
            own.save_own_variables(store)

    def load_own_variables(self, store: Any) -> None:
        """Read its variables from a `store`. Local."""
        own: Any = super()
        with self._distribution.inside():
            own.load_own_variables(store)

    def register_local_var(self, var: Any) -> None:
        """Exclude the gradient of a variable, `var`, from the reduction. Local."""
        self._distribution.local.append(var)
