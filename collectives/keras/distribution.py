"""What makes an optimizer a distributed one: its class is swapped for one with more methods.

The object stays the same, and says that its class is what it was, which is what Keras saves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import keras

from collectives.keras.gradients import Plan, reduced
from collectives.keras.passes import Sums
from collectives.keras.variables import check_alike


class Distribution:
    """What a distributed optimizer has beside what it was."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.sums: Sums | None = None
        self.is_inside = False  # whether a method of the optimizer's own class runs
        self.is_checked = False  # whether the variables of the ranks have been compared

    def reduced(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return the gradients, `grads`, of `variables` as they are reduced over the ranks.
        Collective.
        """
        plan = self.plan
        if not self.is_checked and not plan.is_alone:
            local = plan.local_ids()
            shared = [each for each in variables if id(each) not in local]
            check_alike(shared, f"variables of {plan.terms.name}", plan.terms.process_set)
            self.is_checked = True
        return reduced(grads, variables, plan)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Have the optimizer be as it was in a ``with`` statement. Local."""
        before, self.is_inside = self.is_inside, True
        try:
            yield
        finally:
            self.is_inside = before


def holder_of(optimizer: Any) -> Any:
    """Return what counts the steps of an `optimizer`: itself, or what it scales the loss for.
    Local.
    """
    return getattr(optimizer, "inner_optimizer", optimizer)


def is_distributed(optimizer: Any) -> bool:
    """Return whether an `optimizer` reduces its gradients. Local."""
    return "_distribution" in getattr(optimizer, "__dict__", {})


def plan_of(optimizer: Any) -> Plan:
    """Return how a distributed `optimizer` reduces its gradients. Local."""
    plan: Plan = optimizer._distribution.plan
    return plan


def distribute(optimizer: Any, plan: Plan) -> Any:
    """Have an `optimizer` of Keras 3 reduce its gradients by a `plan`; return it. Local."""
    holder, made = holder_of(optimizer), Distribution(plan)
    if plan.passes > 1:
        if holder is not optimizer:
            swap_class(holder, _Counting)
        vars(holder)["_passes"] = plan.passes
    swap_class(optimizer, _Distributed, apply=plan.on.unconverted(_Distributed.apply))
    vars(optimizer)["_distribution"] = made  # Keras would look for variables in it
    if plan.passes > 1 and optimizer.built:
        made.sums = Sums(optimizer._trainable_variables, plan)
    return optimizer


def release(optimizer: Any) -> Plan:
    """Have a distributed `optimizer` be what it was; return its plan. Local."""
    plan = plan_of(optimizer)
    for each in (optimizer, holder_of(optimizer)):
        vars(each).pop("_passes", None)
        vars(each).pop("_distribution", None)
        kind: Any = type(each)
        if issubclass(kind, _Counting):
            _CLASS.__set__(each, kind._plain)
    return plan


def state_of(optimizer: Any) -> list[Any]:
    """Return the variables of an `optimizer` that all ranks share. Local."""
    with optimizer._distribution.inside() if is_distributed(optimizer) else nullcontext():
        found = optimizer.variables
        return list(found() if callable(found) else found)


def swap_class(optimizer: Any, methods: type, **more: Any) -> None:
    """Give an optimizer a class of the same name with more methods. Local."""
    plain, key = type(optimizer), (type(optimizer), methods)
    if key not in _classes:
        members = {
            "__module__": plain.__module__,
            "__qualname__": plain.__qualname__,
            "__doc__": plain.__doc__,
            "__class__": property(lambda self: plain),
            "_plain": plain,
        }
        _classes[key] = type(plain.__name__, (methods, plain), members | more)
    _CLASS.__set__(optimizer, _classes[key])


_CLASS: Any = vars(object)["__class__"]  # what sets the class of an object, whatever that says
_classes: dict[tuple[type, type], type] = {}


class _Counting:
    """An optimizer whose steps take several passes. The optimizer's own class follows in the order
    of resolution, so ``super()`` is that.
    """

    _passes = 1

    @property
    def iterations(self) -> Any:
        """How many steps have been taken: schedules of the learning rate count the passes."""
        parent: Any = super()
        if self._passes == 1:
            return parent.iterations
        return keras.ops.floor_divide(parent.iterations, self._passes)

    def __reduce__(self) -> Any:
        """Have copies and pickles be those of the optimizer as it was: they are not distributed."""
        parent: Any = super()
        function, *rest = parent.__reduce__()
        mine: Any = type(self)
        return getattr(mine._plain, function.__name__), *rest


class _Distributed(_Counting):
    """The methods of an optimizer whose gradients are reduced."""

    _distribution: Distribution
    _trainable_variables: list[Any]
    built: bool

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Reduce the gradients, and change the variables by them. Collective."""
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

        if now.plan.passes == 1 or not grads or len(grads) != len(variables):
            step(now.reduced(grads, variables) if len(grads) == len(variables) else grads)
            return
        if not self.built:
            self.build(variables)
        assert now.sums is not None

        def last(totals: list[Any]) -> None:
            step(now.reduced(totals, variables))

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

        if now.plan.passes == 1:
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
            zeros = [keras.ops.zeros_like(each) for each in (count, *totals)]
            return list(values), [*made, *zeros]

        def skip() -> Any:
            made = [each + 1 if k == place else each for k, each in enumerate(state)]
            return list(trainable_variables), [*made, count + 1, *totals]

        return keras.ops.cond(keras.ops.equal(count + 1, now.plan.passes), last, skip)

    def build(self, variables: Any) -> None:
        """Make what belongs to the `variables` that will be trained. Local."""
        own: Any = super()
        own.build(variables)
        now = self._distribution
        if now.plan.passes > 1 and now.sums is None:
            now.sums = Sums(self._trainable_variables, now.plan)

    @property
    def variables(self) -> Any:
        """Its variables, also those that keep the sums of several passes."""
        own: Any = super()
        found, now = own.variables, self._distribution
        if now.sums is not None and not now.is_inside:
            found.extend(now.sums.variables)
        return found

    def save_own_variables(self, store: Any) -> None:
        """Write its variables into a `store`, as those of an optimizer that is not distributed.
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
        """Keep the gradient of a variable, `var`, from being reduced. Local."""
        self._distribution.plan.local.append(var)
