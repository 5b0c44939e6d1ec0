"""The reduction of gradients: Horovod's arguments, and the buckets of gradients.

Every front end checks its arguments by `GradientOptions.checked`, and makes buckets by `split`.
TensorFlow and Keras, which pass all gradients of a step at once, use a `Reducer`. It needs the
methods of a `Framework`.
"""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Protocol

from collectives.horovod import basics
from collectives.horovod.errors import HorovodArgumentError
from collectives.horovod.handles import submit
from collectives.horovod.ops import Average, ReduceOp, check_compression, chosen
from collectives.horovod.process_sets import ProcessSet, global_process_set
from collectives.horovod.util import split_list
from collectives.text.words import shown

Groups = int | Sequence[Sequence[Any]] | None
Places = Sequence[int]


@dataclass(frozen=True)
class GradientOptions:
    """The options for reducing the tensors of all ranks.

    `compression` is a class with Horovod's static methods ``compress`` and ``decompress``, or a
    codec of `collectives.compression`, or its name. Names of submissions begin with `name`;
    submissions without a name are matched by their place. The ranks compare `labels`, if there are
    any: one of each tensor. `passes` are backward passes per step.
    """

    op: ReduceOp
    prescale: float = 1.0
    postscale: float = 1.0
    compression: Any = None
    process_set: ProcessSet = global_process_set
    name: str | None = "gradients"
    labels: Sequence[str] | None = None
    groups: Groups = None
    sparse_as_dense: bool = False
    passes: int = 1
    averages_passes: bool = False
    scales_local: bool = True
    start: Callable[..., Any] = submit  # starts an allreduce; by default, in the background

    @classmethod
    def checked(
        cls,
        op: ReduceOp,
        predivide: float,
        compression: Any,
        process_set: ProcessSet,
        *,
        num_groups: int = 0,
        groups: Groups = None,
        passes: int = 1,
        ops: Sequence[ReduceOp] = tuple(ReduceOp),
        **others: Any,
    ) -> GradientOptions:
        """Return the options of an optimizer or a tape by its arguments; warn its caller. Local."""
        op = chosen(op, None)
        if op not in ops:
            names = [each.name for each in ops]
            raise HorovodArgumentError(
                f"op is {op.name}, and must be {', '.join(names[:-1])} or {names[-1]}"
            )
        if predivide != 1.0 and op != Average:
            raise HorovodArgumentError(
                f"gradient_predivide_factor is {predivide}, and op is {op.name}: "
                f"gradient_predivide_factor not supported with op != Average"
            )
        if not (predivide and math.isfinite(predivide)):
            raise HorovodArgumentError(
                f"gradient_predivide_factor is {predivide}, and must be finite, and not 0"
            )
        check_compression(op, compression)
        if not isinstance(passes, Integral) or passes < 1:
            raise HorovodArgumentError(
                f"backward_passes_per_step is {shown(passes)}, and must be > 0, a whole number"
            )
        if num_groups:
            text = "num_groups= is deprecated: pass groups="
            warnings.warn(text, DeprecationWarning, stacklevel=3)
            groups = num_groups if groups is None else groups
        is_number = isinstance(groups, Integral)
        if not (groups > 0 if is_number else groups is None or isinstance(groups, list)):
            raise HorovodArgumentError(
                f"groups is {shown(groups)}, and should be a positive number, or a list of lists "
                f"of the tensors that are reduced together"
            )
        # The library divides by the number of ranks after it has multiplied by `postscale`.
        scales = 1.0 / predivide, predivide
        return cls(op, *scales, compression, process_set, groups=groups, passes=passes, **others)

    @property
    def codec(self) -> Any:
        """The codec, if it is one of the library."""
        return None if isinstance(self.compression, type) else self.compression

    @property
    def is_alone(self) -> bool:
        """True if there is only one rank, and no others can join."""
        return self.process_set.comm().size == 1 and not basics.grows()

    def places(
        self, variables: Sequence[Any], key: Callable[[Any], object] = id
    ) -> Sequence[Places] | None:
        """Return the groups as indices into `variables`, or None. Local."""
        if self.groups is None:
            return None
        if not isinstance(self.groups, Sequence):
            return split_list(range(len(variables)), self.groups)
        left = {key(each): k for k, each in enumerate(variables)}
        keys = [[key(each) for each in group] for group in self.groups]
        return [[left.pop(each) for each in group if each in left] for group in keys]

    def compressed(
        self, tensors: Sequence[Any]
    ) -> tuple[list[Any], Callable[[Sequence[Any]], list[Any]]]:
        """Return the tensors, compressed in Horovod's way, and a function for results. Local."""
        if not isinstance(self.compression, type):
            return list(tensors), list
        compressor: Any = self.compression
        pairs = [compressor.compress(each) for each in tensors]

        def restored(results: Sequence[Any]) -> list[Any]:
            contexts = [context for _, context in pairs]
            return [compressor.decompress(*each) for each in zip(results, contexts, strict=True)]

        return [small for small, _ in pairs], restored


