"""Text pictures of algorithms: the messages, and the contents of ranks after each step.

A picture is drawn from a `check.Proof` alone, so it shows the executed algorithm. A *step* is the
proof's unit of time: messages of one step do not wait for each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction

from collectives.algorithms import get
from collectives.algorithms.groups import Groups
from collectives.plans.proof import Proof, check
from collectives.plans.replay import Event
from collectives.text.words import count, grouped, ranks, spans

WIDTH = 96
GAP = "   "
BAR = " | "

# On up to this many ranks, a rank is one digit, and cells name contributors; else they count them.
DIGITS = 10


def rounds(proof: Proof, *, width: int = WIDTH) -> str:
    """Draw the messages of each step, those that are folded before those that are stored. Local.

    Parameters
    ----------
    proof : Proof
        The result of `check`.
    width : int
        The largest number of characters in a line.

    Returns
    -------
    str
        ``0 -[2]-> 1`` is a message from rank 0 to rank 1 with block 2; ``[2-5]`` are four blocks.
        The blocks of an alltoall are named by their source and destination: ``02``.

    Examples
    --------
    >>> print(rounds(check("allreduce", "ring", p=3)))
    step 1  fold   0 -[0]-> 1   1 -[1]-> 2   2 -[2]-> 0
    step 2  fold   0 -[2]-> 1   1 -[0]-> 2   2 -[1]-> 0
    step 3  store  0 -[1]-> 1   1 -[2]-> 2   2 -[0]-> 0
    step 4  store  0 -[0]-> 1   1 -[1]-> 2   2 -[2]-> 0
    """
    steps: dict[tuple[int, bool], list[str]] = {}
    for event in proof.events:
        steps.setdefault((event.time, event.fold), []).append(_arrow(proof, event))
    lines = []
    digits = len(str(proof.depth))
    for time in range(1, proof.depth + 1):
        label = f"step {time:{digits}}  "
        for verb, fold in (("fold", True), ("store", False)):
            room = width - len(label) - len("store  ")
            for line in _wrapped(steps.get((time, fold), ()), room):
                lines.append(f"{label}{verb:5}  {line}")
                label, verb = " " * len(label), ""
    return "\n".join(lines) or "no messages"


def _arrow(proof: Proof, event: Event) -> str:
    return f"{event.source} -[{blocks_text(proof, event.blocks)}]-> {event.target}"


def blocks_text(proof: Proof, blocks: Sequence[int]) -> str:
    """Return the names of blocks that travel together, in their order. Local."""
    if between_pairs(proof):
        return ", ".join(block_text(proof, b) for b in blocks)
    return spans(blocks)


def between_pairs(proof: Proof) -> bool:
    """Return whether each part goes from one rank to one other, as in an alltoall. Local."""
    return proof.algorithm.collective.name == "alltoall"


def block_text(proof: Proof, block: int) -> str:
    """Return the name of a block: its number, or its source and destination. Local."""
    if not between_pairs(proof):
        return str(block)
    cut = proof.nblocks // proof.p**2
    source, target = divmod(block // cut, proof.p)
    gap = "" if proof.p <= DIGITS else "."
    return f"{source}{gap}{target}" + (f"/{block % cut}" if cut > 1 else "")


def _wrapped(items: Iterable[str], width: int) -> list[str]:
    """Join items to lines, as many in each as fit."""
    lines: list[str] = []
    for item in items:
        if lines and len(lines[-1]) + len(GAP) + len(item) <= width:
            lines[-1] += GAP + item
        else:
            lines.append(item)
    return lines


def grid(proof: Proof, *, width: int = WIDTH) -> str:
    """Draw the contents of each rank after each step: a row per rank, a cell per block. Local.

    Parameters
    ----------
    proof : Proof
        The result of `check`.
    width : int
        The largest number of characters in a line; later steps go below.

    Returns
    -------
    str
        A cell names the ranks whose contributions are in the block (with 11 ranks or more, it
        counts them). ``*`` means all required contributions, ``.`` means none. The scratch block of
        block 0 is called ``0'``, and is drawn from the step on in which it changes.

    Examples
    --------
    >>> print(grid(check("broadcast", "tree", p=4, root=1)))
            start | step 1 | step 2
    rank 0  .     | .      | *
    rank 1  *     | *      | *
    rank 2  .     | .      | *
    rank 3  .     | *      | *
    """
    labels = [f"rank {r}" for r in range(proof.p)]
    one = proof.nblocks == 1 and not proof.algorithm.scratch
    margin = _column(["", *labels] if one else ["", "block", *labels])
    due = [[proof.due(r, b) for r in range(proof.p)] for b in range(proof.nblocks)]
    rows: list[str] = []
    lines: list[str] = []
    for time in range(proof.depth + 1):
        group = _group(proof, time, due)
        if rows and len(rows[0]) + len(BAR) + len(group[0]) <= width:
            rows = [row + BAR + cells for row, cells in zip(rows, group, strict=True)]
        else:
            lines += [*rows, ""] if rows else []
            rows = [label + "  " + cells for label, cells in zip(margin, group, strict=True)]
    return "\n".join(line.rstrip() for line in lines + rows)


def _group(proof: Proof, time: int, due: list[list[int]]) -> list[str]:
    """Draw the holdings of all ranks after one step, as lines of equal length.

    `due` has, for each block and rank, the required contributors.
    """
    states = proof.held(time)
    blocks = [
        _column(
            [
                block_text(proof, b),
                *(_cell(state[b], mask, proof.p) for state, mask in zip(states, row, strict=True)),
            ]
        )
        for b, row in enumerate(due)
    ]
    if proof.algorithm.scratch:
        kept = zip(*proof.held(time, scratch=True), strict=True)
        blocks += [
            _column([f"{block_text(proof, b)}'", *(_cell(mask, -1, proof.p) for mask in row)])
            for b, row in enumerate(kept)
        ]
    lines = [" ".join(row) for row in zip(*blocks, strict=True)]
    title = f"step {time}" if time else "start"
    return _column([title, *lines[len(blocks) == 1 :]])


def _cell(mask: int, due: int, p: int) -> str:
    """Write the set of contributors to a block, or a star if all required ones are in it."""
    if not mask:
        return "."
    if mask == due:
        return "*"
    if p > DIGITS:
        return f"{mask.bit_count()}/{p}"
    return "".join(str(r) for r in range(p) if mask >> r & 1)


def _column(texts: Sequence[str]) -> list[str]:
    """Pad texts to equal length."""
    width = max(map(len, texts))
    return [text.ljust(width) for text in texts]


def drawing(
    collective: str,
    name: str,
    p: int,
    root: int = 0,
    groups: Groups | None = None,
    nbytes: int | None = None,
) -> str:
    """Prove an algorithm, and draw its cost, totals, messages and holdings. Local.

    Parameters
    ----------
    collective, name : str
        The algorithm.
    p, root : int
        Number of ranks, and the root of a rooted collective.
    groups : Groups, optional
        The groups of ranks, for an algorithm that depends on it.
    nbytes : int, optional
        The bytes of the array, for an algorithm whose blocks depend on it; 1 MiB by default.

    Raises
    ------
    ProofError, ArgumentError
        As `check`.

    Examples
    --------
    >>> print(drawing("reduce", "chain", p=3))
    reduce 'chain' on 3 ranks, root 0
    The sum walks from the root's left neighbour all the way round to the root.
    <BLANKLINE>
    cost      (p - 1) alpha + (p - 1) n beta + (p - 1) n gamma
    depth     2 steps
    messages  2
    sent      2 arrays: rank 0: 0, ranks 1-2: 1
    folded    2 arrays: ranks 0-1: 1, rank 2: 0
    <BLANKLINE>
    step 1  fold   2 -[0]-> 1
    step 2  fold   1 -[0]-> 0
    <BLANKLINE>
            start | step 1 | step 2
    rank 0  0     | 0      | *
    rank 1  1     | 12     | 12
    rank 2  2     | 2      | 2
    <BLANKLINE>
    Cells name the ranks whose contributions they hold: * is all that belong there, . is none.
    """
    algorithm = get(collective, name, groups)
    if nbytes is not None:
        algorithm = algorithm.at(p, nbytes)
    proof = check(algorithm, p=p, root=root)
    verb = "name" if p <= DIGITS else "count"
    is_sum = algorithm.cost is None and algorithm.totals(p) is not None
    cost = "the sum of its phases" if is_sum else algorithm.cost or "not stated"
    return "\n".join(
        [
            algorithm.title(p, root),
            algorithm.summary,
            "",
            f"cost      {cost}",
            f"depth     {count(proof.depth, 'step')}",
            f"messages  {sum(proof.messages)}",
            f"sent      {_totals(proof.sent)}",
            f"folded    {_totals(proof.folded)}",
            "",
            rounds(proof),
            "",
            grid(proof),
            "",
            f"Cells {verb} the ranks whose contributions they hold: "
            "* is all that belong there, . is none.",
        ]
    )


def _totals(amounts: Sequence[Fraction]) -> str:
    """Write the sum of the amounts, and that of each rank, in units of the caller's array."""
    total = sum(amounts, Fraction(0))
    text = f"{total} array{'s' * (total != 1)}"
    groups = grouped(enumerate(amounts))
    if len(groups) == 1:
        return f"{text}: {amounts[0]} by each rank"
    parts = [f"{ranks(mask)}: {amount}" for amount, mask in groups.items()]
    return f"{text}: {', '.join(parts)}"
