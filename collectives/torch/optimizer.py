"""`DistributedOptimizer`: an optimizer whose gradients are those of all ranks."""

from __future__ import annotations

import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from collectives.horovod import basics
from collectives.horovod.gradients import GradientOptions, derived
from collectives.horovod.ops import Adasum, Average, ReduceOp, Sum
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.text.words import shown
from collectives.torch.asynchronous import allreduce_async, allreduce_async_
from collectives.torch.buckets import Buckets
from collectives.torch.compression import Compression
from collectives.torch.functions import give_zeros

Named = list[tuple[str, torch.Tensor]]
_numbers: Counter[tuple[str, ...]] = Counter()  # number of optimizers with these parameters


class _Distribution:
    """The attributes that a distributed optimizer adds to its former class."""

    def __init__(self, buckets: Buckets | None, inner: Callable[..., Any] | None) -> None:
        self.buckets = buckets  # None on a single rank
        self.inner = inner  # a step() that an LR scheduler has set on the object
        self.synchronizes = True
        self.is_synchronized = False


def DistributedOptimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Have an optimizer reduce the gradients of all ranks before each step.
    Collective.

    Parameters
    ----------
    optimizer : Optimizer
        Any optimizer of torch. It is changed, and returned: its state, its parameter groups, and LR
        schedulers that were made for it stay as they are.
    named_parameters : iterable of (str, Parameter), optional
        Such as ``model.named_parameters()``; error messages and timelines show the names.
    compression : Compressor, or codec of `collectives.compression`
        The compression of gradients: ``Compression.none``, ``Compression.fp16``, a class of your
        own, or such as ``"int8"``.
    backward_passes_per_step : int
        The number of backward passes that add up to a gradient that is reduced. It is not divided
        by their number.
    op : ReduceOp
        ``Average``, ``Sum``, or ``Adasum``, which combines the changes of the parameters after the
        optimizer's own step.
    gradient_predivide_factor : float
        With ``Average``: gradients are divided by it before they are added, and the sum is
        multiplied by it and divided by the number of ranks.
    num_groups : int
        Deprecated: pass `groups`.
    groups : int or list of list of Parameter, optional
        The groups of gradients that are reduced together, or their number. By default, as many as
        fit into a bucket of ``COLLECTIVES_FUSION_THRESHOLD``.
    sparse_as_dense : bool
        Whether sparse gradients are reduced as dense ones.
    process_set : ProcessSet
        The ranks.

    Returns
    -------
    Optimizer
        `optimizer`, with three more methods: ``synchronize()`` waits for the gradients, ``with
        skip_synchronize()`` keeps ``step()`` from waiting for them, and
        ``set_backward_passes_per_step(n)`` changes that number.

    Raises
    ------
    ValueError
        If an argument is wrong, or a parameter has no name, or two have the same.
    """
    given = GradientOptions.checked(
        op,
        gradient_predivide_factor,
        compression,
        process_set,
        num_groups=num_groups,
        groups=groups,
        passes=backward_passes_per_step,
        ops=(Average, Sum, Adasum),
        sparse_as_dense=sparse_as_dense,
    )
    _check_members(given.groups)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(f"optimizer is {shown(optimizer)}, and must be a torch.optim.Optimizer")
    if hasattr(optimizer, "_distribution"):
        raise ValueError("the optimizer is distributed already")
    named = _named(optimizer, named_parameters)
    is_alone = (basics.size() == 1 and not basics.grows()) or not process_set.included()
    base: Any = type(optimizer)
    if given.op == Adasum and not is_alone:
        if process_set is not global_process_set:
            raise NotImplementedError(
                "op is Adasum, and process_set is not that of all ranks: leave it out"
            )
        distribution = _Distribution(None, vars(optimizer).pop("step", None))
        optimizer.__class__ = derived(base, _DistributedAdasumOptimizer, _plain=base)
    else:
        buckets = None
        if not is_alone:
            buckets = Buckets(named, given, _suffix(named))
        distribution = _Distribution(buckets, vars(optimizer).pop("step", None))
        optimizer.__class__ = derived(base, _DistributedOptimizer, _plain=base)
    made: Any = optimizer
    made._distribution = distribution
    made._parameter_names = {each: name for name, each in named}
    made._compression, made.op, made.process_set = compression, given.op, process_set
    made.backward_passes_per_step = backward_passes_per_step
    made.gradient_predivide_factor = gradient_predivide_factor
    made.sparse_as_dense = sparse_as_dense
    return made


def _check_members(groups: Any) -> None:
    """Raise an error unless the groups are lists of different tensors."""
    seen: set[int] = set()
    for each in itertools.chain(*groups) if isinstance(groups, list) else ():
        if not isinstance(each, torch.Tensor):
            raise ValueError(f"groups has {shown(each)}, and must be lists of parameters")
        if id(each) in seen:
            shape = tuple(each.shape)
            raise ValueError(f"groups names one parameter twice, which has the shape {shape}")
        seen.add(id(each))


def _named(optimizer: torch.optim.Optimizer, given: Any) -> Named:
    """Return the parameters of an optimizer with their names."""
    if given is None:
        return [pair for k in range(len(optimizer.param_groups)) for pair in _unnamed(optimizer, k)]
    pairs = list(given)
    if not all(isinstance(each, tuple) for each in pairs):
        raise ValueError(
            "named_parameters must be pairs of a name and a parameter: pass "
            "model.named_parameters()"
        )
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise ValueError(f"named_parameters has several parameters of one name: {', '.join(twice)}")
    names = {each: name for name, each in pairs}
    mine = [each for group in optimizer.param_groups for each in group["params"]]
    unnamed = sum(each not in names for each in mine)
    if unnamed:
        raise ValueError(
            f"named_parameters lacks {unnamed} of the {len(mine)} parameters of the optimizer"
        )
    return [(names[each], each) for each in mine]


def _unnamed(optimizer: torch.optim.Optimizer, group: int) -> Named:
    parameters = optimizer.param_groups[group]["params"]
    return [(f"allreduce.noname.{group}.{k}", each) for k, each in enumerate(parameters)]


def _suffix(named: Named) -> str:
    """Return what distinguishes an optimizer from others whose parameters have the same names."""
    key = tuple(name for name, _ in named)
    _numbers[key] += 1
    return "" if _numbers[key] == 1 else f" (optimizer {_numbers[key]})"


def _bare(base: Any) -> Any:
    """Return an optimizer that has no state yet, for copies and pickles."""
    return base.__new__(base)


class _Methods:
    """The methods that both kinds of distributed optimizers have. The optimizer's own class follows
    in the order of resolution, so ``super()`` is that.
    """

    _distribution: _Distribution
    _parameter_names: dict[torch.Tensor, str]

    def _step(self, *arguments: Any, **options: Any) -> Any:
        """Run the optimizer's own step. Local."""
        parent: Any = super()
        inner = self._distribution.inner or parent.step
        self._opt_called = True  # LR schedulers ask for it
        return inner(*arguments, **options)

    def add_param_group(self, param_group: Any) -> None:
        """Add a group of parameters, `param_group`, whose gradients are reduced, too.
        Collective.
        """
        parent: Any = super()
        parent.add_param_group(param_group)
        mine: Any = self
        named = _unnamed(mine, len(mine.param_groups) - 1)
        self._parameter_names.update({each: name for name, each in named})
        if self._distribution.buckets is not None:
            self._distribution.buckets.add(named)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy and pickle the original optimizer, which is not distributed."""
        mine: Any = self
        return _bare, (mine._plain,), mine.__getstate__()


class _DistributedOptimizer(_Methods):
    """The methods of an optimizer whose gradients are reduced."""

    def synchronize(self) -> None:
        """Wait until all gradients are reduced.
        Collective.
        """
        buckets = self._distribution.buckets
        if buckets is not None:
            self._follow(buckets)
            buckets.synchronize()
        self._distribution.is_synchronized = True

    def _follow(self, buckets: Buckets) -> None:
        """Remove parameters that were frozen, and add those that were unfrozen. Local, and
        the same on all ranks.
        """
        mine: Any = self
        frozen: list[torch.Tensor] = []
        thawed: list[torch.Tensor] = []
        for group in mine.param_groups:
            for each in group["params"]:
                if each.requires_grad != (each in buckets.names):
                    (thawed if each.requires_grad else frozen).append(each)
        if frozen:
            buckets.leave(frozen)
        if thawed:
            buckets.add([(self._parameter_names[each], each) for each in thawed])

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Keep ``step()`` from reducing gradients in a ``with`` statement, after a call of
        `synchronize`. Local.
        """
        self._distribution.synchronizes = False
        try:
            yield
        finally:
            self._distribution.synchronizes = True

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of backward `passes` before a gradient is reduced. Local."""
        self.backward_passes_per_step = passes
        buckets = self._distribution.buckets
        if buckets is not None:
            buckets.passes = passes
            for each in buckets.left:
                buckets.left[each] = passes

    def step(self, closure: Any = None, *arguments: Any, **options: Any) -> Any:
        """Reduce the gradients, and run the optimizer's own step. Collective."""
        now = self._distribution
        if not now.synchronizes:
            now.is_synchronized = False
            return self._step(closure, *arguments, **options)
        has_come = now.buckets is not None and now.buckets.is_dirty
        if closure is None:
            if now.is_synchronized and not has_come:
                warnings.warn(
                    "the gradients are reduced twice, by synchronize() and by step(): call "
                    "step() inside `with optimizer.skip_synchronize():`",
                    stacklevel=2,
                )
            self.synchronize()
            now.is_synchronized = False
            return self._step(None, *arguments, **options)
        if has_come:
            self.synchronize()
        loss = self._step(self._reducing(closure), *arguments, **options)
        now.is_synchronized = False
        return loss

    def _reducing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        """Return a closure whose gradients are those of all ranks."""
        buckets = self._distribution.buckets

        def reducing() -> Any:
            loss = closure()
            self.synchronize()
            if isinstance(self, torch.optim.LBFGS) and buckets is not None:
                terms = None, f"loss of {type(self).__name__}", Average
                mean = torch.as_tensor(loss).detach()
                loss = allreduce_async(mean, *terms, process_set=buckets.options.process_set).wait()
            return loss

        return reducing

    def zero_grad(self, *arguments: Any, **options: Any) -> None:
        """Set all gradients to None, or to zero, as the optimizer does. Local."""
        buckets = self._distribution.buckets
        if buckets is not None and buckets.is_dirty:
            raise AssertionError(
                "zero_grad() would write gradients that are being reduced: call step() or "
                "synchronize() before, which wait for them"
            )
        parent: Any = super()
        parent.zero_grad(*arguments, **options)

    def load_state_dict(self, state_dict: Any) -> None:
        """Load the state of an optimizer, `state_dict`. Local, and the same on all ranks.

        The gradients of a step that is not complete are discarded, because some of them may have
        been reduced: each ``grad`` becomes None. On one rank they stay.
        """
        if self._distribution.buckets is not None:
            self._distribution.buckets.drain()
        self._distribution.is_synchronized = False
        parent: Any = super()
        parent.load_state_dict(state_dict)