def label_of(variable: Any) -> str:
    """Return the part of a variable's name that does not depend on other models of the program: the
    last one, without numbers. Local.
    """
    name = str(variable.name) if hasattr(variable, "assign") else ""
    return re.sub(r"[_:]\d+", "", name.rsplit("/", 1)[-1])


# -- tensors that are reduced together -------------------------------------------------------------


class Spec(Protocol):
    """The properties of a tensor that are known before it is computed."""

    @property
    def dtype(self) -> Any: ...
    @property
    def nbytes(self) -> int | None: ...


def _dtype(spec: Spec) -> Any:
    return spec.dtype


def split(
    specs: Sequence[Spec],
    groups: Sequence[Places] | None,
    most: int,
    large: int | None = None,
    key: Callable[[Any], object] = _dtype,
) -> list[list[int]]:
    """Return the lists of tensors to reduce together: each has one `key`, by default one dtype. The
    last tensors come first, in the order of a backward pass. Local, and the same on all ranks.

    Groups stay together. Without them, parts have up to `most` bytes, and a tensor with more
    than `large`, or with an unknown size, is alone.
    """
    every = range(len(specs))
    if groups is None:
        return list(_parts(specs, every, most, large, key))
    taken = {k for group in groups for k in group}
    listed = [*filter(len, groups), *([k] for k in every if k not in taken)]
    last_first = sorted(listed, key=max, reverse=True)
    return [part for group in last_first for part in _parts(specs, sorted(group), None, None, key)]


def _parts(
    specs: Sequence[Spec],
    places: Places,
    most: int | None,
    large: int | None,
    key: Callable[[Any], object],
) -> Iterator[list[int]]:
    """Yield lists of tensors that have one key, and at most so many bytes together."""
    filled: dict[Any, list[int]] = {}
    room: dict[Any, float] = {}
    for place in reversed(places):
        kind, nbytes = key(specs[place]), specs[place].nbytes
        if large is not None and (nbytes is None or nbytes > large):
            yield [place]
            continue
        if kind in filled and room[kind] < (nbytes or 0):
            yield filled.pop(kind)
        if kind not in filled:
            filled[kind], room[kind] = [], float("inf") if most is None else most
        filled[kind].append(place)
        room[kind] -= nbytes or 0
    yield from filled.values()


# -- all gradients of a step -----------------------------------------------------------------------


