"""The table of algorithms, with the name, requirements, cost and promises of each.

A decorator above a generator registers it as an algorithm. Calls, proofs, pictures, benchmarks and
the command line know algorithms only from this table.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import threading
import traceback
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib import import_module
from operator import index
from typing import Any, ClassVar
from zlib import crc32

from collectives.algorithms.bits import BITS, ORDERS, RANKS, called
from collectives.algorithms.exchange import Exchange, normal
from collectives.algorithms.formulas import evaluated, values
from collectives.algorithms.groups import Groups
from collectives.algorithms.spec import COLLECTIVES, Collective, collective
from collectives.errors import ArgumentError, CollectivesWarning, ProofError
from collectives.text.words import count, error_text, known, shown, size_text

Generator = Callable[..., Iterator[Any]]

NCCL = "nccl"  # stands for the collectives of NCCL, so no algorithm may have this name

# Places where a call that names no algorithm may run one, unless a profile names it. The rows that
# run nowhere are the literature, and those that are for bits="size".
ANYWHERE, NOWHERE = WHERE = "anywhere", "nowhere"

# Entry points of this group name modules of other distributions, whose import registers algorithms.
GROUP = "collectives.algorithms"

# The arguments that a generator may have beside a rank, p, the root and its parameter.
FURTHER = "blocks", "groups"

# Bytes of an array for which an algorithm is proven and drawn where no size is given.
SIZE = 1 << 20

# A generator that yields more rounds than this for each rank or block is taken to be endless.
ROUNDS = 1000

_REQUIREMENTS: dict[str, tuple[Callable[[int], bool], str]] = {
    "power_of_two": (lambda p: p & (p - 1) == 0, "a power of two as the number of ranks"),
}


def _requirement(text: str) -> tuple[Callable[[int], bool], str]:
    """Return the condition of a requirement, and its text."""
    name, _, number = text.partition("=")
    if name == "ranks" and number.isdecimal():
        return (lambda p: p == int(number)), count(int(number), "rank")
    if text not in _REQUIREMENTS:
        known = [*_REQUIREMENTS, "ranks=16"]
        raise ArgumentError(f"unknown requirement {text!r}; known: {known}")
    return _REQUIREMENTS[text]


@dataclass(frozen=True)
class Cost:
    """The cost of an algorithm as formulas in ``p``.

    Attributes
    ----------
    rounds : str
        The longest chain of dependent rounds.
    sent, folded : str
        The most that one rank sends, and the most that one rank folds, in units of the message.
    alpha, beta, gamma : str
        The path of the last rank: its number of messages one after the other, and the part that is
        sent and folded, in units of the message. By default `rounds`, `sent` and `folded`, which is
        right if no rank sends or receives several messages in a round, and all are equally busy.

    Notes
    -----
    The formulas may use ``p``, ``lg`` (floor of log2 p), ``up`` (ceiling of log2 p), ``q`` (the
    largest power of two up to p), ``rest`` (1 if p is not a power of two, else 0), ``beyond`` (the
    sum of min(d, p - q) over d = 1, 2, 4, ..., q/2), ``even`` (the sum of ceil((p - q)/d) over d =
    2, 4, ..., q), the parameter of the algorithm by its name, ``levels(k)`` (of the complete k-ary
    tree with p nodes, below its root), ``hops(k)`` (the messages, one after the other, until its
    last node has heard from the root), ``digits(k)`` (of p - 1 to the base k), ``steps(k)`` (the
    numbers below p with one digit that is not 0), ``moves(k)`` (the digits that are not 0 in all
    numbers below p), ``factors(k)`` (how many factors up to k p is split into), ``peers(k)`` (the
    sum of these factors, each less 1), ``width(n)`` (the least w with 1 + 2 + ... + w >= n - 1),
    ``stages(n)`` (the terms of w + (w - 1) + ... >= n - 1), ``min``, ``max``, ``ceil``, ``log2``.
    They hold for p >= 2; on one rank the cost is 0. They are those of the worst root. An array of n
    bytes takes ``alpha`` times the seconds of a message, plus n times ``beta`` times the seconds
    per byte sent, plus n times ``gamma`` times the seconds per byte folded: as long as
    `collectives.simulate.simulate` says for whole blocks on a `~collectives.topology.Flat` machine
    that folds no slower than it sends.

    The tests compare the formulas of the included algorithms with the proof and with `simulate`.
    `rounds`, `sent` and `folded` of your own are compared with the proof before their first use.
    """

    rounds: str
    sent: str
    folded: str = "0"
    alpha: str = ""
    beta: str = ""
    gamma: str = ""

    def evaluate(self, p: int, **parameters: int) -> tuple[float, float, float]:
        """Return (rounds, sent, folded) as numbers for `p` ranks and `parameters`. Local."""
        return evaluated((self.rounds, self.sent, self.folded), p, parameters)

    def factors(self, p: int, **parameters: int) -> tuple[float, float, float]:
        """Return the factors of alpha, n beta and n gamma for `p` ranks and `parameters`. Local."""
        return evaluated(self._time(), p, parameters)

    def _time(self) -> tuple[str, str, str]:
        return self.alpha or self.rounds, self.beta or self.sent, self.gamma or self.folded

    def __str__(self) -> str:
        terms = zip(self._time(), ("alpha", "n beta", "n gamma"), strict=True)
        return " + ".join(f"({text}) {unit}" for text, unit in terms if text != "0") or "0"


@dataclass(frozen=True, eq=False, repr=False)
class Algorithm:
    """One row of the registry.

    Attributes
    ----------
    collective : Collective
        The contract of its collective.
    name : str
        The name that callers pass as ``algorithm=``, with its parameter if that is not the default.
    generate : callable
        ``generate(r, p)`` or ``generate(r, p, root)``: yields the rounds of rank `r`.
    blocks : callable
        ``blocks(p)``: the number of blocks that the buffer is cut into.
    cost : Cost or None
        The cost formulas; all included algorithms have them.
    source : str
        Author, title, year, DOI.
    requires : tuple of str
        Requirements on p: ``"power_of_two"``, or one number of ranks, as in ``"ranks=16"``.
    same_bits : bool
        Whether all ranks compute the same expression, and so get the same bits.
    keeps_order : bool
        Whether contributions are folded in rank order, as a non-commutative operation needs.
    included : bool
        Whether it is part of the library, whose tests prove it. Other algorithms are proven on the
        first call that uses them.
    parameters : dict
        The parameter of the generator, an integer of at least 2, with its default: ``{"k": 4}``.
    groups : Groups or None
        The groups of ranks, if the algorithm depends on them and they are known.
    chosen : str
        The place where a call that names no algorithm may run it: ``"anywhere"`` or ``"nowhere"``.
        The profile of a machine may name it in any case.
    scratch : bool
        Whether each block has a scratch block, which holds a second value.
    cyclic : bool
        Whether all ranks do alike: what rank r exchanges with rank q, rank r + 1 exchanges with
        rank q + 1, counted modulo p, in the same rounds and order. So a rank that shares memory
        knows from the rounds of one rank which blocks all others publish.
    alike : callable or None
        If all ranks do alike in another way when p is a power of two: what rank r exchanges with
        rank q, rank 0 exchanges with rank ``alike(q, r, p)``. It takes the parameter as well.
    order : str
        The order in which a rank folds the contributions to a block that come in one round:
        ``"ranks"``, from the lowest rank up, or ``"pairs"``, pairs of neighbours, then pairs of
        these, as in a butterfly (`folding`).
    distribution : str
        The installed distribution that registered it by an entry point, with its version.
    takes : tuple of str
        Further arguments of the generator: ``"blocks"``, the number of blocks of each part, and
        ``"groups"``, the `Groups` of ranks that share a host.
    by_size : callable or None
        ``by_size(p, nbytes)``: the number of blocks of each part, if it depends on the bytes of the
        array.
    sized_from : str
        The name of the algorithm that was cut into this number of blocks for a size, if one was.
    """

    collective: Collective
    name: str
    generate: Generator
    blocks: Callable[[int], int]
    cost: Cost | None
    source: str
    requires: tuple[str, ...]
    same_bits: bool
    keeps_order: bool
    included: bool
    parameters: Mapping[str, int] = field(default_factory=dict)
    groups: Groups | None = None
    chosen: str = ANYWHERE
    scratch: bool = False
    cyclic: bool = False
    alike: Callable[..., int] | None = None
    order: str = RANKS
    distribution: str = ""
    takes: tuple[str, ...] = ()
    by_size: Callable[[int, int], int] | None = None
    sized_from: str = ""

    def __repr__(self) -> str:
        return f"<Algorithm {self.collective.name}/{self.name}: {self.summary or 'not described'}>"

    @property
    def summary(self) -> str:
        """The first line of the generator's docstring."""
        return (self.generate.__doc__ or "").strip().partition("\n")[0]

    def folding(self, order: str) -> Algorithm:
        """Return the algorithm with its folds in this `order`. Local.

        Examples
        --------
        >>> from collectives.algorithms import get
        >>> get("allreduce", "all_to_all").folding("pairs").order
        'pairs'
        """
        if order not in ORDERS:
            raise ArgumentError(f"order is {shown(order)}, and must be one of: {', '.join(ORDERS)}")
        return self if order == self.order else _folding(self, order)

    @property
    def key(self) -> str:
        """The name with which `get` finds it: that of all sizes."""
        return self.sized_from or self.name

    def array_blocks(self, p: int) -> int:
        """Return the blocks of the caller's whole array on `p` ranks. Local."""
        return self.blocks(p) // self.collective.parts(p) * self.collective.per_array(p)

    def rounds(self, r: int, p: int, root: int = 0) -> Iterator[Any]:
        """Yield the rounds of rank `r` of `p`, for a `root` where there is one. Local.

        Their messages are in one form: ``((peer, numbers of blocks), ...)``.

        Raises
        ------
        ProofError
            If the function is not a generator, if it raises an error, if it yields something else
            than rounds, or names a rank or a block that does not exist, or if it yields so many
            rounds that it seems to be endless.
        """
        blocks = self.blocks(p) << self.scratch
        most = ROUNDS * max(p, self.blocks(p))

        def wrong(text: str) -> ProofError:
            return ProofError(f"{self.title(p, root)}: rank {r}{text}")

        number = 0
        try:
            found = self.run(r, p, root)
            if not isinstance(found, Iterable) or isinstance(found, Exchange):
                raise wrong(f" returns {shown(found)}, and must yield its rounds")
            for number, each in enumerate(_whole(found, wrong), start=1):
                if number > most:
                    raise wrong(f" has more than {most} rounds; does it end?")
                try:
                    each = normal(each, r, p, blocks)
                except ProofError as error:
                    raise wrong(f", round {number}: {error}") from None
                yield each
        except ProofError:
            raise
        except Exception as error:
            told = f"{error_text(error)}{_place(error, self.generate)}{_meant(error)}"
            raise wrong(f", round {number + 1}: raises {told}") from error

    def run(self, r: int, p: int, root: int = 0) -> Iterator[Any]:
        """Return the generator of rank `r` of `p` and a `root`, without any check. Local."""
        place = (r, p, root) if self.collective.rooted else (r, p)
        more: dict[str, Any] = {**self.parameters}
        if "blocks" in self.takes:
            more["blocks"] = self.blocks(p) // self.collective.parts(p)
        if "groups" in self.takes:
            more["groups"] = self.on(p)
        return self.generate(*place, **more)

    def on(self, p: int) -> Groups | None:
        """Return the groups of `p` ranks, if the algorithm depends on them. Local."""
        return (self.groups or Groups.halves(p)) if "groups" in self.takes else None

    def placed(self, groups: Groups) -> Algorithm:
        """Return the algorithm on these `groups` of ranks: itself, if it knows none. Local."""
        return _placed(self, groups) if "groups" in self.takes else self

    def at(self, p: int, nbytes: int) -> Algorithm:
        """Return the algorithm for arrays of `nbytes` on `p` ranks. Local.

        It is the algorithm itself, unless its number of blocks depends on the size. The size is
        rounded down to a power of two, so that calls of similar sizes have the same plan.
        """
        if self.by_size is None:
            return self
        return _sized(self, self.by_size(p, 1 << max(nbytes, 1).bit_length() - 1))

    def title(self, p: int, root: int = 0) -> str:
        """Return collective, name, `p`, groups and `root` as the beginning of an error's text.
        Local.
        """
        place = f", root {root}" if self.collective.rooted else ""
        groups = self.on(p)
        if groups is not None and groups.p == p:
            place += f", {groups}"
        return f"{self.collective.name} {self.name!r} on {count(p, 'rank')}{place}"

    def totals(self, p: int) -> tuple[float, float, float] | None:
        """Return (rounds, sent, folded) on `p` ranks by the cost formulas, if any. Local."""
        return self.cost.evaluate(p, **self.parameters) if self.cost else None

    def factors(self, p: int) -> tuple[float, float, float] | None:
        """Return the factors of alpha, n beta and n gamma on `p` ranks, if stated. Local."""
        return self.cost.factors(p, **self.parameters) if self.cost else None

    def seen(self, p: int) -> Callable[[int, int], int] | None:
        """Return the function of q and r to the rank that is for rank 0 what rank q is for rank r,
        or None if ranks do not do alike on `p` ranks. Local.
        """
        if self.cyclic:
            return lambda q, r: (q - r) % p
        alike = self.alike
        if alike is None or p & (p - 1):
            return None
        return lambda q, r: alike(q, r, p, **self.parameters)

    def refusal(self, p: int) -> str | None:
        """Return why the algorithm cannot run on `p` ranks, or None if it can. Local."""
        groups = self.on(p)
        if groups is not None and groups.p != p:
            return f"{self.title(p)}: its groups have {count(groups.p, 'rank')}"
        for name in self.requires:
            holds, text = _requirement(name)
            if not holds(p):
                return f"{self.collective.name} {self.name!r} needs {text}, and p is {p}"
        return None


