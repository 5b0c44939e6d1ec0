"""`DistributedOptimizer`: an optimizer whose gradients are those of all ranks."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import keras

from collectives.graphs.terms import Terms
from collectives.horovod.ops import Average, ReduceOp, Sum, chosen
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.keras import backends
from collectives.keras.compression import Compression
from collectives.keras.gradients import Plan, check_alike, reduced
from collectives.keras.passes import Sums
from collectives.text.words import shown

__all__ = [
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "distribute",
    "is_distributed",
    "plan_of",
    "release",
    "state_of",
]

_CLASS: Any = vars(object)["__class__"]  # what sets the class of an object, whatever that says
_numbers: Counter[str] = Counter()  # how many optimizers have had a name


class _Distribution:
    """What a distributed optimizer has beside what it was."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.sums: Sums | None = None
        self.is_inside = False  # whether a method of the optimizer's own class runs
        self.is_checked = False  # whether the variables of the ranks have been compared

    def reduced(self, grads: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Return gradients as they are reduced over the ranks. Collective."""
        if not self.is_checked:
            check_alike(variables, self.plan)
            self.is_checked = True
        return reduced(grads, variables, self.plan)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Have the optimizer be as it was in a ``with`` statement. Local."""
        before, self.is_inside = self.is_inside, True
        try:
            yield
        finally:
            self.is_inside = before


def DistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> Any:
    """Have an optimizer reduce the gradients of all ranks before each step.
    Collective.

    Parameters
    ----------
    optimizer : keras.optimizers.Optimizer
        It is changed, and returned: its variables and its configuration stay as they are, and a
        model that is saved with it can be loaded without this library. A `LossScaleOptimizer` that
        is put around it later takes its place.
    name : str, optional
        What its submissions are called. By default, ``Distributed`` and the name of its class.
    device_dense, device_sparse : str
        Ignored; they are there for programs that pass them.
    compression : Compressor, or codec of `collectives.compression`
        How gradients are sent: ``Compression.none``, ``Compression.fp16``, a class of your own, or
        such as ``"int8"``.
    sparse_as_dense : bool
        Whether gradients that list some rows only, such as those of embeddings on TensorFlow, are
        reduced with all rows.
    gradient_predivide_factor : float
        With ``Average``: gradients are divided by it before they are added, and the sum is
        multiplied by it and divided by the number of ranks.
    op : ReduceOp
        ``Average`` or ``Sum``.
    backward_passes_per_step : int
        How many steps of the program add up to a gradient that is reduced and applied. Between
        them, nothing of the model is changed. Gradients with some rows only are added with all.
    average_aggregated_gradients : bool
        Whether that gradient is divided by the number of passes.
    num_groups : int
        Deprecated: pass `groups`.
    groups : int or list of list of variable, optional
        Accepted for compatibility: what is small is reduced together in any case.
    process_set : ProcessSet
        The ranks. Others take their steps alone.
    scale_local_gradients : bool
        Whether gradients of variables that are registered by ``register_local_var`` are divided by
        the number of ranks.

    Returns
    -------
    Optimizer
        `optimizer`. It has a method more: ``register_local_var(variable)`` keeps the gradient of a
        variable from being reduced.

    Raises
    ------
    ValueError
        If an argument is wrong.
    """
    op = _checked(optimizer, op, gradient_predivide_factor, backward_passes_per_step)
    if num_groups:
        warnings.warn("num_groups= is deprecated: pass groups=", DeprecationWarning, stacklevel=2)
    if groups is not None and not (isinstance(groups, list) or groups > 0):
        raise ValueError(f"groups is {shown(groups)}, and must be a positive number, or lists")
    prescale, postscale = 1.0, 1.0
    if gradient_predivide_factor != 1.0:
        prescale, op = 1.0 / gradient_predivide_factor, Sum
        postscale = gradient_predivide_factor / (process_set.size() or 1)
    if compression is Compression.none:
        compression = None
    name = _named(name or f"Distributed{type(optimizer).__name__}")
    terms = Terms(op, prescale, postscale, compression, process_set, name)
    plan = Plan(
        terms,
        sparse_as_dense,
        backward_passes_per_step,
        average_aggregated_gradients,
        [],
        scale_local_gradients,
    )
    return distribute(optimizer, plan)


def PartialDistributedOptimizer(
    optimizer: Any,
    name: str | None = None,
    device_dense: str = "",
    device_sparse: str = "",
    compression: Any = Compression.none,
    sparse_as_dense: bool = False,
    gradient_predivide_factor: float = 1.0,
    op: ReduceOp = Average,
    backward_passes_per_step: int = 1,
    average_aggregated_gradients: bool = False,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> Any:
    """Have an optimizer reduce the gradients of all ranks, but not those of some layers.
    Collective.

    Parameters
    ----------
    optimizer, name, device_dense, device_sparse, compression, sparse_as_dense
        As for `DistributedOptimizer`.
    gradient_predivide_factor, op, backward_passes_per_step, average_aggregated_gradients
        As for `DistributedOptimizer`.
    groups, process_set, scale_local_gradients
        As for `DistributedOptimizer`.
    local_layers : keras.Layer, or sequence of keras.Layer, optional
        The layers that each rank trains by itself. They may be built later.

    Returns
    -------
    Optimizer
        `optimizer`, as of `DistributedOptimizer`.

    Raises
    ------
    ValueError
        If an argument is wrong.
    """
    layers = [local_layers] if isinstance(local_layers, keras.Layer) else list(local_layers or ())
    for each in layers:
        if not isinstance(each, keras.Layer):
            raise ValueError(f"local_layers has {shown(each)}, and must have layers of Keras")
    made = DistributedOptimizer(
        optimizer,
        name,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        gradient_predivide_factor,
        op,
        backward_passes_per_step,
        average_aggregated_gradients,
        groups=groups,
        process_set=process_set,
        scale_local_gradients=scale_local_gradients,
    )
    plan_of(made).local.extend(layers)
    return made


def _checked(optimizer: Any, op: Any, factor: float, passes: Any) -> ReduceOp:
    """Return the operation, or raise an error if an argument is wrong."""
    op = chosen(op, None)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ValueError(f"optimizer is {shown(optimizer)}, and must be an optimizer of Keras 3")
    if is_distributed(optimizer):
        raise ValueError("the optimizer is distributed already")
    if op not in (Average, Sum):
        raise ValueError(f"op is {op.name}, and must be Average or Sum")
    if factor != 1.0 and op != Average:
        raise ValueError(f"gradient_predivide_factor is {factor}, and op is {op.name}: use Average")
    if type(passes) is not int or passes < 1:
        raise ValueError(
            f"backward_passes_per_step is {shown(passes)}, and must be a positive whole number"
        )
    if passes > 1 and _holder(optimizer).gradient_accumulation_steps:
        raise ValueError(
            "backward_passes_per_step and the optimizer's own gradient_accumulation_steps are both "
            "given: pass one of them"
        )
    return op


def _named(name: str) -> str:
    """Return a name that no other optimizer of this process has."""
    _numbers[name] += 1
    return name if _numbers[name] == 1 else f"{name} (optimizer {_numbers[name]})"


def _holder(optimizer: Any) -> Any:
    """Return what counts the steps: the optimizer, or that in a `LossScaleOptimizer`."""
    return getattr(optimizer, "inner_optimizer", optimizer)


def is_distributed(optimizer: Any) -> bool:
    """Return whether an `optimizer` reduces its gradients. Local."""
    return isinstance(optimizer, _Distributed)


def plan_of(optimizer: Any) -> Plan:
    """Return how a distributed `optimizer` reduces its gradients. Local."""
    plan: Plan = optimizer._distribution.plan
    return plan


def distribute(optimizer: Any, plan: Plan) -> Any:
    """Have an `optimizer` reduce its gradients by a `plan`; return it. Local."""
    made = _Distribution(plan)
    vars(optimizer)["_distribution"] = made  # Keras would look for variables in it
    holder = _holder(optimizer)
    if plan.passes > 1 and holder is not optimizer:
        vars(holder)["_passes"] = plan.passes
        _CLASS.__set__(holder, _derived(_Counting, type(holder)))
    _CLASS.__set__(optimizer, _derived(_Distributed, type(optimizer)))
    if plan.passes > 1:
        vars(optimizer)["_passes"] = plan.passes if holder is optimizer else 1
        if optimizer.built:
            made.sums = Sums(optimizer._trainable_variables, plan)
    return optimizer


def release(optimizer: Any) -> Plan:
    """Have a distributed `optimizer` be what it was; return its plan. Local."""
    plan = plan_of(optimizer)
    for each in (optimizer, _holder(optimizer)):
        vars(each).pop("_passes", None)
        vars(each).pop("_distribution", None)
        if isinstance(each, _Distributed | _Counting):
            _CLASS.__set__(each, type(each)._plain)
    return plan


def state_of(optimizer: Any) -> list[Any]:
    """Return the variables of an `optimizer` that all ranks share. Local."""
    if not is_distributed(optimizer):
        return list(optimizer.variables)
    with optimizer._distribution.inside():
        return list(optimizer.variables)


@cache
def _derived(methods: Any, base: Any) -> Any:
    """Return a class of the name of `base`, which it derives from, with more methods.

    Its objects say that `base` is their class, which is what Keras writes into files.
    """
    texts = {"__module__": base.__module__, "__qualname__": base.__qualname__}
    more: dict[str, Any] = {"__doc__": base.__doc__, "__class__": property(lambda self: base)}
    if methods is _Distributed:
        more["apply"] = backends.chosen().unconverted(_Distributed.apply)
    return type(base.__name__, (methods, base), {**texts, **more, "_plain": base})


class _Counting:
    """An optimizer whose steps take several passes. The optimizer's own class follows in the order
    of resolution, so ``super()`` is that.
    """

    _passes: int

    @property
    def iterations(self) -> Any:
        """How many steps have been taken: schedules of the learning rate count the passes."""
        parent: Any = super()
        mine = vars(self).get("_passes", 1)
        return parent.iterations if mine == 1 else keras.ops.floor_divide(parent.iterations, mine)

    def __reduce__(self) -> Any:
        """Have copies and pickles be those of the optimizer as it was: they are not distributed."""
        parent: Any = super()
        function, *rest = parent.__reduce__()
        mine: Any = type(self)
        return getattr(mine._plain, function.__name__), *rest


class _Distributed(_Counting):
    """The methods of an optimizer whose gradients are reduced."""

    _distribution: _Distribution
    _trainable_variables: list[Any]
    built: bool

    def apply(self, grads: Sequence[Any], trainable_variables: Any = None) -> None:
        """Reduce the gradients, and change the variables by them. Collective.

        Parameters
        ----------
        grads : sequence of tensor
        trainable_variables : sequence of variable, optional
            What they are the gradients of: by default, what the optimizer was built for.
        """
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

        now.sums.add(grads, variables, last, lambda: _holder(self)._iterations.assign_add(1))

    def stateless_apply(
        self, optimizer_variables: Any, grads: Sequence[Any], trainable_variables: Any
    ) -> tuple[list[Any], list[Any]]:
        """Return the variables as `apply` changes them. Collective.

        Parameters
        ----------
        optimizer_variables : list of tensor
        grads : sequence of tensor
        trainable_variables : list of tensor

        Returns
        -------
        list of tensor
            Of the model.
        list of tensor
            Of the optimizer.
        """
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
        place = next(k for k, each in enumerate(mine) if each is _holder(self)._iterations)

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