class Framework:
    """The methods of a framework that a `Reducer` needs, and of a backend of Keras."""

    sees_late = False  # whether missing gradients are known only when a step runs

    def reduced(
        self, tensors: list[Any], options: GradientOptions, groups: Sequence[Places] | None
    ) -> list[Any]:
        """Reduce tensors of all ranks. Collective."""
        raise NotImplementedError

    def key(self, variable: Any) -> object:
        """Return the key of a variable. Local."""
        return id(variable)

    def prepared(self, gradient: Any, number: int, as_dense: bool) -> Any:
        """Return a gradient in the form for `reduced`. Local."""
        return gradient

    def divided(self, gradient: Any, divisor: int) -> Any:
        """Return a gradient divided by a number. Local."""
        return gradient / divisor

    def completed(
        self, gradients: list[Any], variables: list[Any], options: GradientOptions
    ) -> list[Any]:
        """Return the gradients, with None for the same ones on all ranks. Collective."""
        return gradients

    def branch(self, condition: Any, yes: Callable[[], object], no: Callable[[], object]) -> None:
        """Run one of two functions that change variables. Local."""
        yes() if condition else no()

    def unconverted(self, function: Any) -> Any:
        """Protect a function from tools that rewrite Python code. Local."""
        return function

    def own_errors(self) -> AbstractContextManager[None]:
        """Return a context that raises the library's errors instead of those of a compiled step.
        Local.
        """
        return nullcontext()


class Reducer:
    """The reduction of the gradients of some variables, except those of local ones."""

    on: Framework
    options: GradientOptions

    def __init__(self, on: Framework, options: GradientOptions) -> None:
        self.on, self.options = on, options
        self.local: list[Any] = []  # variables, and layers, which may be built later

    @property
    def is_alone(self) -> bool:
        """True if this rank has no other rank to reduce with."""
        return self.options.process_set.included() is False or self.options.is_alone

    def local_keys(self) -> set[object]:
        """Return the keys of the variables whose gradients are not reduced. Local."""
        listed = [getattr(each, "trainable_variables", [each]) for each in self.local]
        return {self.on.key(variable) for variables in listed for variable in variables}

    def reduced(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        labels: Sequence[str] | None = None,
    ) -> list[Any]:
        """Return the reduced gradients; on a rank outside of the process set, its own. The ranks
        compare `labels` of the variables, if there are any. Collective.
        """
        results = list(gradients)
        on, options, local = self.on, self.options, self.local_keys()
        if options.process_set.included() is False:
            return results
        shared = [k for k, each in enumerate(variables) if on.key(each) not in local]
        if options.is_alone:
            for k in shared:
                if results[k] is not None:
                    results[k] = on.prepared(results[k], k + 1, options.sparse_as_dense)
            return results
        if options.scales_local and len(shared) < len(results):
            size = options.process_set.comm().size
            for k in set(range(len(results))) - set(shared):
                results[k] = None if results[k] is None else on.divided(results[k], size)
        made = self._shared(gradients, variables, labels, shared)
        for k, each in zip(shared, made, strict=True):
            results[k] = each
        return results

    def _shared(
        self,
        gradients: Sequence[Any],
        variables: Sequence[Any],
        labels: Sequence[str] | None,
        places: Places,
    ) -> list[Any]:
        """Return the reduced gradients of some of the variables."""
        on, options = self.on, self.options
        grads, mine = [gradients[k] for k in places], [variables[k] for k in places]
        grads = on.completed(grads, mine, options)
        there = [k for k, each in enumerate(grads) if each is not None]
        ready = [on.prepared(grads[k], places[k] + 1, options.sparse_as_dense) for k in there]
        groups = options.places([mine[k] for k in there], on.key)
        if labels is not None:
            options = replace(options, labels=[labels[places[k]] for k in there])
        for k, each in zip(there, on.reduced(ready, options, groups), strict=True):
            grads[k] = each
        return grads


# -- optimizers and tapes that reduce --------------------------------------------------------------


def derived(base: type, methods: type, **members: Any) -> Any:
    """Return a subclass of `base` with the same name and more methods, whose ``super()`` refers to
    `base`. Local.
    """
    if (base, methods) not in _classes:
        named = {key: getattr(base, key) for key in ("__module__", "__qualname__", "__doc__")}
        made = type(base.__name__, (methods, base), named | members)
        _classes[base, methods] = made
    return _classes[base, methods]


_classes: dict[tuple[type, type], type] = {}