def _whole(found: Any, wrong: Callable[[str], ProofError]) -> Iterator[Any]:
    """Yield the rounds; raise an error if the generator returns a value, which would be lost."""
    value = yield from found
    if value is not None:
        raise wrong(f" returns {shown(value)} after its rounds; write yield, not return")


def _meant(error: Exception) -> str:
    """Return the arguments of a round, after an error about one that it does not have."""
    match = re.search(r"^Exchange\S* got an unexpected keyword argument '(\w+)'", str(error))
    return f"; {known(match[1], Exchange._fields, 'a round has')}" if match else ""


def _place(error: Exception, function: Any) -> str:
    """Return the line of a user's function that raised an error, in brackets, if it is known.

    If the error was raised before the function ran, return the line of its definition.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    steps = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__)]
    outside = [step for step in steps if step[0] != __file__]
    places = [step for step in outside if code is not None and step[0] == code.co_filename]
    if code is not None:
        outside.insert(0, (code.co_filename, code.co_firstlineno))
    file, line = (places or outside or [("", 0)])[-1]
    return f" ({os.path.basename(file)}, line {line})" if file else ""


_watchers: weakref.WeakSet[Any] = weakref.WeakSet()  # they keep parts of the table
_watching = threading.Lock()


def watch(watcher: Any) -> None:
    """Call ``forget()`` of `watcher` when the table changes, as long as it exists. Local."""
    _load()
    with _watching:
        _watchers.add(watcher)


def _changed() -> None:
    for made in (_with_parameter, _placed, _sized, _folding):
        made.cache_clear()
    _composition.cache_clear()
    with _watching:
        watchers = list(_watchers)
    for watcher in watchers:
        watcher.forget()


_TABLE: dict[str, dict[str, Algorithm]] = {name: {} for name in COLLECTIVES}


class Sharing:
    """Ranks that are threads, and share the table: each registers the algorithms of its program."""

    is_rank: ClassVar[Callable[[], bool]] = staticmethod(lambda: False)


@cache
def _load() -> None:
    """Load the included algorithms, before the table is read or changed. Local."""
    import_module("collectives.algorithms.texts")  # by name, since texts import this module


class _Others:
    """The algorithms of other distributions."""

    loaded = False
    loading = ""  # the distribution whose module is being imported


def load_others() -> None:
    """Load the algorithms of other distributions, once. Local.

    A distribution that fails is named in a warning.
    """
    if _Others.loaded:
        return
    _Others.loaded = True  # first, since the modules ask for algorithms
    from importlib import metadata  # slow, and few programs need it

    for each in metadata.entry_points(group=GROUP):
        found = each.dist
        _Others.loading = f"{found.name} {found.version}" if found else each.value
        try:
            each.load()
        except Exception as error:
            warnings.warn(
                f"the algorithms of {_Others.loading} are missing, because {each.value} cannot be "
                f"loaded: {error_text(error)}",
                CollectivesWarning,
                stacklevel=2,
            )
        finally:
            _Others.loading = ""


def arrange(texts: Sequence[str]) -> None:
    """Put all rows in the order of their modules. Local."""
    for table in _TABLE.values():
        for row in sorted(table.values(), key=lambda row: texts.index(row.generate.__module__)):
            table[row.name] = table.pop(row.name)


# For generators whose ranks do not do alike: a bound of the blocks that one of the ranks of a host
# publishes for others of it, by these ranks, p and the root. Without one, all generators are run.
BOUNDS: dict[Generator, Callable[[Set[int], int, int], int]] = {}


def publishes(most: Callable[[Set[int], int, int], int]) -> Callable[[Generator], Generator]:
    """Return the decorator that adds a generator to `BOUNDS`."""

    def add(generate: Generator) -> Generator:
        BOUNDS[generate] = most
        return generate

    return add


def algorithm(
    collective_name: str,
    *,
    name: str | None = None,
    blocks: int | Callable[[int], int] | Callable[[int, int], int] = 1,
    cost: Cost | None = None,
    source: str = "",
    requires: tuple[str, ...] = (),
    same_bits: bool = True,
    keeps_order: bool = False,
    parameters: Mapping[str, int] | None = None,
    chosen: str = ANYWHERE,
    scratch: bool = False,
    cyclic: bool = False,
    alike: Callable[..., int] | None = None,
    replace: bool = False,
) -> Callable[[Generator], Generator]:
    """Register a generator of rounds as an algorithm. Local.

    Parameters
    ----------
    collective_name : str
        One of ``collectives.algorithms.COLLECTIVES``.
    name : str, optional
        The name that callers pass as ``algorithm=``; the function's name by default.
    blocks : int or callable
        Number of blocks that an allreduce, reduce, broadcast or scan cuts the array into, or a
        function of p, or of p and the bytes of the array. In other collectives, whose arrays are
        cut by rank, the number of blocks of each part. A generator that has an argument `blocks`
        gets the number. A function of the bytes gets them rounded down to a power of two, and 1 MiB
        where a proof or a picture has no size; it must return the same number on all ranks.
    cost, source, requires, same_bits, keeps_order, parameters, chosen, scratch, cyclic, alike
        See `Algorithm`. The proof checks promises. With ``{"k": 4}`` the generator takes ``k``,
        which is 4 unless a caller writes ``name:8``. A call that names no algorithm runs one of
        yours only if a profile names it, whatever `chosen` is.
    replace : bool
        Whether to replace an algorithm of the same name.

    Returns
    -------
    callable
        A decorator that returns the generator unchanged.

    Raises
    ------
    ArgumentError
        If the collective, a requirement or `chosen` is unknown, the name is taken, the generator
        does not take the arguments of its collective, or a formula of the cost has an unknown name.

    Examples
    --------
    >>> from collectives import algorithms, check
    >>> @algorithms.algorithm("broadcast", name="sequential")
    ... def sequential(r, p, root):
    ...     "The root sends to one rank after the other."
    ...     for q in range(p):
    ...         if r == root and q != root:
    ...             yield algorithms.Exchange(send=(q, 0))
    ...         elif r == q != root:
    ...             yield algorithms.Exchange(recv=(root, 0))
    >>> check.check("broadcast", "sequential", p=4, root=2).depth
    3
    >>> algorithms.unregister("broadcast", "sequential")
    """
    contract = _contract(collective_name)
    for text in requires:
        _requirement(text)
    if chosen not in WHERE:
        raise ArgumentError(f"chosen is {chosen!r}, and must be one of: {', '.join(WHERE)}")

    def register(generate: Generator) -> Generator:
        of_all, of_part = _numbers(blocks, contract, lambda p: row.title(p))
        row = Algorithm(
            collective=contract,
            name=name or generate.__name__,
            generate=generate,
            blocks=of_all,
            cost=cost,
            source=source,
            requires=requires,
            same_bits=same_bits,
            keeps_order=keeps_order,
            included=(generate.__module__ or "").startswith("collectives.algorithms."),
            parameters=parameters or {},
            chosen=chosen,
            scratch=scratch,
            cyclic=cyclic,
            alike=alike,
            distribution=_Others.loading,
            takes=_takes(generate, parameters or {}),
            by_size=of_part,
        )
        if not row.included:
            _load()
        _check_row(row, replace or Sharing.is_rank())
        _TABLE[contract.name][row.name] = row
        _changed()
        return generate

    return register


def _numbers(
    blocks: Any, contract: Collective, title: Callable[[int], str]
) -> tuple[Callable[[int], int], Callable[[int, int], int] | None]:
    """Return the functions for the number of blocks: of all parts, and of a part by its size."""

    def per_part(p: int, *size: int) -> int:
        try:
            number, again = (
                index(blocks(p, *size) if callable(blocks) else blocks) for _ in range(2)
            )
        except Exception as error:
            told = f"{error_text(error)}{_place(error, blocks)}"
            raise ProofError(f"{title(p)}: the number of blocks: {told}") from error
        if number == again > 0:
            return number
        where = f"{title(p)}{f', {size_text(*size)},' if size else ''}"
        if number != again:
            raise ProofError(
                f"{where} has {number} blocks, and then {again}; blocks= must depend on p and "
                f"the bytes alone"
            )
        raise ProofError(f"{where} has {number} blocks, and needs one at least")

    def of_all(p: int) -> int:
        return contract.parts(p) * per_part(p, *(SIZE,) * by_size)

    by_size = _is_by_size(blocks)
    return of_all, per_part if by_size else None


def _is_by_size(blocks: Any) -> bool:
    """Return whether a number of blocks is a function of p and the bytes of the array."""
    if not callable(blocks):
        return False
    try:
        found = inspect.signature(blocks).parameters.values()
    except (TypeError, ValueError):
        return False
    return len([each for each in found if each.default is each.empty]) == 2


def _takes(generate: Generator, parameters: Mapping[str, int]) -> tuple[str, ...]:
    """Return the further arguments that a generator needs."""
    code = getattr(inspect.unwrap(generate), "__code__", None)
    if code is not None and not {*FURTHER} & {*code.co_varnames}:
        return ()  # reading the signature takes longer
    try:
        found = inspect.signature(generate).parameters
    except (TypeError, ValueError):
        return ()
    needs = [name for name, each in found.items() if each.default is each.empty]
    return tuple(name for name in FURTHER if name in needs and name not in parameters)


def _contract(collective_name: str) -> Collective:
    """Return the contract of a collective; refuse the function of a bare ``@algorithm``."""
    if callable(collective_name):
        name = getattr(collective_name, "__name__", "the function")
        raise ArgumentError(
            f"@algorithm needs the name of a collective: write @algorithm('allreduce') above {name}"
        )
    if isinstance(collective_name, str) and collective_name.endswith("v"):
        plain = COLLECTIVES.get(collective_name[:-1])
        if plain is not None and plain.vector:
            raise ArgumentError(
                f"{collective_name} runs the algorithms of {plain.name}: write "
                f"@algorithm({plain.name!r})"
            )
    return collective(collective_name)


def _check_row(row: Algorithm, replaces: bool) -> None:
    """Refuse a row whose name is taken or wrong, or whose functions cannot be called."""
    collective = row.collective.name
    if row.name in _TABLE[collective] and not replaces:
        raise ArgumentError(
            f"{collective} already has an algorithm {row.name!r}; pass replace=True to take its "
            f"place"
        )
    if row.name == NCCL:
        raise ArgumentError(f"{NCCL!r} stands for the collectives of NCCL; choose another name")
    if len(row.parameters) > 1 or ":" in row.name:
        raise ArgumentError("an algorithm has one parameter at most, and no colon in its name")
    if not row.included:  # the tests check the included ones
        _check_arguments(row)
        _check_formulas(row)


def _check_arguments(row: Algorithm) -> None:
    """Refuse a generator that cannot be called with a rank, p, the root and the parameter."""
    place = ["r", "p", "root"] if row.collective.rooted else ["r", "p"]
    try:
        signature = inspect.signature(row.generate)
    except (TypeError, ValueError):  # a callable without a signature
        return
    try:
        signature.bind(*place, **row.parameters, **dict.fromkeys(row.takes))
    except TypeError as error:
        called = getattr(row.generate, "__name__", "the generator")
        root = "has a root" if row.collective.rooted else "has no root"
        raise ArgumentError(
            f"{row.collective.name} {row.name!r}: {called}{signature}: {error}. "
            f"{row.collective.name} {root}; write "
            f"{called}({', '.join([*place, *row.parameters, *row.takes])})"
        ) from None


def _check_formulas(row: Algorithm) -> None:
    """Refuse a cost whose formulas cannot be read."""
    if row.cost is None:
        return
    title = f"{row.collective.name} {row.name!r}"
    if not isinstance(row.cost, Cost):
        raise ArgumentError(
            f"{title}: cost is {row.cost!r}, and must be a Cost, such as "
            f"Cost(rounds='p - 1', sent='1')"
        )
    able = [*values(2), *row.parameters]
    for each in fields(row.cost):
        text = getattr(row.cost, each.name)
        if text == each.default:
            continue
        told = f"{title}: the cost has {each.name}={text!r}"
        if not isinstance(text, str):
            raise ArgumentError(f"{told}, and must have a formula as text, such as 'p - 1'")
        try:
            tree = ast.parse(text, mode="eval")
        except (SyntaxError, ValueError) as error:
            raise ArgumentError(f"{told}, which is not a formula: {error}") from None
        names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
        for name in names:
            if name not in able:
                raise ArgumentError(f"{told}, and {name!r} is not one of: {', '.join(able)}")


def unregister(collective_name: str, name: str) -> None:
    """Remove the algorithm `name` of the collective `collective_name` from the registry. Local.

    Raises
    ------
    ArgumentError
        If there is no such algorithm.
    """
    get(collective_name, name)
    del _TABLE[collective_name][name]
    _changed()


def names(collective_name: str, *, textbook: bool = False) -> list[str]:
    """Return the names of the algorithms of `collective_name`, in order of registration. Local.

    Parameters
    ----------
    collective_name : str
    textbook : bool
        Whether to leave out the literature: the algorithms that a call does not run unless it or a
        profile names them, or ``bits`` is ``"size"``.

    Raises
    ------
    ArgumentError
        If there is no such collective.

    Examples
    --------
    >>> from collectives import algorithms
    >>> algorithms.names("scan")
    ['recursive', 'chain', 'rank_order', 'windows']
    >>> algorithms.names("scan", textbook=True)
    ['recursive', 'chain']
    """
    load_others()
    return [row.name for row in loaded(collective_name) if not (textbook and row.chosen == NOWHERE)]


def loaded(collective_name: str) -> list[Algorithm]:
    """Return the algorithms of a collective that are loaded: the included ones at least. Local."""
    _load()
    return list(_TABLE[collective(collective_name).name].values())


def numbered(collective_name: str, number: int) -> str:
    """Return the name of a collective's algorithm whose checksum is `number`. Local."""
    load_others()
    every = compositions(collective_name)
    for name, row in _TABLE[collective_name].items():
        able = [name, *(f"{name}:{k}" for k in range(2, 65) if row.parameters)]
        numbers = range(1, ROUNDS if row.by_size else 1)
        every += able + [_in_blocks(each, n) for n in numbers for each in able]
    texts = (called(each, bits) for each in every for bits in BITS)
    return next((each for each in texts if crc32(each.encode()) == number), "of another name")


