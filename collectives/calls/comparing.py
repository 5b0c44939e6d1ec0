"""Calls that compare values of the program on all ranks."""

from __future__ import annotations

import functools
import inspect
import os
import types
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from collectives.calls.base import check_every
from collectives.calls.folding import FoldingCalls
from collectives.calls.objects import ObjectCalls
from collectives.errors import ArgumentError, MismatchError
from collectives.process.agreement import announced
from collectives.text.words import count, grouped, ranks, shown

if TYPE_CHECKING:
    from collectives.arrays.leaves import Leaf

F = TypeVar("F", bound=Callable[..., Any])

SHOWN = 60  # characters of a text in an error


class ComparingCalls(FoldingCalls, ObjectCalls):
    """Methods that compare values of all ranks."""

    def same(
        self,
        value: Any,
        name: str | None = None,
        *,
        dtypes: bool = True,
        shapes: bool = True,
        order: bool = True,
        timeout: float | None = None,
    ) -> None:
        """Raise an error on all ranks unless they have the same value.
        Collective.

        Parameters
        ----------
        value : object
            An array of any framework, in any memory; a number, text or bytes; lists, tuples, sets
            and dicts of them, nested; dataclasses; a node that JAX knows; an object with
            ``state_dict()``, such as a module or an optimizer of torch; a model or an optimizer of
            Keras. Floats are compared by their bits: NaN is equal to the same NaN, and 0.0 is not
            equal to -0.0.
        name : str, optional
            The name of the value in the error; ``"value"`` by default. The same on all ranks.
        dtypes : bool
            Whether dtypes count. Otherwise integers of any dtype, floats of any dtype, and complex
            numbers of any dtype are compared as int64, float64 and complex128.
        shapes : bool
            Whether shapes count, and not only the elements in C's order.
        order : bool
            Whether the order of the keys of dicts counts.
        timeout : float, optional
            As for `allreduce`. It limits each wait by itself.

        Raises
        ------
        MismatchError
            On all ranks, if the values differ. The text names the first part that differs by its
            path, such as ``optimizer.state[3].exp_avg``, and who has what. For arrays of equal
            dtypes and shapes, it has the number of elements that differ from rank 0, and the first.
        ArgumentError
            On the rank whose value cannot be compared. The others raise a `MismatchError`, whose
            text has the reason.
        CollectivesError
            Otherwise, as for `allreduce`.

        Notes
        -----
        Each rank computes a hash (SHA-256) of its value. One small call compares the hashes; only
        if they differ, the ranks exchange more. The communicator is usable after each error that is
        listed by name. `collectives.same` is also a decorator, which compares the arguments and the
        result of a function.

        Examples
        --------
        >>> import numpy as np, collectives as cc
        >>> cc.world().same({"rate": 0.1, "weights": np.ones(3)}, "model")
        """
        from hashlib import sha256  # few programs need these

        from collectives.arrays.leaves import Options, leaves

        found: list[Leaf] = []
        digests: list[bytes] = []
        problem: Exception | None = None
        try:  # outside the call, since methods of the program may make calls
            if name is not None and not isinstance(name, str):
                raise ArgumentError(f"name is {shown(name)}, and must be a str")
            found.extend(leaves(value, name or "value", Options(dtypes, shapes, order)))
            digests.extend(leaf.digest() for leaf in found)
        except Exception as error:
            problem = error

        def check() -> tuple[int, int]:
            if problem is not None:
                raise problem
            first, second = np.frombuffer(sha256(b"".join(digests)).digest()[:16], np.int64)
            return int(first), int(second)

        with self._engine:
            every = announced(self._engine, "same", check, lambda: shown(name or "value"), timeout)
            if len(set(every)) > 1:
                raise MismatchError(self._difference(found, digests, timeout))

    def _difference(self, found: list[Leaf], mine: list[bytes], timeout: float | None) -> str:
        """Return the text of the error of ranks with different values. Collective."""
        theirs = self.broadcast_object(mine, timeout=timeout)
        pairs = zip(mine, theirs, strict=False)
        first = next((k for k, (a, b) in enumerate(pairs) if a != b), min(len(mine), len(theirs)))
        if mine == theirs:
            first = np.iinfo(np.int64).max
        first = int(self.allreduce(np.array(first), op="MIN", timeout=timeout))
        leaf = found[first] if first < len(found) else None
        told = None if leaf is None else (leaf.path, leaf.kind, mine[first], _content(leaf))
        every = self.allgather_object(told, timeout=timeout)
        heads = {each and each[:2] for each in every}
        if len(heads) == 1 and leaf is not None and leaf.data is not None and len(leaf.data) > 1:
            digests = [each[2] for each in every if each is not None]
            return self._different_elements(leaf, digests, timeout)
        return _different_leaves(every)

    def _different_elements(
        self, leaf: Leaf, digests: Sequence[bytes], timeout: float | None
    ) -> str:
        """Return the text for arrays of equal shapes and dtypes. Collective."""
        other = self.broadcast(leaf.data, out=np.empty_like(leaf.data), timeout=timeout)
        unlike = np.flatnonzero((other != leaf.data).any(axis=1))
        told = 0, "", "", ""
        if unlike.size:
            k = int(unlike[0])
            at = ", ".join(str(int(i)) for i in np.unravel_index(k, leaf.shape))
            values = leaf.element(k), leaf._replace(data=other).element(k)
            told = unlike.size, f"[{at}]", *values
        every = self.allgather_object(told, timeout=timeout)
        groups = grouped(enumerate(digests))
        texts = []
        for mask in groups.values():
            if mask & 1:
                if mask > 1:
                    texts.append(f"{ranks(mask)} are equal")
                continue
            number, place, here, there = every[(mask & -mask).bit_length() - 1]
            verb = "differs" if mask & mask - 1 == 0 else "differ"
            texts.append(
                f"{ranks(mask)} {verb} from rank 0 in {number} of "
                f"{count(len(leaf.data), 'element')}, the first {leaf.path}{place} = {here}, and "
                f"{there} on rank 0"
            )
        return f"the ranks have different values of {leaf.path}, {leaf.kind}: {'; '.join(texts)}"


