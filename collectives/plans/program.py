"""Programs: plans as tables of integers, which the executor runs.

Theory of operation
-------------------
A plan lists messages and folds. A program does the same with few passes over memory.

Between ranks of different hosts, messages stay messages. Between ranks of one host nothing is sent:
a rank *publishes* a block, that is, writes it into its own part of shared memory, and the others
read it there. A message between such ranks becomes an operand of a step of the receiver, and steps
do all the work. A step folds (or, with one operand, copies) operands in the caller's arrays, in the
workspace, in temporary slots of messages, or in a publication. It writes the result to memory, into
a publication of this rank, or to both. Three fusions reduce the number of passes:

1. *Fold, then send on.* If a block is published right after a step has written it, that step
   publishes it.
2. *Many readers.* If the same value of a block goes to several ranks, it is published once.
3. *Many folds.* Consecutive folds into one block become one step with many operands. They are
   folded in the order of the plan, so that the result has the same bits: after some operands, the
   last two values are folded, once or several times, as in a calculator with postfix notation.

Steps run in the order of the program, and wait for their operands. A publication does not have to
wait, because the executor starts a segment only when there is room for all its publications. No
step comes before one that it depends on. Therefore a plan that does not deadlock with messages does
not deadlock with publications.

If the output of another rank is in shared memory, the rank that makes a block may write it there,
too (it *pushes* the block), so that the other one copies nothing. The program has the conditions
under which this is safe (`lending`).

If ranks do not know the lengths of each other's blocks (a *ragged* program), they cannot agree to
cut a long block into segments. So each publication has a message beside it. If a page has no room
for a block, its owner publishes only its length, and sends the message; a step of the receiver
compares the length, and receives.

The publications of a rank are numbered block by block, in the order in which its generator sends
them. A receiver runs the sender's generator to find the number of the publication that it needs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache, lru_cache
from itertools import chain, count
from operator import itemgetter
from typing import Any, NamedTuple, cast

from collectives.algorithms.exchange import listed
from collectives.algorithms.registry import BOUNDS, Algorithm
from collectives.plans import lending
from collectives.plans.garbage import no_garbage
from collectives.plans.lending import (
    SLOT,
    Cell,
    Operand,
    ProgramRound,
    ProgramStep,
    Push,
    memory,
)
from collectives.plans.rounds import OUT, TMP, WORK, Message, Run, one, runs_of
from collectives.plans.schedule import Plan, compile

NOWHERE = -1  # the space of a result that is only published

# The most values that a step holds at the same time: CC_HEIGHT in _core/kernels/combine.h.
HEIGHT = 12

# Segments that the executor has in flight: WINDOW in _core/executor/operation.pxi.
WINDOW = 4


class RoundRow(NamedTuple):
    """The messages and steps of a round: the first of each, and the one after the last."""

    message: int
    messages_end: int
    step: int
    steps_end: int


class MessageRow(NamedTuple):
    send: int
    peer: int
    space: int
    first: int
    blocks: int
    home_space: int
    home: int
    is_late: int  # whether a step posts it, if it is needed


class StepRow(NamedTuple):
    dst_space: int
    dst: int
    publication: int
    blocks: int
    home_space: int
    home: int
    after_sends: int
    is_final: int
    lends: int
    push: int
    pushes_end: int
    operand: int
    operands_end: int
    message: int  # -1, or the late one


class OperandRow(NamedTuple):
    space: int
    first: int
    peer: int
    need: int
    folds: int


class Program(NamedTuple):
    """The program of one rank: the rows of five tables, and facts that the executor needs
    beforehand. The core copies the rows into structs with the same fields (`executor/plan.pxi`).

    A block is identified by its space and its place in it, counted in blocks; blocks of the
    workspace that no step uses have no place. The home of a run is in the input, the output or the
    workspace, never in a temporary slot, so that its length is known from its places.

    A message only moves blocks. Steps of its round fold what it brings, or copy it, or it arrives
    where it stays; so one round may have messages of each kind.
    """

    rounds: list[RoundRow]
    messages: list[MessageRow]
    steps: list[StepRow]
    operands: list[OperandRow]
    pushes: list[Push]
    width: int  # most operands of a step
    span: int  # most blocks of intermediate results of a step
    reach: int  # most pushes of a step
    lines: int  # most publications of a rank of this host; 0 if nothing is shared
    scaled: bool  # whether each block of the output has a final step, which may scale it


class Publications(NamedTuple):
    """The publications of a rank, which are numbered block by block.

    Attributes
    ----------
    to : dict
        For each reader, a list with an item for each message that the algorithm sends to it, in
        order: the number of the message's first block. A value that was sent before keeps its
        number.
    readers : list of list of int
        For each block, the ranks that read it.
    """

    to: dict[int, list[int]]
    readers: list[list[int]]


# The place of a message of a rank: twice its round (and 1 if it is received), its number there.
Place = tuple[int, int]


def _rounds(algorithm: Algorithm, p: int, rank: int, root: int) -> Iterator[Any]:
    """Yield the rounds of a rank, for included algorithms without checks."""
    of = algorithm.run if algorithm.included else algorithm.rounds
    return of(rank, p, root)


@lru_cache(maxsize=256)
def _sent(
    algorithm: Algorithm, p: int, rank: int, root: int, local: frozenset[int] | None = None
) -> dict[int, list[tuple[Place, int, Sequence[int]]]]:
    """Return the messages that a rank sends to each other one, or each `local` one: the place of
    each, the number of its value, and its blocks. Blocks have one value until some are received.
    """
    found: dict[int, list[tuple[Place, int, Sequence[int]]]] = {}
    known: dict[Any, tuple[int, int]] = {}  # the value, and the round of its last send
    receipts: list[Any] = []  # of the rounds
    last: dict[int, int] = {}  # for each block, the last receipt of those that were looked at
    seen = values = 0
    for k, each in enumerate(_rounds(algorithm, p, rank, root)):
        for j, (peer, blocks) in enumerate(listed(each.send) if each.send else ()):
            if local is not None and peer not in local:
                continue
            key = blocks if type(blocks) is range else tuple(blocks)
            name = key[0] if len(key) == 1 else key
            value, before = known.get(name, (-1, k))
            if before < k:
                for number, receipt in enumerate(receipts[seen:], start=seen):
                    last.update(dict.fromkeys(_received(algorithm, p, receipt), number))
                seen = k
            if value < 0 or (before < k and any(last.get(b, -1) >= before for b in key)):
                value, values = values, values + 1
            known[name] = value, k
            found.setdefault(peer, []).append(((2 * k, j), value, key))
        receipts.append(each)
    return found


def _received(algorithm: Algorithm, p: int, each: Any) -> Sequence[int]:
    """Return the blocks that a round replaces or folds into."""
    if not each.recv:
        return ()
    messages = listed(each.recv)
    if len(messages) == 1 and not each.both:
        return cast("Sequence[int]", messages[0][1])
    some = [b for _, run in messages for b in run]
    if each.both:
        nblocks = algorithm.blocks(p)
        some += [(b + nblocks) % (2 * nblocks) for b in some]
    return some


@lru_cache(maxsize=256)
def _taken(
    algorithm: Algorithm, p: int, rank: int, root: int
) -> dict[int, list[tuple[Place, Sequence[int]]]]:
    """Return the messages that a rank receives from each other one: their places and blocks."""
    found: dict[int, list[tuple[Place, Sequence[int]]]] = {}
    for k, each in enumerate(_rounds(algorithm, p, rank, root)):
        for j, (peer, blocks) in enumerate(listed(each.recv)):
            found.setdefault(peer, []).append(((2 * k + 1, j), blocks))
    return found


def are_alike(algorithm: Algorithm, p: int, root: int = 0) -> bool:
    """Return whether all ranks exchange with others as rank 0 does, if they promise it. Local."""
    seen = algorithm.seen(p)
    if seen is None:
        return True

    def shifted(r: int) -> list[dict[int, list[tuple[Any, ...]]]]:
        sides: list[dict[int, list[Any]]] = [
            {**side(algorithm, p, r, root)} for side in (_sent, _taken)
        ]
        return [
            {seen(q, r): [(*at, len(blocks)) for *at, blocks in each] for q, each in side.items()}
            for side in sides
        ]

    first = shifted(0)
    return all(shifted(r) == first for r in range(1, p))


def _asked(algorithm: Algorithm, p: int, local: frozenset[int]) -> frozenset[int] | None:
    """Return the readers of whose messages `_sent` is asked: all if one rank stands for others."""
    return None if algorithm.cyclic or len(local) == p else local


def _sent_to(
    algorithm: Algorithm, p: int, rank: int, root: int, local: frozenset[int]
) -> list[tuple[int, int, int]]:
    """Return the messages of a rank to others of its host, in order: reader, value and length."""
    start = rank if algorithm.cyclic else 0
    sent = _sent(algorithm, p, rank - start, root, _asked(algorithm, p, local))
    peers = sent if len(sent) < len(local) else {(q - start) % p for q in local}
    found = [
        (place, value, len(blocks), (peer + start) % p)
        for peer in peers
        if peer in sent and (peer + start) % p in local
        for place, value, blocks in sent[peer]
    ]
    return [(peer, value, length) for _, value, length, peer in sorted(found)]


@lru_cache(maxsize=256)
def publications(
    algorithm: Algorithm, p: int, rank: int, root: int, local: frozenset[int]
) -> Publications:
    """Return the publications of a rank for the others of its host. Local."""
    known: dict[int, tuple[int, int, dict[int, None]]] = {}
    to: dict[int, list[int]] = {}
    number = 0
    for peer, value, blocks in _sent_to(algorithm, p, rank, root, local):
        if value not in known:
            known[value] = number, blocks, {}
            number += blocks
        first, _, those = known[value]
        to.setdefault(peer, []).append(first)
        those[peer] = None
    readers = ([list(those)] * blocks for _, blocks, those in known.values())
    return Publications(to, list(chain.from_iterable(readers)))


def _numbered(
    algorithm: Algorithm, p: int, source: int, root: int, local: frozenset[int], target: int
) -> list[int]:
    """Return the first publication of each message from `source` to `target` on its host."""
    start = source if algorithm.cyclic and len(local) == p else 0
    return publications(algorithm, p, source - start, root, local).to[(target - start) % p]


def most_published(algorithm: Algorithm, p: int, root: int, local: frozenset[int]) -> int:
    """Return the most blocks that one of the `local` ranks publishes, or a bound; 0 if it is alone.
    Local.
    """
    if len(local) < 2:
        return 0
    if bound := BOUNDS.get(algorithm.generate):
        return bound(local, p, root)
    # Hosts of one shape are counted once. But if two ranks exchange nothing with rank 0, a user's
    # `alike` may map them to any such ranks, which says nothing about these two.
    if (algorithm.cyclic or algorithm.included) and (seen := algorithm.seen(p)):
        first = min(local)
        local = frozenset([seen(q, first) for q in local])
    return _most_published(algorithm, p, root, local)


@lru_cache(maxsize=1024)
def _most_published(algorithm: Algorithm, p: int, root: int, local: frozenset[int]) -> int:
    seen = algorithm.seen(p)
    if seen is None:
        asked = _asked(algorithm, p, local)
        return max(
            sum(
                {
                    value: len(blocks)
                    for q, messages in _sent(algorithm, p, r, root, asked).items()
                    if q in local
                    for _, value, blocks in messages
                }.values()
            )
            for r in local
        )
    readers: dict[int, set[int]] = {}  # of each value of rank 0
    lengths: dict[int, int] = {}
    for peer, messages in _sent(algorithm, p, 0, root).items():
        for _, value, blocks in messages:
            readers.setdefault(value, set()).add(peer)
            lengths[value] = len(blocks)
    if len(local) == p:
        return sum(lengths.values())
    groups: Counter[frozenset[int]] = Counter()
    for value, those in readers.items():
        groups[frozenset(those)] += lengths[value]
    near = ({seen(q, r) for q in local} for r in local)
    return max(sum(groups[g] for g in groups if not those.isdisjoint(g)) for those in near)


def pack(
    plan: Plan,
    *,
    whole: bool,
    local: Sequence[int] = (),
    lend: bool = False,
    ragged: bool = False,
) -> Program:
    """Write a plan as a program; a `ragged` one must not pass blocks on. Local."""
    rounds = _fused(plan, whole, local, ragged)
    scaled = _settle(plan, rounds)
    if lend:
        _mark(plan, whole, local, rounds)
    places = _places(plan)
    made = Program([], [], [], [], [], 1, 0, 0, 0, scaled)
    width, span, reach, nowhere = 1, 0, 0, (NOWHERE, 0)
    lines = most_published(plan.algorithm, plan.p, plan.root, frozenset(local))
    for each in rounds:
        first, first_step = len(made.messages), len(made.steps)
        for message in each.messages:
            run, home = places(message.run), places(message.home)
            head, is_late = (int(message.send), message.peer), int(message.peer in local)
            made.messages.append(MessageRow(*head, *run, message.run.length, *home, is_late))
        for step in each.steps:
            home = places(step.home)
            dst = home if step.dst == step.home else places(step.dst) if step.dst else nowhere
            push, operand, n = len(made.pushes), len(made.operands), len(step.operands)
            for o in step.operands:
                made.operands.append(OperandRow(*places(o.run), o.peer, o.need, o.folds))
            made.pushes.extend(step.pushes)
            made.steps.append(
                StepRow(
                    *dst,
                    step.publication,
                    step.home.length,
                    *home,
                    int(step.after_sends),
                    int(step.is_final),
                    step.lends,
                    push,
                    len(made.pushes),
                    operand,
                    operand + n,
                    step.message if step.message < 0 else first + step.message,
                )
            )
            if n > 1:
                width = max(width, n)
                height = _height(step.operands) if n > 2 else n
                span = max(span, step.home.length * (height - 1))
            if step.pushes:
                reach = max(reach, len(step.pushes))
        made.rounds.append(RoundRow(first, len(made.messages), first_step, len(made.steps)))
    return made._replace(width=width, span=span, reach=reach, lines=lines)


def pack_both(
    plan: Plan, *, local: Sequence[int] = (), lend: bool = False, ragged: bool = False
) -> tuple[Program, Program]:
    """Write a plan as a program of whole messages, and as one of single blocks. Local."""
    with no_garbage():
        whole = pack(plan, whole=True, local=local, lend=lend, ragged=ragged)
        if all(run.length == 1 for run in runs_of(plan.rounds)):
            return whole, whole
        return whole, pack(plan, whole=False, local=local, lend=lend, ragged=ragged)


def _fused(  # long: its parts share the state of a round
    plan: Plan, whole: bool, ranks: Sequence[int], ragged: bool = False
) -> list[ProgramRound]:
    """Return the rounds of a program with everything fused."""
    local = {rank: number for number, rank in enumerate(ranks)}
    numbers = _numbers(plan, ranks)
    published: set[int] = set()
    rounds: list[ProgramRound] = []
    writers = _Writers()
    for each in plan.rounds:
        made = ProgramRound()
        rounds.append(made)
        # For each message of the plan's round, the operands that stand for its blocks.
        arrivals: list[list[Operand]] = []
        landed: dict[int, dict[Cell, int]] = {}
        copies: dict[int, list[ProgramStep]] = {}
        steps = _Steps()
        for number, message in enumerate(each.messages):
            send, peer, _, _, folds = message
            pieces = _pieces(message.run, whole)
            homes = _pieces(message.home, whole)
            arrivals.append([])
            if message.peer not in local:
                for run, home in zip(pieces, homes, strict=True):
                    arrivals[-1].append(Operand(run, need=len(made.messages)))
                    made.messages.append(Message(send, peer, run, home, folds))
                writers.add(message)
                continue
            first = next(numbers(message))
            slots = _pieces(Run(SLOT, first, message.run.length), whole)
            late = [-1] * len(pieces)
            if ragged:
                late = [len(made.messages) + k for k in range(len(pieces))]
                for run, home in zip(pieces, homes, strict=True):
                    made.messages.append(Message(send, peer, run, home, folds))
                writers.add(message)
            if message.send:
                if first not in published:
                    published.add(first)
                    for run, home, slot, k in zip(pieces, homes, slots, late, strict=True):
                        maker = writers.last(run)
                        if maker is None:
                            maker = ProgramStep(None, home, [Operand(run)], message=k)
                            steps.add(maker)
                        maker.publication = slot.first
                continue
            arrivals[-1] += [Operand(slot, local[peer]) for slot in slots]
            if message.run.space != TMP:
                copies[number] = [
                    ProgramStep(run, home, [operand], message=k)
                    for run, home, operand, k in zip(pieces, homes, arrivals[-1], late, strict=True)
                ]
        tmp = {
            message.run.first: number
            for number, message in enumerate(each.messages)
            if not message.send and message.run.space == TMP
        }
        for step in each.steps:
            for copy in [copy for n in step.needs for copy in copies.pop(n, ())]:
                steps.add(copy)
            runs = [step.left] if step.right is None else [step.left, step.right]
            operands = [_operands(run, tmp, step.needs, arrivals, landed, whole) for run in runs]
            targets = zip(_pieces(step.dst, whole), _pieces(step.home, whole), strict=True)
            for k, (dst, home) in enumerate(targets):
                fold = ProgramStep(dst, home, [parts[k] for parts in operands], step.after_sends)
                if len(runs) > 1:
                    steps.join(fold)
                else:
                    steps.add(fold)
            if step.dst.space == TMP:
                tmp.pop(step.dst.first, None)
        made.steps = [*steps, *(copy for number in sorted(copies) for copy in copies[number])]
        writers.add_all(made.steps)
    return rounds


class _Writers:
    """For each block of memory, the last message or step that writes it, in the order of both."""

    def __init__(self) -> None:
        self._last: dict[Cell, tuple[int, ProgramStep | None]] = {}
        self._number = 0

    def add(self, message: Message) -> None:
        """Note a message that arrives in memory."""
        if not message.send:
            self._note(memory(message.run), None)

    def add_all(self, steps: Sequence[ProgramStep]) -> None:
        """Note the steps of a round, behind its messages."""
        for step in steps:
            self._note(step.writes(), step)

    def last(self, run: Run) -> ProgramStep | None:
        """Return the step that last writes a run, if it writes the run alone and may publish it."""
        found = [self._last[cell] for cell in memory(run) if cell in self._last]
        _, step = max(found, key=itemgetter(0), default=(0, None))
        return step if step and step.dst == run and step.publication < 0 else None

    def _note(self, cells: Set[Cell], step: ProgramStep | None) -> None:
        self._number += 1
        entry = self._number, step
        for cell in cells:
            self._last[cell] = entry


def _numbers(plan: Plan, local: Sequence[int]) -> Callable[[Message], Iterator[int]]:
    """Return the function from a message of a host to the publications of those like it."""
    every = frozenset(local)

    @cache
    def numbers(source: int, target: int) -> Iterator[int]:
        return iter(_numbered(plan.algorithm, plan.p, source, plan.root, every, target))

    def of(message: Message) -> Iterator[int]:
        if message.send:
            return numbers(plan.rank, message.peer)
        return numbers(message.peer, plan.rank)

    return of


def _operands(
    run: Run,
    tmp: Mapping[int, int],
    needs: Sequence[int],
    arrivals: list[list[Operand]],
    landed: dict[int, dict[Cell, int]],
    whole: bool,
) -> list[Operand]:
    """Return the operands of a step: memory, or those of a message in place of its TMP slot.

    Keep in `landed`, for each message that a step needs, the program's message for each block.
    """
    if run.space == TMP and run.first in tmp:
        return [Operand(o.run, o.peer, o.need) for o in arrivals[tmp[run.first]]]
    pieces = [Operand(piece) for piece in _pieces(run, whole)]
    for number in needs:
        if number not in landed:
            landed[number] = {c: each.need for each in arrivals[number] for c in memory(each.run)}
        of = landed[number]
        for piece in pieces if of else ():
            found = (of[cell] for cell in memory(piece.run) if cell in of)
            piece.need = next(found, piece.need)
    return pieces


class _Place:
    """The place of a step in its round, behind which there may be others."""

    number = 0


class _Steps:
    """The steps of a round, and those that read and write each block of memory."""

    def __init__(self) -> None:
        self._steps: dict[int, ProgramStep] = {}
        self._numbers = count(1)
        self._writers: dict[Cell, list[int]] = {}
        # A fold reads all that the earlier ones did which it continues. So it takes their places.
        self._readers: dict[Cell, set[_Place]] = {}
        self._places: dict[int, list[_Place]] = {}

    def __iter__(self) -> Iterator[ProgramStep]:
        return iter(self._steps.values())

    def add(self, step: ProgramStep) -> None:
        """Append a step."""
        self._append(step, step.operands, [])

    def join(self, fold: ProgramStep) -> None:
        """Append a fold, fused with the earlier folds whose results it continues.

        These move behind the steps between, which must not depend on them.
        """
        given = list(fold.operands)
        given[1].folds = 1
        fold.height = 2
        places: list[_Place] = []
        while self._writers and any(
            cell in self._writers for operand in given for cell in memory(operand.run)
        ):
            number = self._continued(fold, given)
            if number is None:
                break
            before = self._steps[number]
            at = next(k for k, operand in enumerate(fold.operands) if operand.run == before.dst)
            operands = _spliced(fold.operands, at, before.operands)
            if operands is None:
                break
            # In front, its value lies below the others, as before.
            height = _height(operands) if at else max(before.height, fold.height)
            if height > HEIGHT:
                break
            fold.height = height
            given = [operand for operand in given if operand.run != before.dst]
            fold.operands = operands
            fold.after_sends |= before.after_sends and before.dst == fold.dst
            for cell in before.writes():
                self._writers[cell].remove(number)
                if not self._writers[cell]:
                    del self._writers[cell]
            del self._steps[number]
            places += self._places.pop(number)
        self._append(fold, given, places)

    def _append(self, step: ProgramStep, operands: Sequence[Operand], places: list[_Place]) -> None:
        """Append a step that reads new `operands`, and those that were read at some `places`."""
        number = next(self._numbers)
        places = places or [_Place()]
        for operand in operands:
            for cell in memory(operand.run):
                self._readers.setdefault(cell, set()).add(places[0])
        for place in places:
            place.number = number
        for cell in step.writes():
            self._writers.setdefault(cell, []).append(number)
        self._places[number] = places
        self._steps[number] = step

    def _written(self, cells: Iterable[Cell]) -> int:
        """Return the number of the last step that writes some of the `cells`, or 0."""
        return max((self._writers[cell][-1] for cell in cells if cell in self._writers), default=0)

    def _continued(self, fold: ProgramStep, given: list[Operand]) -> int | None:
        """Return the number of an earlier fold whose result a fold continues as one of the
        operands that it was `given`, if they may be one step.
        """
        number = self._written(chain(fold.writes(), fold.reads()))
        before = self._steps[number]
        made = before.writes()
        runs = [operand.run for operand in fold.operands]
        if runs.count(cast(Run, before.dst)) != 1:
            return None
        if all(operand.run != before.dst for operand in given):
            return None
        if before.publication >= 0 or len(before.operands) < 2:
            return None
        is_first = len(given) == len(fold.operands)
        if cast(Run, before.dst).space != TMP and not (is_first and before.dst == fold.dst):
            return None
        if number != next(reversed(self._steps)):
            if self._written(chain(before.reads(), made)) > number:
                return None
            if any(place.number > number for c in made for place in self._readers.get(c, ())):
                return None
        others = (run for run in runs if run != before.dst)
        if any(not made.isdisjoint(memory(run)) for run in others):
            return None
        return number


def _spliced(operands: list[Operand], at: int, earlier: list[Operand]) -> list[Operand] | None:
    """Return operands in which the `earlier` ones replace the first or the last, which is their
    result; or None if postfix notation cannot express that.
    """
    *others, last = operands
    if at == 0:
        return [*earlier, *operands[1:]]
    if len(operands) == 2:
        return [*earlier, replace(others[0], folds=-1)]
    left, right = (earlier, others) if last.folds < 0 else (others, earlier)
    *most, end = right
    return None if end.folds < 0 else [*left, *most, replace(end, folds=end.folds + 1)]


def _height(operands: list[Operand]) -> int:
    """Return the most values that exist at the same time while operands are folded."""
    number = height = 0
    for operand in operands:
        number += 1
        height = max(height, number)
        number -= abs(operand.folds)
    return height


def _settle(plan: Plan, rounds: list[ProgramRound]) -> bool:
    """Drop the writes to memory of blocks that are published and not read from memory later, and
    mark the final steps: no later step reads or writes the output blocks that they write.

    Return whether every block of the output has such a step.
    """
    missing = set(plan.wanted())
    read: set[Cell] = set()  # after a step
    written: set[Cell] = set()
    for each in reversed(rounds):
        for step in reversed(each.steps):
            cells = step.writes()
            is_read = not cells.isdisjoint(read)
            if (
                step.publication >= 0
                and step.dst is not None
                and not is_read
                and (step.dst.space == WORK or cells <= written)
            ):
                step.dst = None
            if step.dst is not None:
                if step.dst.space == OUT and not is_read and cells.isdisjoint(written):
                    step.is_final = True
                    missing.difference_update(step.dst.blocks())
                written |= cells
            for operand in step.operands:
                read |= memory(operand.run)
        for message in each.messages:
            (read if message.send else written).update(memory(message.run))
    return not missing


@lru_cache(maxsize=64)
def _compiled(algorithm: Algorithm, p: int, rank: int, root: int) -> Plan:
    return compile(algorithm, p, rank, root)


def _mark(plan: Plan, whole: bool, local: Sequence[int], rounds: list[ProgramRound]) -> None:
    """Mark the steps that may lend or push blocks, if this rank is one of the `local` ones."""
    if plan.rank not in local:
        return
    local = list(local)
    numbers = {rank: number for number, rank in enumerate(local)}

    @cache
    def program(number: int) -> lending.RankSteps:
        theirs, made = plan, rounds
        if local[number] != plan.rank:
            theirs = _compiled(plan.algorithm, plan.p, local[number], plan.root)
            made = _fused(theirs, whole, local)
            _settle(theirs, made)
        return lending.RankSteps(theirs, made)

    every = frozenset(local)

    def readers(number: int, publication: int) -> list[int]:
        found = publications(plan.algorithm, plan.p, local[number], plan.root, every)
        return [numbers[rank] for rank in found.readers[publication]]

    host = lending.Host(numbers[plan.rank], program, readers, *_told(plan, local))
    host.mark_lent()
    if len(local) == plan.p:  # else some of them have messages, which come whenever they do
        host.mark_pushed()


def _told(  # long: its functions share what they know of a rank
    plan: Plan, local: Sequence[int]
) -> tuple[Callable[[int, int, lending.Heard], bool | None], Callable[[int, int], bool]]:
    """Return what the messages of a rank of the host tell about its program, as two functions.

    The first is from the rank, a publication of this one, and some that it has `heard` of the rank,
    to whether these say that the rank has read it; None if they may. They do if one is made from
    it. They do not if the rank sends all of them before it receives it. The second is from the rank
    and a publication to whether the rank publishes it again.
    """
    place = plan.algorithm, plan.p
    every = frozenset(local)
    asked = _asked(plan.algorithm, plan.p, every)
    given = _sent(*place, plan.rank, plan.root, asked)
    got = _taken(*place, plan.rank, plan.root)

    def others(q: int) -> tuple[Any, Any, int]:
        """The messages that `q` sends and takes, and this rank as it is called there."""
        start = q if plan.algorithm.cyclic else 0
        theirs = *place, q - start, plan.root
        return _sent(*theirs, asked), _taken(*theirs), (plan.rank - start) % plan.p

    @cache
    def published(q: int) -> dict[int, tuple[int, int]]:
        """For each publication that `q` reads of this rank, the last message, and the block."""
        firsts = _numbered(*place, plan.rank, plan.root, every, q)
        messages = enumerate(zip(firsts, given[q], strict=True))
        return {
            first + j: (k, b) for k, (first, (_, _, sent)) in messages for j, b in enumerate(sent)
        }

    @cache
    def returned(
        q: int,
    ) -> tuple[
        list[tuple[Place, Sequence[int]]], dict[int, Place], dict[int, list[tuple[Place, int]]]
    ]:
        """The messages that `q` gets from this rank; for each publication that it sends to this
        one, the place of the last message; and for each block, the places of its messages and its
        publications.
        """
        sent, taken, me = others(q)
        firsts = _numbered(*place, q, plan.root, every, plan.rank) if q in got else []
        found: dict[int, Place] = {}
        blocks: dict[int, list[tuple[Place, int]]] = {}
        for first, (at, _, _), (_, run) in zip(
            firsts, sent.get(me, ()), got.get(q, ()), strict=True
        ):
            for number, b in enumerate(run, start=first):
                found[number] = at
                blocks.setdefault(b, []).append((at, number))
        return taken[me], found, blocks

    @cache
    def last(q: int) -> Place:
        """The place of the last message that `q` sends to this rank."""
        return max(returned(q)[1].values(), default=(-1, 0))

    def tells(number: int, publication: int, heard: lending.Heard) -> bool | None:
        q = local[number]
        message, block = published(q)[publication]
        arrivals, places, blocks = returned(q)
        read = arrivals[message][0]
        if read >= last(q):
            return False
        for at, each in blocks.get(block, ()):
            if at > read and places[each] == at and each in heard:
                return True
        return None if any(places[each] > read for each in heard) else False

    @cache
    def passed(q: int) -> dict[tuple[int, ...], Place]:
        """For the blocks of each message that `q` sends, the place of the last one."""
        return {tuple(sent): at for each in others(q)[0].values() for at, _, sent in each}

    def passes_on(number: int, publication: int) -> bool:
        q = local[number]
        at, blocks = returned(q)[0][published(q)[publication][0]]
        return passed(q).get(tuple(blocks), at) > at

    return tells, passes_on


def _places(plan: Plan) -> Callable[[Run], tuple[int, int]]:
    """Return the function from a run to its space and the place of its first block there."""
    spaces: list[dict[int, int]] = [
        {b: place for place, b in enumerate(blocks)}
        for blocks in (plan.held(), plan.wanted(), plan.workspace()[: -len(plan.parcels) or None])
    ]
    base = len(spaces[WORK])

    def place(run: Run) -> tuple[int, int]:
        if run.space in (TMP, SLOT):
            return run.space, run.first
        if run.space == WORK and run.first >= plan.nblocks:
            return WORK, base + run.first - plan.nblocks
        return run.space, spaces[run.space][run.first]

    return place


def _pieces(run: Run, whole: bool) -> list[Run]:
    if whole or run.length == 1:
        return [run]
    space, first, length = run
    return [one(space, b) for b in range(first, first + length)]
