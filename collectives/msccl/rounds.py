"""The messages of a file of MSCCL as rounds of numbered blocks: an algorithm of the registry.

Theory of operation
-------------------
A file refers to places in memory, a generator to blocks, of which a rank holds one value each. The
values that a rank sends, or has in its output, are the *versions* of a block. Each version but the
first comes to be by messages that replace the version before it, or are folded into it. A received
value that is folded later is received in that round, so scratch memory disappears.

Each message gets a *level*, the same at both ends: above those that bring the versions that it
sends, and not below those that still send the version which it replaces. A round of a rank has the
messages of one level, so no rank waits for a later round of another. The order of thread blocks
and dependencies raises levels, too, if this closes no cycle. In files that `export` wrote, steps
have the numbers of their rounds.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from collectives.algorithms.exchange import Exchange, Fold, Store
from collectives.algorithms.registry import (
    Algorithm,
    Generator,
    algorithm,
    get,
    unregister,
)
from collectives.errors import ProofError
from collectives.msccl.document import Program, parse
from collectives.msccl.replay import Replay
from collectives.plans.proof import check
from collectives.text.words import count

KINDS = Store, Fold
STORES, FOLDS = range(2)

Hop = tuple[int, int]  # a transfer, and the number of a chunk in it
Side = dict[tuple[int, int], list[int]]  # the blocks of each message: for a peer, of a kind
Rounds = list[tuple[Side, Side]]  # of a rank: the messages that it sends and receives


class _Unwritable(Exception):
    """The messages of a correct file are no rounds of numbered blocks."""


@dataclass(frozen=True)
class Reading:
    """The result of reading a correct file.

    Attributes
    ----------
    algorithm : Algorithm
        The registered algorithm. Its name is that of the file, and it needs the file's number of
        ranks.
    steps, messages, unused : int
        Numbers of steps and messages of the file, and of messages of which no chunk is used.
    overwrites : bool
        Whether a rank overwrites its input although its output is elsewhere. The algorithm here
        does not.
    """

    algorithm: Algorithm
    steps: int
    messages: int
    unused: int
    overwrites: bool


def read(path: str) -> Reading:
    """Read a file of MSCCL, prove it, and register its algorithm. Local.

    Parameters
    ----------
    path : str
        An XML file as executors of MSCCL take it. The attribute ``root`` of ``<algo>``, which they
        ignore, is the root of a rooted collective (default: 0).

    Returns
    -------
    Reading
        The registered algorithm, which replaces that of an earlier file of this name.

    Raises
    ------
    ArgumentError
        If the file cannot be read, or is malformed; the text has the line.
    ProofError
        If ranks wait for each other for ever, two steps race, or a chunk of an output is wrong; the
        text has the steps and their lines, or the chunk, the data that it holds, and the data that
        belongs there.

    Examples
    --------
    >>> import os, tempfile
    >>> from collectives import msccl
    >>> from collectives.algorithms import get
    >>> with tempfile.NamedTemporaryFile(suffix=".xml") as file:
    ...     _ = file.write(msccl.export(get("broadcast", "tree"), 4).encode())
    ...     file.flush()
    ...     msccl.read(file.name).algorithm.name == os.path.basename(file.name)
    True
    """
    program = parse(path)
    replays = [Replay(program, mode) for mode in program.modes]
    for each in replays:
        each.run()
    replay = replays[0]
    lift = _Lift(replay)
    row = _register(program, lift)
    unused = len(replay.transfers) - len({number for number, _ in lift.kinds})
    return Reading(
        row,
        sum(len(block.steps) for block in replay.blocks),
        len(replay.transfers),
        unused,
        any(each.overwritten() for each in replays),
    )


def _register(program: Program, lift: _Lift) -> Algorithm:
    """Register the rounds of a file under its name, and prove them."""
    contract = program.collective
    name = re.sub(r"[^\w.+-]", "_", Path(program.path).name)
    title = program.name or name
    problem: Exception | None = lift.problem
    for rounds in lift.candidates():
        for same_bits in (True, False):
            generate = _generator(program, rounds)
            generate.__doc__ = f"{title}, of a file of MSCCL for {count(program.p, 'rank')}."
            algorithm(
                contract.name,
                name=name,
                blocks=program.cut,
                source=program.path,
                requires=(f"ranks={program.p}",),
                same_bits=same_bits,
                replace=True,
            )(generate)
            row = get(contract.name, name)
            try:
                check(row, p=program.p, root=program.root, record=False)
            except ProofError as error:
                problem = error
                unregister(contract.name, name)
            else:
                return row
    raise ProofError(
        f"{program.path}: every chunk of the outputs is right, but the messages are no rounds of "
        f"numbered blocks: {problem}"
    )


def _generator(program: Program, rounds: list[Rounds]) -> Generator:
    """Return the generator of an algorithm whose rounds are known for one root."""
    contract, home, cut = program.collective, program.root, program.cut
    by_part = contract.per_array(program.p) > 1

    def rooted(r: int, p: int, root: int) -> Iterator[Exchange]:
        shift = root - home

        def place(peer: int, blocks: list[int]) -> tuple[int, list[int]]:
            moves = shift and by_part
            return (
                (peer + shift) % p,
                [_moved(b, shift, p, cut) for b in blocks] if moves else blocks,
            )

        for sends, recvs in rounds[(r - shift) % p]:
            yield Exchange(
                send=[place(peer, blocks) for (peer, _), blocks in sends.items()],
                recv=[KINDS[kind](*place(peer, blocks)) for (peer, kind), blocks in recvs.items()],
            )

    return rooted if contract.rooted else lambda r, p: rooted(r, p, home)


def _moved(block: int, shift: int, p: int, cut: int) -> int:
    """Return the block of another root that has the place of a block, if arrays are cut by rank."""
    part, k = divmod(block, cut)
    return (part + shift) % p * cut + k


class _Lift:
    """The messages whose values are used, in chunks (hops), and the order that they must have."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay
        self.kinds: dict[Hop, int] = {}
        self.strict: list[tuple[Hop, Hop]] = []  # the second has a higher level
        self.weak: list[tuple[Hop, Hop]] = []  # the second has no lower level
        self.sent: dict[int, list[Hop]] = defaultdict(list)  # of each value
        self.problem: _Unwritable | None = None
        versions = self.used()
        by_block: dict[tuple[int, int], list[int]] = defaultdict(list)
        for value in sorted(versions):
            by_block[replay.values.rank[value], replay.values.block[value]].append(value)
        try:
            for listed in by_block.values():
                self.chain(listed, versions)
        except _Unwritable as error:
            self.problem = error

    def used(self) -> set[int]:
        """Find the hops that outputs depend on; return the versions of all blocks."""
        values, transfers = self.replay.values, self.replay.transfers
        stack = [value for final in self.replay.final for value in final.values()]
        versions, seen = set(stack), set(stack)
        while stack:
            origin, is_fold = values.origin[stack[-1]], values.is_fold[stack.pop()]
            if origin is None:
                continue
            parts: tuple[int, ...] = origin
            if not is_fold:
                number, n = origin
                parts = (transfers[number].sent[n],)
                versions.update(parts)
                self.sent[parts[0]].append(origin)
                self.kinds[origin] = STORES
            fresh = [part for part in parts if part not in seen]
            seen.update(fresh)
            stack += fresh
        return versions

    def parts(self, version: int, versions: set[int]) -> tuple[list[int], list[Hop]]:
        """Return the versions and the received values that a version is folded from."""
        values = self.replay.values
        bases, hops, stack = [], [], [version]
        while stack:
            value = stack.pop()
            origin = values.origin[value]
            if origin is None or (value in versions and value != version):
                bases.append(value)
            elif values.is_fold[value]:
                stack += origin
            else:
                hops.append(origin)
        return bases, sorted(hops)

    def chain(self, listed: list[int], versions: set[int]) -> None:
        """Order the hops that bring and send the versions of one block of one rank."""
        values = self.replay.values
        rank, block = values.rank[listed[0]], values.block[listed[0]]
        reduces = self.replay.program.collective.reduces
        last: int | None = None
        before: list[Hop] = []
        taken: set[Hop] = set()
        for version in listed:
            if values.origin[version] is None:
                last = version
                continue
            bases, hops = self.parts(version, versions)
            is_next = not bases or bases == [last] or (last is None and len(bases) == 1)
            if not is_next or not taken.isdisjoint(hops):
                raise _Unwritable(
                    f"rank {rank} needs several values of block {block} at the same time"
                )
            taken.update(hops)
            for hop in hops if bases else hops[1:]:
                self.kinds[hop] = FOLDS
                if not bases:
                    self.strict.append((hops[0], hop))
            old = self.sent[last] if last is not None and reduces else []
            if last is None and bases:
                old = self.sent[bases[0]]
            for hop in hops:
                self.weak += [(use, hop) for use in old]
                self.strict += [(hop, use) for use in self.sent[version]]
                for each in before:
                    folds = self.kinds[each] == self.kinds[hop] == FOLDS
                    (self.weak if folds else self.strict).append((each, hop))
            last, before = version, hops

    def candidates(self) -> Iterator[list[Rounds]]:
        """Yield the rounds of all ranks in the ways that the messages allow, the closest first."""
        if self.problem is not None:
            return
        attempts = [self.numbered()]
        for whole, soft in ((True, True), (True, False), (False, False)):
            attempts.append(self.levelled(whole, soft))
        for attempt in attempts:
            try:
                yield next(attempt)
            except _Unwritable as error:
                self.problem = error

    def ends(self, hop: Hop) -> tuple[int, int, int]:
        """Return the ranks that send and receive a hop, and its block."""
        transfer, blocks = self.replay.transfers[hop[0]], self.replay.blocks
        block = self.replay.values.block[transfer.sent[hop[1]]]
        return blocks[transfer.source[0]].rank, blocks[transfer.target[0]].rank, block

    def numbered(self) -> Iterator[list[Rounds]]:
        """Yield the rounds whose numbers the steps have."""
        blocks = self.replay.blocks
        rounds = {}
        for hop in sorted(self.kinds):
            ends = self.replay.transfers[hop[0]][:2]
            turns = [blocks[k].steps[at].round for k, at in ends]
            if min(turns) < 0:
                raise _Unwritable("the steps have no numbers of rounds")
            rounds[hop] = turns[0], turns[1]
        yield self.built(rounds)

    def levelled(self, whole: bool, soft: bool) -> Iterator[list[Rounds]]:
        """Yield rounds of levels: of `whole` messages, in the order of thread blocks if `soft`."""
        groups = {hop: (hop[0], self.kinds[hop]) if whole else hop for hop in self.kinds}
        edges = {(groups[a], groups[b], 1) for a, b in self.strict}
        edges |= {(groups[a], groups[b], 0) for a, b in self.weak if groups[a] != groups[b]}
        if soft:
            edges |= self.order(groups)
        levels = _Order(set(groups.values()), edges).levels()
        yield self.built({hop: (levels[group], levels[group]) for hop, group in groups.items()})

    def order(self, groups: dict[Hop, Hop]) -> set[tuple[Hop, Hop, int]]:
        """Return the order of messages that follows from thread blocks and dependencies."""
        replay = self.replay
        at_step: list[dict[tuple[int, int], set[Hop]]] = [{}, {}]  # sent and received at steps
        for hop, group in groups.items():
            for side, place in zip(at_step, replay.transfers[hop[0]][:2], strict=True):
                side.setdefault(place, set()).add(group)
        latest: list[dict[tuple[int, int], set[Hop]]] = [{}, {}]
        for side, found in zip(at_step, latest, strict=True):
            for k, block in enumerate(replay.blocks):
                now: set[Hop] = set()
                for at in range(len(block.steps)):
                    now = found[k, at] = side.get((k, at), now)
        edges: set[tuple[Hop, Hop, int]] = set()
        for k, block in enumerate(replay.blocks):
            sent: set[Hop] = set()
            received: set[Hop] = set()
            for at, step in enumerate(block.steps):
                if step.after:
                    place = replay.index[block.rank, step.after[0]], step.after[1]
                    sent, received = sent | latest[0][place], received | latest[1][place]
                sends, recvs = (side.get((k, at), set()) for side in at_step)
                edges |= {(a, b, 1) for a in received for b in recvs | sends}
                edges |= {(a, b, 1) for a in sent for b in sends}
                edges |= {(a, b, 1) for a in recvs for b in sends}
                sent, received = sends or sent, recvs or received
        return {edge for edge in edges if edge[0] != edge[1]}

    def built(self, rounds: dict[Hop, tuple[int, int]]) -> list[Rounds]:
        """Return the rounds of all ranks, from the rounds of each hop at its two ends."""
        p = self.replay.program.p
        sends: list[dict[int, Side]] = [defaultdict(dict) for _ in range(p)]
        recvs: list[dict[int, Side]] = [defaultdict(dict) for _ in range(p)]
        for hop in sorted(rounds):
            source, target, block = self.ends(hop)
            leaves, comes = rounds[hop]
            kind = self.kinds[hop]
            listed = sends[source][leaves].setdefault((target, kind), [])
            if block not in listed:
                listed.append(block)
                recvs[target][comes].setdefault((source, kind), []).append(block)
        return [
            [(sends[r].get(n, {}), recvs[r].get(n, {})) for n in sorted({*sends[r], *recvs[r]})]
            for r in range(p)
        ]


