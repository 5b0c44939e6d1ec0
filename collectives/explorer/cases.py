"""The data that the page plays: the rounds and messages of an algorithm for one p and root.

A *case* is a dict of lists and numbers, ready for JSON:

``nblocks``, ``pieces``
    The number of all blocks, and of those of the caller's whole array, which determines the size of
    a block.
``depth``
    The number of steps of the proof.
``rounds``
    For each rank and each of its rounds, the spot in the generator's text that yields it, by its
    number (see `sources`).
``messages``
    ``[source, its round, target, its round, fold, step, block, block, ...]``, for each source in
    the order in which it sends. ``fold`` has bits: 1 if blocks are folded, 2 if they are folded
    into the scratch blocks as well, 4 if they are received into scratch blocks. A scratch block has
    the number of its block plus ``nblocks``.
``held``, ``wanted``
    For each rank, the blocks that it starts with and must end with.
``due``
    For each part, the ranks whose contributions it has in the end: a hexadecimal number that has a
    bit for each rank. One list for all ranks, or one for each.

The case of a wrong algorithm ends at the error, and has two more entries:

``error``
    The text of the error.
``stuck``
    The ranks that did not finish the last of their rounds.

Nearly all rooted algorithms are written for root 0, and number the ranks from the root. This is
checked: if the case of every root is that of root 0 *turned*, only that of root 0 is written.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from collectives.algorithms import Algorithm
from collectives.algorithms.composition import Composition
from collectives.algorithms.exchange import Fold
from collectives.algorithms.schedule import Schedule
from collectives.errors import ProofError
from collectives.explorer.sources import Sources
from collectives.plans.proof import check, remains

Case = dict[str, Any]


def cases(algorithm: Algorithm, p: int, sources: Sources) -> dict[str, Any]:
    """Return the cases of an algorithm on `p` ranks. Local."""
    schedule, first = _proven(algorithm, p, 0, sources)
    found: dict[str, Any] = {"roots": [first]}
    if isinstance(algorithm, Composition):
        found["groups"] = list(algorithm.on(p).of)
    if algorithm.collective.rooted:
        turn = _turn(schedule, sources)
        if turn is None:
            found["roots"] += [_proven(algorithm, p, root, sources)[1] for root in range(1, p)]
        else:
            found["turn"] = turn
    return found


def _proven(algorithm: Algorithm, p: int, root: int, sources: Sources) -> tuple[Schedule, Case]:
    proof = check(algorithm, p=p, root=root)
    assert proof.schedule is not None  # it was recorded
    return proof.schedule, _case(proof.schedule, proof.arrivals, sources)


def refused(algorithm: Algorithm, p: int, sources: Sources) -> dict[str, Any] | None:
    """Return the case of an algorithm that is wrong, up to the error, or None. Local.

    It is the case of the first root for which the proof fails. None means that the algorithm fails
    before its first round, so there is nothing to play.
    """
    for root in range(p if algorithm.collective.rooted else 1):
        try:
            check(algorithm, p=p, root=root, record=False)
        except ProofError as error:
            try:
                found = remains(algorithm, p, root)
            except ProofError:
                return None
            case = _case(found.schedule, found.arrivals, sources, found.rounds)
            return {"roots": [case], "error": str(error), "stuck": found.stuck}
    return None


def _turn(schedule: Schedule, sources: Sources) -> str | None:
    """Return the rule by which the cases of all roots follow from that of root 0, or None.

    If there is a rule, the proof for root 0 holds for all roots.
    """
    algorithm, p = schedule.algorithm, schedule.p
    try:
        others = [_case(Schedule(algorithm, p, root), None, sources) for root in range(1, p)]
    except Exception:  # the algorithm is wrong, and its proof will report how
        return None
    first = _case(schedule, None, sources)
    for turn in ("ranks", "parts"):
        if all(turned(first, p, root, turn) == each for root, each in enumerate(others, 1)):
            return turn
    return None


def turned(case: Case, p: int, root: int, turn: str) -> Case:
    """Return the case of another root from that of root 0, as the page does. Local."""
    cut = case["nblocks"] // len(case["due"][0])
    parts = len(case["due"][0]) if turn == "parts" else 1

    def rank(r: int) -> int:
        return (r + root) % p

    def block(b: int) -> int:
        return (b // cut + root) % parts * cut + b % cut if parts > 1 else b

    def mask(ranks: str) -> str:
        of = int(ranks, 16)
        return f"{(of << root | of >> (p - root)) & ((1 << p) - 1):x}"

    def of_ranks(rows: list[Any]) -> list[Any]:
        return [rows[(r - root) % p] for r in range(p)] if len(rows) > 1 else rows

    messages = [
        [rank(s), i, rank(d), j, fold, step, *map(block, blocks)]
        for s, i, d, j, fold, step, *blocks in case["messages"]
    ]
    due = [
        [mask(row[(part - root) % parts] if parts > 1 else row[part]) for part in range(len(row))]
        for row in case["due"]
    ]
    return {
        **case,
        "rounds": of_ranks(case["rounds"]),
        "messages": sorted(messages, key=lambda m: (m[0], m[1])),
        "held": of_ranks([sorted(map(block, row)) for row in case["held"]]),
        "wanted": of_ranks([sorted(map(block, row)) for row in case["wanted"]]),
        "due": of_ranks(due),
    }


def _case(
    schedule: Schedule,
    arrivals: list[int] | None,
    sources: Sources,
    limits: list[int] | None = None,
) -> Case:
    """Return the case of one root.

    `arrivals` has the steps in which messages arrive; without it, all are 0. A message that does
    not arrive is left out. `limits` are the numbers of rounds of each rank that are read, by
    default all.
    """
    algorithm, p, root = schedule.algorithm, schedule.p, schedule.root
    contract = algorithm.collective
    parts = contract.parts(p)
    cut = algorithm.blocks(p) // parts
    due = [[f"{contract.sources(part, r, p, root):x}" for part in range(parts)] for r in range(p)]

    def blocks(arrays: Iterable[int]) -> list[int]:
        return [part * cut + k for part in arrays for k in range(cut)]

    return {
        "nblocks": cut * parts,
        "pieces": cut * contract.per_array(p),
        "depth": max(arrivals or (), default=0),
        "rounds": [
            _spots(algorithm.run(r, p, root), sources, None if limits is None else limits[r])
            for r in range(p)
        ],
        "messages": _rows(schedule, arrivals, cut * parts),
        "held": [blocks(contract.inputs(r, p, root)) for r in range(p)],
        "wanted": [blocks(contract.outputs(r, p, root)) for r in range(p)],
        "due": due[:1] if due.count(due[0]) == p else due,
    }


def _spots(generator: Any, sources: Sources, limit: int | None) -> list[int]:
    return [sources.spot(generator) for _ in islice(generator, limit)]


def _rows(schedule: Schedule, arrivals: list[int] | None, nblocks: int) -> list[list[int]]:
    """Return the messages of a case."""
    folds = {}
    for number, each, message in schedule.takes():
        flags = type(message) is Fold, bool(each.both), message.blocks[0] >= nblocks
        folds[number] = sum(1 << k for k in range(3) if flags[k])
    steps = [0] * len(schedule) if arrivals is None else arrivals
    return [
        [row.source, row.sent_in, row.target, row.taken_in, folds[number], step, *row.blocks]
        for number, (row, step) in enumerate(zip(schedule, steps, strict=True))
        if step or arrivals is None
    ]