HIERARCHICAL = "hierarchical"  # the name of compositions: hierarchical(inside,between)


class Composer:
    """The functions that compose two algorithms; the module `composition` sets them."""

    compose: ClassVar[Callable[[str, str, str, Groups | None], Algorithm]]
    pairs: ClassVar[Callable[[str], Iterable[tuple[str, str]]]]


def compositions(collective_name: str) -> list[str]:
    """Return the names of all compositions of algorithms without parameters. Local."""
    _load()
    return [
        f"{HIERARCHICAL}({inside},{between})" for inside, between in Composer.pairs(collective_name)
    ]


def split(text: str) -> list[str]:
    """Split names of algorithms at commas, but not inside brackets. Local."""
    return [word.strip() for word in re.split(r",(?![^(]*\))", text)]


def is_composed(name: str) -> bool:
    """Return whether a name is that of a composition: ``hierarchical(direct,ring)``. Local."""
    return name.partition("(")[0].strip() == HIERARCHICAL


def _composed(collective_name: str, name: str, groups: Groups | None) -> Algorithm:
    """Return a composition by its name: ``hierarchical(direct,ring)``."""
    _, _, text = name.partition("(")
    parts = [part.strip() for part in text.strip().removesuffix(")").split(",")]
    if len(parts) != 2 or not text.strip().endswith(")"):
        example = next(iter(compositions(collective_name)), f"{HIERARCHICAL}(direct,ring)")
        raise ArgumentError(
            f"{name!r} must name an algorithm inside groups of ranks and one between them, as in "
            f"{example!r}"
        )
    return _composition(collective_name, parts[0], parts[1], groups)


