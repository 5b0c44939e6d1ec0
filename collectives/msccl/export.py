"""An algorithm of the registry as a file of MSCCL.

Theory of operation
-------------------
The plan of each rank (`plans.schedule`) has a place for every block: IN is the input of MSCCL, OUT
the output, and WORK, then TMP, the scratch buffer. A rank has a thread block for each rank that it
sends to, one for each that it receives from, and one for local steps, all on channel 0. Their steps
are in the order of rounds: first the sends of a round, then its receives, then its local steps. A
message that is received and folded at once, by one step, is an ``rrc``; others are an ``r``, and
``re`` and ``cpy`` follow.

A step waits for the last step of each other thread block that accesses its chunks in conflict, as
if the output were in the place of the input. If there are several, it waits for all but the last in
steps of type ``nop``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple
from xml.sax.saxutils import quoteattr

from collectives.algorithms.registry import Algorithm
from collectives.errors import ArgumentError
from collectives.msccl.document import ABLE, CALLED, parsed
from collectives.msccl.replay import Replay
from collectives.plans.rounds import IN, OUT, TMP, Message, Run
from collectives.plans.rounds import Step as LocalStep
from collectives.plans.schedule import Plan, compile

LOCAL = ("", -1)  # the thread block of local steps; others are those of a verb and a peer


class _Op(NamedTuple):
    """A step before it has its dependencies."""

    block: tuple[str, int]
    type: str
    source: Run | None
    target: Run | None
    round: int

    def runs(self) -> Iterator[tuple[Run, bool]]:
        """Yield the runs that the step accesses, and whether it writes them."""
        if self.source is not None:
            yield self.source, False
        if self.target is not None:
            yield self.target, True


def refusal(algorithm: Algorithm, p: int, root: int = 0) -> str | None:
    """Return the reason why an algorithm cannot be exported, or None. Local."""
    name = algorithm.collective.name
    title = f"{name} {algorithm.name!r}"
    if name not in ABLE:
        return f"{title}: MSCCL has no {name}; it has {', '.join(ABLE)}"
    if p < 2:
        return f"{title}: MSCCL needs two ranks at least, and p is {p}"
    if (reason := algorithm.refusal(p)) is not None:
        return reason
    if algorithm.scratch:
        return f"{title}: it has scratch blocks"
    return None


def export(algorithm: Algorithm, p: int, root: int = 0) -> str:
    """Return an algorithm on `p` ranks as XML of MSCCL. Local.

    Parameters
    ----------
    algorithm : Algorithm
        A row of the registry.
    p, root : int
        Number of ranks, and the root of a rooted collective.

    Returns
    -------
    str
        The text of the file. It is proven like a file that `read` reads.

    Raises
    ------
    ArgumentError
        If MSCCL has no such collective, the algorithm folds in an order that MSCCL does not have,
        or it cannot run on `p` ranks.
    ProofError
        If the algorithm is wrong.

    Examples
    --------
    >>> from collectives import msccl
    >>> from collectives.algorithms import get
    >>> print(msccl.export(get("allgather", "ring"), 2).partition(">")[0])
    <algo name="ring" proto="Simple" nchannels="1" nchunksperloop="2" ngpus="2" coll="allgather" \
inplace="1" outofplace="1" minBytes="0" maxBytes="0"
    """
    if (reason := refusal(algorithm, p, root)) is not None:
        raise ArgumentError(reason)
    contract = algorithm.collective
    plans = [compile(algorithm, p, r, root, merged=False) for r in range(p)]
    names = {name: word for word, name in CALLED.items()}
    # In an alltoall in place, blocks of the input and the output share places in another way.
    in_place = contract.name in ("allreduce", "reduce", "broadcast", "allgather", "reduce_scatter")
    has = {
        "name": algorithm.name,
        "proto": "Simple",
        "nchannels": 1,
        "nchunksperloop": contract.per_array(p) * plans[0].cut,
        "ngpus": p,
        "coll": names.get(contract.name, contract.name),
        "inplace": int(in_place),
        "outofplace": 1,
        "minBytes": 0,
        "maxBytes": 0,
    }
    if contract.rooted:
        has["root"] = root
    lines = [_tag("algo", has, ">")]
    for plan in plans:
        lines += _gpu(plan)
    text = "\n".join([*lines, "</algo>", ""])
    program = parsed(f"{algorithm.title(p, root)} as XML of MSCCL", text.encode())
    for mode in program.modes:
        Replay(program, mode).run()
    return text


def _tag(name: str, has: dict[str, object], end: str, depth: int = 0) -> str:
    text = " ".join(f"{key}={quoteattr(str(value))}" for key, value in has.items())
    return f"{'  ' * depth}<{name} {text}{end}"


def _gpu(plan: Plan) -> Iterator[str]:
    """Yield the lines of a rank."""
    places = _Places(plan)
    blocks: dict[tuple[str, int], list[dict[str, object]]] = {}
    ops = list(_operations(plan))
    ids = {key: number for number, key in enumerate(sorted({op.block for op in ops}))}
    waits = _dependencies(ops)
    numbers: list[int] = []  # of each step in its thread block
    signals: set[tuple[tuple[str, int], int]] = set()
    for op, needs in zip(ops, waits, strict=True):
        steps = blocks.setdefault(op.block, [])
        after = [(ids[ops[n].block], numbers[n]) for n in needs] or [(-1, -1)]
        signals.update((ops[n].block, numbers[n]) for n in needs)
        for depid, deps in after[:-1]:
            steps.append(_step(len(steps), "nop", ("i", -1), ("o", -1), 0, depid, deps, op.round))
        numbers.append(len(steps))
        source, target = places.of(op.source), places.of(op.target)
        length = (op.source or op.target or Run(0, 0, 0)).length
        steps.append(
            _step(
                len(steps),
                op.type,
                source or target,
                target or source,
                length,
                *after[-1],
                op.round,
            )
        )
    sizes = {f"{buffer}_chunks": size for buffer, size in places.sizes().items()}
    yield _tag("gpu", {"id": plan.rank, **sizes}, ">", 1)
    for key, number in ids.items():
        verb, peer = key
        ends = {"send": peer if verb == "send" else -1, "recv": peer if verb == "recv" else -1}
        yield _tag("tb", {"id": number, **ends, "chan": 0}, ">", 2)
        for n, step in enumerate(blocks[key]):
            yield _tag("step", step | {"hasdep": int((key, n) in signals)}, "/>", 3)
        yield "    </tb>"
    yield "  </gpu>"


def _step(
    number: int,
    kind: str,
    source: tuple[str, int] | None,
    target: tuple[str, int] | None,
    length: int,
    depid: int,
    deps: int,
    turn: int,
) -> dict[str, object]:
    assert source is not None
    assert target is not None
    return {
        "s": number,
        "type": kind,
        "srcbuf": source[0],
        "srcoff": source[1],
        "dstbuf": target[0],
        "dstoff": target[1],
        "cnt": length,
        "depid": depid,
        "deps": deps,
        "hasdep": 0,
        "round": turn,
    }


class _Places:
    """The place of each run of a plan in the buffers of MSCCL."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.held = {b: k for k, b in enumerate(plan.held())}
        self.wanted = {b: k for k, b in enumerate(plan.wanted())}
        self.work = plan.workspace()
        self.homes = {b: k for k, b in enumerate(self.work[: len(self.work) - len(plan.parcels)])}

    def of(self, run: Run | None) -> tuple[str, int] | None:
        """Return the buffer and the first chunk of a run. Local."""
        if run is None:
            return None
        if run.space == IN:
            return "i", self.held[run.first]
        if run.space == OUT:
            return "o", self.wanted[run.first]
        if run.space == TMP:
            return "s", len(self.work) + run.first
        if run.first < self.plan.nblocks:
            return "s", self.homes[run.first]
        return "s", len(self.homes) + run.first - self.plan.nblocks

    def sizes(self) -> dict[str, int]:
        """Return the chunks in each buffer. Local."""
        return {
            "i": len(self.held),
            "o": len(self.wanted),
            "s": len(self.work) + self.plan.tmp,
        }