class _Order:
    """Groups of hops in the order of edges ``(before, after, 1 if not at the same level)``."""

    def __init__(self, groups: set[Hop], edges: set[tuple[Hop, Hop, int]]) -> None:
        self.after: dict[Hop, list[tuple[Hop, int]]] = {group: [] for group in sorted(groups)}
        for a, b, rise in sorted(edges):
            self.after[a].append((b, rise))
        self.component: dict[Hop, int] = {}
        self.sorted = self.components()
        for a, b, rise in edges:
            if rise and self.component[a] == self.component[b]:
                raise _Unwritable("messages wait for each other")

    def components(self) -> list[list[Hop]]:
        """Return the strongly connected components, each after those that it leads to (Tarjan)."""
        index: dict[Hop, int] = {}
        low: dict[Hop, int] = {}
        path: list[Hop] = []
        found: list[list[Hop]] = []
        for start in self.after:
            if start in index:
                continue
            stack = [(start, iter(self.after[start]))]
            index[start] = low[start] = len(index)
            path.append(start)
            while stack:
                node, following = stack[-1]
                for other, _ in following:
                    if other not in index:
                        index[other] = low[other] = len(index)
                        path.append(other)
                        stack.append((other, iter(self.after[other])))
                        break
                    if other not in self.component:
                        low[node] = min(low[node], index[other])
                else:
                    stack.pop()
                    if stack:
                        low[stack[-1][0]] = min(low[stack[-1][0]], low[node])
                    if low[node] == index[node]:
                        found.append([path.pop()])
                        while found[-1][-1] != node:
                            found[-1].append(path.pop())
                        self.component.update(dict.fromkeys(found[-1], len(found) - 1))
        return found

    def levels(self) -> dict[Hop, int]:
        """Return the lowest level of each group that is allowed."""
        level = [0] * len(self.sorted)
        for number in reversed(range(len(self.sorted))):
            for node in self.sorted[number]:
                for other, rise in self.after[node]:
                    k = self.component[other]
                    level[k] = max(level[k], level[number] + rise)
        return {node: level[number] for node, number in self.component.items()}