@cache
def _composition(
    collective_name: str, inside: str, between: str, groups: Groups | None
) -> Algorithm:
    """Compose algorithms, once, because plans are cached by their row."""
    return Composer.compose(collective_name, inside, between, groups)


def get(collective_name: str, name: str, groups: Groups | None = None) -> Algorithm:
    """Return the algorithm `name` of the collective `collective_name`. Local.

    Parameters
    ----------
    collective_name, name : str
    groups : Groups, optional
        The groups of ranks, for an algorithm that depends on them.

    Raises
    ------
    ArgumentError
        If there is no algorithm of that name, or its parameter (``"kary:8"``) is wrong; the text
        lists the names.
    """
    _load()
    if isinstance(name, str) and is_composed(name):
        return _composed(collective(collective_name).name, name, groups)
    table = _TABLE[collective(collective_name).name]
    base, colon, text = name.partition(":") if isinstance(name, str) else (name, "", "")
    if isinstance(base, str) and base not in table:
        load_others()
    try:
        row = table[base]
    except (KeyError, TypeError):
        told = known(base, table, "it has")
        if base == NCCL:
            told = f"{NCCL!r} is for arrays in GPU memory; on arrays in host memory, {told}"
        raise ArgumentError(f"{collective_name} has no algorithm {base!r}; {told}") from None
    if colon:
        row = _with_parameter(row, _value(row, text))
    return row if groups is None else row.placed(groups)