class _DistributedAdasumOptimizer(_Methods):
    """The methods of an optimizer that combines changes of parameters by Adasum."""

    def synchronize(self) -> None:
        """Do nothing: only the step communicates. Local."""

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Raise an error: only the step communicates. Local."""
        raise AssertionError(
            "op is Adasum, which reduces changes of the parameters in step(): it cannot be skipped"
        )
        yield

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Set the number of backward `passes` that add up to a gradient. Local."""
        self.backward_passes_per_step = passes

    def step(self, closure: Any = None, *arguments: Any, **options: Any) -> Any:
        """Run the optimizer's own step, and combine the changes that it makes on all ranks.
        Collective.
        """
        named = [pair for pair in self._parameter_names.items() if pair[0].requires_grad]
        give_zeros(each for each, _ in named)
        before = [each.detach().clone() for each, _ in named]
        loss = self._step(closure, *arguments, **options)
        compression: Any = getattr(self, "_compression", Compression.none)
        handles = []
        with torch.no_grad():
            for (each, name), start in zip(named, before, strict=True):
                small, ctx = compression.compress(each - start)
                handles.append((allreduce_async_(small, None, name, Adasum), ctx))
            for (each, _), start, (handle, ctx) in zip(named, before, handles, strict=True):
                each.copy_(start + compression.decompress(handle.wait(), ctx))
        return loss


for _methods in (_DistributedOptimizer, _DistributedAdasumOptimizer):
    # Without these marks, torch wraps step() again.
    _marks: Any = _methods.step
    _marks.hooked = _marks._wrapped_by_lr_sched = True