def _content(leaf: Leaf) -> str:
    """Write what a leaf has, if that is not an array of several elements."""
    return leaf.element(0) if leaf.data is not None and len(leaf.data) == 1 else leaf.text


def _different_leaves(every: Sequence[tuple[str, str, bytes, str] | None]) -> str:
    """Return the text for values whose first different leaves are told."""
    told = [each for each in every if each is not None]
    paths = {each[0] for each in told}
    alike = len(os.path.commonprefix([each[3] for each in told]))  # noqa: RUF071 - of characters
    start = max(0, alike - SHOWN // 3)
    said = []
    for each in every:
        if each is None:
            said.append("nothing more")
            continue
        path, kind, _, text = each
        if len(text) > SHOWN:
            text = "..." * (start > 0) + text[start:][:SHOWN] + "..." * (len(text) > start + SHOWN)
        said.append(f"{path}, " * (len(paths) > 1) + kind + f": {text}" * bool(text))
    texts = [f"{ranks(mask)}: {text}" for text, mask in grouped(enumerate(said)).items()]
    return f"the ranks have different values of {told[0][0]}: {'; '.join(texts)}"


def compared(function: F, comm_of: Callable[[], ComparingCalls], every: int, options: Any) -> F:
    """Return a function whose arguments and result are compared on all ranks. Local."""
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ArgumentError(
            f"{function.__qualname__} is a coroutine or a generator, which has no result when it "
            f"returns; pass a function"
        )
    check_every(every)
    signature = inspect.signature(function)
    name = function.__qualname__
    calls = 0

    @functools.wraps(function)
    def checked(*args: Any, **given: Any) -> Any:
        nonlocal calls
        calls += 1
        if (calls - 1) % every:
            return function(*args, **given)
        bound = signature.bind(*args, **given).arguments
        values = {key: bound[key] for key in bound if key not in ("self", "cls")}
        comm_of().same(values, f"{name}.arguments", **options)
        result = function(*args, **given)
        comm_of().same(result, f"{name}.result", **options)
        return result

    return checked  # type: ignore[return-value]


def same_or_compared(
    comm_of: Callable[[], ComparingCalls], value: Any, name: str | None, every: int, options: Any
) -> Any:
    """Compare a value on all ranks, or return a function with a check: `collectives.same`."""
    if value is OMITTED:
        return functools.partial(compared, comm_of=comm_of, every=every, options=options)
    if isinstance(value, FUNCTIONS):
        return compared(value, comm_of, every, options)
    comm_of().same(value, name, **options)
    return None


OMITTED = object()
FUNCTIONS = (
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    functools.partial,
)