def _value(row: Algorithm, text: str) -> int:
    """Return the value of an algorithm's parameter, or refuse it."""
    title = f"{row.collective.name} {row.name!r}"
    if not row.parameters:
        remedy = "" if row.included else "; register it with parameters={'k': 4} of @algorithm"
        raise ArgumentError(f"{title} takes no parameter, not {text!r}{remedy}")
    ((key, default),) = row.parameters.items()
    if not text.isdecimal() or int(text) < 2:
        raise ArgumentError(
            f"{title} takes an integer from 2 on as {key}, as in '{row.name}:{default}', not "
            f"{text!r}"
        )
    return int(text)


@cache
def _with_parameter(row: Algorithm, value: int) -> Algorithm:
    """Return an algorithm with another value of its parameter."""
    (key,) = row.parameters
    return replace(row, name=f"{row.name}:{value}", parameters={key: value})


@cache
def _placed(row: Algorithm, groups: Groups) -> Algorithm:
    """Return an algorithm on some groups of ranks."""
    return replace(row, groups=groups)


@cache
def _folding(row: Algorithm, order: str) -> Algorithm:
    """Return an algorithm that folds in another order."""
    return replace(row, order=order)


@cache
def _sized(row: Algorithm, number: int) -> Algorithm:
    """Return an algorithm whose parts have a fixed number of blocks.

    It is in the name, which ranks compare.
    """
    return replace(
        row,
        name=_in_blocks(row.name, number),
        blocks=lambda p: number * row.collective.parts(p),
        by_size=None,
        sized_from=row.name,
    )


def _in_blocks(name: str, number: int) -> str:
    return f"{name} in {count(number, 'block')}"