def _operations(plan: Plan) -> Iterator[_Op]:
    """Yield the steps of a rank, in an order in which they are right."""
    for turn, each in enumerate(plan.rounds):
        folds = _immediate(each.messages, each.steps)
        for message in each.messages:
            if message.send:
                yield _Op(("send", message.peer), "s", message.run, None, turn)
        for number, message in enumerate(each.messages):
            if message.send:
                continue
            block = "recv", message.peer
            if number in folds:
                step = folds[number]
                own = step.left if step.left != message.run else step.right
                yield _Op(block, "rrc", own, step.dst, turn)
            else:
                yield _Op(block, "r", None, message.run, turn)
        for step in each.steps:
            if any(step is other for other in folds.values()):
                continue
            first, second = step.left, step.right
            if second is None:
                yield _Op(LOCAL, "cpy", first, step.dst, turn)
                continue
            # In place, the block in the input may be where the result goes, so it comes first.
            if second.shared() == step.dst.shared():
                first, second = second, first
            if first != step.dst:
                yield _Op(LOCAL, "cpy", first, step.dst, turn)
            yield _Op(LOCAL, "re", second, step.dst, turn)


def _immediate(messages: list[Message], steps: list[LocalStep]) -> dict[int, LocalStep]:
    """Return the steps that fold a whole message into a block of the rank, by their message."""
    received = {m.run: n for n, m in enumerate(messages) if not m.send and m.run.space == TMP}
    found: dict[int, LocalStep] = {}
    for step in steps:
        ends = [run for run in (step.left, step.right) if run in received]
        if step.right is None or len(ends) != 1 or step.dst.space == TMP:
            continue
        number = received[ends[0]]
        uses = [s for s in steps for run in s[:3] if run is not None and _meet(run, ends[0])]
        others = [s for s in steps if s is not step and _meet(s.dst, step.dst)]
        if len(uses) == 1 and not others and number not in found:
            found[number] = step
    return found


def _meet(a: Run, b: Run) -> bool:
    return a.space == b.space and a.first < b.first + b.length and b.first < a.first + a.length


def _dependencies(ops: list[_Op]) -> list[list[int]]:
    """Return, for each step, the steps of other thread blocks that it has to wait for."""
    writer: dict[tuple[int, int], int] = {}
    readers: dict[tuple[int, int], list[int]] = {}
    known: dict[
        tuple[str, int], dict[tuple[str, int], int]
    ] = {}  # the last that a block waited for
    found = []
    for number, op in enumerate(ops):
        needs: set[int] = set()
        for run, writes in op.runs():
            for cell in {*run.shared(), *run.cells()}:
                if cell in writer:
                    needs.add(writer[cell])
                if writes:
                    needs.update(readers.get(cell, ()))
        for run, writes in op.runs():
            for cell in {*run.shared(), *run.cells()}:
                if writes:
                    writer[cell], readers[cell] = number, []
                else:
                    readers.setdefault(cell, []).append(number)
        last: dict[tuple[str, int], int] = {}
        for n in needs:
            other = ops[n].block
            if other != op.block and n > known.setdefault(op.block, {}).get(other, -1):
                last[other] = max(n, last.get(other, -1))
        known.setdefault(op.block, {}).update(last)
        found.append(sorted(last.values()))
    return found
