"""The symbolic execution of a file of MSCCL on all ranks.

Theory of operation
-------------------
Thread blocks run their steps as executors do: a send is buffered, a receive waits for its message,
and a dependency for a step that signals. A chunk holds a *value*: the contribution of a rank to a
block (a leaf), a value that has arrived in a message, or the fold of two values. Values are
numbered in the order in which they come to be, so a value has a higher number than its parts.

One order of execution stands for all others if no two steps race. Each step has a vector clock
with the steps of all thread blocks that have certainly happened before it. Two steps of a rank that
access one chunk, one of them writing, must be ordered by these clocks.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from collectives.errors import ProofError
from collectives.msccl.document import (
    BUFFERS,
    FOLD,
    RECEIVE,
    SEND,
    SOURCE,
    TARGET,
    Block,
    Place,
    Program,
    Step,
)
from collectives.text.words import count, named, ranks

Chunk = tuple[str, int]  # the buffer and the number in it


class Delivery(NamedTuple):
    """A message: the steps that send and receive it, and the numbers of its values at both ends."""

    source: tuple[int, int]  # the index of the thread block among all, and the step
    target: tuple[int, int]
    sent: list[int]
    arrived: list[int]


@dataclass
class Values:
    """All values: their rank, block, contributors, and origin.

    The origin is None for a leaf, the number of a transfer and of a chunk in it for a value that
    has arrived, or a pair of values. Pairs are told by `is_fold`.
    """

    rank: list[int] = field(default_factory=list)
    block: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    origin: list[tuple[int, int] | None] = field(default_factory=list)
    is_fold: list[bool] = field(default_factory=list)

    def add(
        self, rank: int, block: int, mask: int, origin: tuple[int, int] | None, fold: bool
    ) -> int:
        self.rank.append(rank)
        self.block.append(block)
        self.mask.append(mask)
        self.origin.append(origin)
        self.is_fold.append(fold)
        return len(self.rank) - 1


@dataclass
class _Access:
    """The last write of a chunk, and the reads since then: thread blocks with their steps."""

    write: tuple[int, int] | None = None
    reads: dict[int, int] = field(default_factory=dict)


class Replay:
    """All ranks, their chunks, and the loop that runs them until there is no more progress."""

    def __init__(self, program: Program, in_place: bool) -> None:
        self.program, self.in_place = program, in_place
        self.values = Values()
        self.blocks = [block for gpu in program.gpus for block in gpu.blocks]
        self.index = {(block.rank, block.id): k for k, block in enumerate(self.blocks)}
        self.memory: list[dict[Chunk, int]] = []
        self.access: list[dict[Chunk, _Access]] = [{} for _ in program.gpus]
        self.at = [0] * len(self.blocks)
        self.clock: list[Any] = [np.zeros(len(self.blocks), np.int32) for _ in self.blocks]
        self.signals: dict[tuple[int, int], Any] = {}  # the clocks of steps that signal
        self.posted: dict[tuple[int, int, int], deque[tuple[list[int], Any, tuple[int, int]]]] = {}
        self.transfers: list[Delivery] = []
        self.waiting: dict[object, list[int]] = {}
        self.ready = deque(range(len(self.blocks)))
        self.final: list[dict[int, int]] = []  # of each rank, the value of each block of the output
        contract, p = program.collective, program.p
        self.alias = [self.aliases(r) for r in range(p)]
        for r in range(p):
            held = {}
            for n, part in enumerate(contract.inputs(r, p, program.root)):
                for k in range(program.cut):
                    block = part * program.cut + k
                    leaf = self.values.add(r, block, 1 << r, None, False)
                    held[self.chunk(r, Place("i", n * program.cut + k), 0)] = leaf
            self.memory.append(held)

    def chunk(self, rank: int, place: Place, k: int) -> Chunk:
        """Return the `k`-th chunk of a place; in place, the input and the output share chunks."""
        buffer, offset = self.alias[rank][place.buffer]
        return buffer, offset + place.first + k

    def aliases(self, rank: int) -> dict[str, tuple[str, int]]:
        """Return the buffer that each buffer of a rank is in, and its first chunk there."""
        same = {buffer: (buffer, 0) for buffer in BUFFERS}
        if not self.in_place:
            return same
        whole = self.program.collective.per_array(self.program.p) * self.program.cut
        sizes = self.size(rank, "i"), self.size(rank, "o")
        own = rank * self.program.cut
        if 0 < sizes[0] < whole == sizes[1]:
            return same | {"i": ("o", own)}
        if 0 < sizes[1] < whole == sizes[0]:
            return same | {"o": ("i", own)}
        return same | {"o": ("i", 0)}

    def size(self, rank: int, buffer: str) -> int:
        """Return the chunks that the contract has in the input or output of a rank."""
        contract, p = self.program.collective, self.program.p
        parts = contract.inputs if buffer == "i" else contract.outputs
        return len(parts(rank, p, self.program.root)) * self.program.cut

    def where(self, block: Block, at: int) -> str:
        line = block.steps[at].line if at < len(block.steps) else block.line
        return f"gpu {block.rank}, thread block {block.id}, step {at} (line {line})"

    def fail(self, block: Block, at: int, text: str) -> ProofError:
        return ProofError(f"{self.title}: {self.where(block, at)} {text}")

    @property
    def title(self) -> str:
        return f"{self.program.path}{', in place' if self.in_place else ''}"

    def told(self, value: int) -> str:
        """Describe a value."""
        program, values = self.program, self.values
        mask, block = values.mask[value], values.block[value]
        if program.collective.per_array(program.p) == 1:
            return f"chunk {block} of {ranks(mask)}"
        owner = mask.bit_length() - 1
        part, k = divmod(block, program.cut)
        parts = list(program.collective.inputs(owner, program.p, program.root))
        number = parts.index(part) * program.cut + k if part in parts else block
        return f"chunk {number} of the input of {ranks(mask)}"

    def run(self) -> None:
        """Run all steps; check the results. Local.

        Raises
        ------
        ProofError
            If the file is wrong.
        """
        while self.ready:
            k = self.ready.popleft()
            while self.at[k] < len(self.blocks[k].steps) and self.advance(k):
                pass
        stuck = [k for k, block in enumerate(self.blocks) if self.at[k] < len(block.steps)]
        if stuck:
            texts = [self.stuck(k) for k in stuck[:4]]
            more = f"; and {len(stuck) - 4} others wait" if len(stuck) > 4 else ""
            raise ProofError(f"{self.title}: deadlock: {'; '.join(texts)}{more}")
        for (source, target, channel), messages in self.posted.items():
            if messages:
                k, at = messages[0][2]
                raise self.fail(
                    self.blocks[k],
                    at,
                    f"sends to gpu {target} on channel {channel}, and gpu {target} receives "
                    f"{count(len(messages), 'message')} fewer than gpu {source} sends there",
                )
        self.check()

    def stuck(self, k: int) -> str:
        """Describe the wait of a thread block."""
        block, at = self.blocks[k], self.at[k]
        step, title = block.steps[at], self.where(block, at)
        if step.after and (target := self.awaited(block, step)) is None:
            tb, number = step.after
            return (
                f"{title} waits for step {number} of thread block {tb}, and no step from there on "
                f"has hasdep='1'"
            )
        if step.after and target not in self.signals:
            tb, number = step.after
            return f"{title} waits for step {number} of thread block {tb}"
        sender = next(
            (
                other
                for other in self.program.gpus[block.recv].blocks
                if (other.send, other.channel) == (block.rank, block.channel)
            ),
            None,
        )
        told = f"{title} waits for a message of gpu {block.recv} on channel {block.channel}"
        if sender is None:
            return f"{told}, where it has no thread block that sends to gpu {block.rank}"
        if self.at[self.index[sender.rank, sender.id]] == len(sender.steps):
            return f"{told}, whose thread block {sender.id} has ended"
        return f"{told}, from its thread block {sender.id}"

    def awaited(self, block: Block, step: Step) -> tuple[int, int] | None:
        """Return the step that ends the wait of a step: the first from `after` on that signals."""
        assert step.after is not None
        other = self.index[block.rank, step.after[0]]
        for at in range(step.after[1], len(self.blocks[other].steps)):
            each = self.blocks[other].steps[at]
            if each.signals and each.type != "nop":
                return other, at
        return None

    def advance(self, k: int) -> bool:
        """Run the next step of a thread block; return False if it has to wait."""
        block, at = self.blocks[k], self.at[k]
        step = block.steps[at]
        clock = self.clock[k]
        if step.after:
            needed = self.awaited(block, step)
            if needed is None or needed not in self.signals:
                self.waiting.setdefault(needed, []).append(k)
                return False
            clock = np.maximum(clock, self.signals[needed])
        values: list[int] = []
        link = block.recv, block.rank, block.channel
        if step.type in RECEIVE:
            if not self.posted.get(link):
                self.waiting.setdefault(link, []).append(k)
                return False
            values, sent, origin = self.posted[link].popleft()
            clock = np.maximum(clock, sent)
            values = self.receive(k, values, origin)
        clock = clock.copy()
        clock[k] = at + 1
        self.clock[k] = clock
        self.at[k] += 1
        self.compute(k, at, values, clock)
        if step.signals and step.type != "nop":
            self.signals[k, at] = clock
            self.ready.extend(self.waiting.pop((k, at), ()))
        return True

    def receive(self, k: int, sent: list[int], origin: tuple[int, int]) -> list[int]:
        """Return the numbers of the values that arrive in a message."""
        block, at = self.blocks[k], self.at[k]
        if len(sent) != block.steps[at].chunks:
            raise self.fail(
                block,
                at,
                f"receives {count(block.steps[at].chunks, 'chunk')}, and "
                f"{self.where(self.blocks[origin[0]], origin[1])} sends {len(sent)}",
            )
        values = self.values
        number = len(self.transfers)
        arrived = [
            values.add(block.rank, values.block[v], values.mask[v], (number, n), False)
            for n, v in enumerate(sent)
        ]
        self.transfers.append(Delivery(origin, (k, at), sent, arrived))
        return arrived

    def compute(self, k: int, at: int, values: list[int], clock: Any) -> None:
        """Read, fold, write and send the chunks of a step."""
        block = self.blocks[k]
        step = block.steps[at]
        if step.type == "nop":
            return
        if step.type in SOURCE:
            own = [self.read(k, at, step.source, n, clock) for n in range(step.chunks)]
            if step.type == "re":
                values = [self.read(k, at, step.target, n, clock) for n in range(step.chunks)]
            if step.type in FOLD:
                values = [self.fold(k, at, a, b) for a, b in zip(own, values, strict=True)]
            else:
                values = own
        if step.type in TARGET:
            for n, value in enumerate(values):
                self.write(k, at, step.target, n, value, clock)
        if step.type in SEND:
            link = block.rank, block.send, block.channel
            self.posted.setdefault(link, deque()).append((values, clock, (k, at)))
            self.ready.extend(self.waiting.pop(link, ()))

    def fold(self, k: int, at: int, a: int, b: int) -> int:
        values = self.values
        if values.block[a] != values.block[b]:
            raise self.fail(self.blocks[k], at, f"folds {self.told(a)} and {self.told(b)}")
        both = values.mask[a] & values.mask[b]
        if both:
            raise self.fail(
                self.blocks[k],
                at,
                f"folds {self.told(a)} and {self.told(b)}, so the contribution of {ranks(both)} is "
                f"in it twice",
            )
        mask = values.mask[a] | values.mask[b]
        return values.add(self.blocks[k].rank, values.block[a], mask, (a, b), True)

    def read(self, k: int, at: int, place: Place, n: int, clock: Any) -> int:
        block = self.blocks[k]
        chunk = self.chunk(block.rank, place, n)
        access = self.access[block.rank].setdefault(chunk, _Access())
        if access.write is not None:
            self.order(k, at, access.write, clock, place, n, "reads", "writes")
        access.reads[k] = at
        value = self.memory[block.rank].get(chunk)
        if value is None:
            told = f"chunk {place.first + n} of the {BUFFERS[place.buffer]}"
            raise self.fail(block, at, f"reads {told}, which holds nothing yet")
        return value

    def write(self, k: int, at: int, place: Place, n: int, value: int, clock: Any) -> None:
        block = self.blocks[k]
        chunk = self.chunk(block.rank, place, n)
        access = self.access[block.rank].setdefault(chunk, _Access())
        if access.write is not None:
            self.order(k, at, access.write, clock, place, n, "writes", "writes")
        for other in access.reads.items():
            self.order(k, at, other, clock, place, n, "writes", "reads")
        access.write, access.reads = (k, at), {}
        self.memory[block.rank][chunk] = value

    def order(
        self,
        k: int,
        at: int,
        other: tuple[int, int],
        clock: Any,
        place: Place,
        n: int,
        verb: str,
        before: str,
    ) -> None:
        """Raise an error unless another access has certainly happened before this one."""
        if other[0] != k and clock[other[0]] <= other[1]:
            told = f"chunk {place.first + n} of the {BUFFERS[place.buffer]}"
            raise self.fail(
                self.blocks[k],
                at,
                f"{verb} {told}, and {self.where(self.blocks[other[0]], other[1])} {before} it: "
                f"neither waits for the other",
            )

    def check(self) -> None:
        """Compare the output of all ranks with the contract."""
        program, contract, values = self.program, self.program.collective, self.values
        wrong = []
        for r in range(program.p):
            final = {}
            for n, part in enumerate(contract.outputs(r, program.p, program.root)):
                due = contract.sources(part, r, program.p, program.root)
                for c in range(program.cut):
                    block = part * program.cut + c
                    number = n * program.cut + c
                    value = self.memory[r].get(self.chunk(r, Place("o", number), 0))
                    if value is not None and (values.mask[value], values.block[value]) == (
                        due,
                        block,
                    ):
                        final[block] = value
                        continue
                    holds = "nothing" if value is None else self.told(value)
                    values.add(r, block, due, None, False)
                    wanted = self.told(len(values.rank) - 1)
                    wrong.append((r, number, holds, wanted))
            self.final.append(final)
        if wrong:
            texts = [
                f"chunk {number} of the output of rank {r} holds {holds}, wanted {wanted}"
                for r, number, holds, wanted in wrong[:4]
            ]
            at_all = named(sorted({r for r, *_ in wrong}))
            more = f"; {count(len(wrong), 'chunk')} of {at_all} are wrong" if wrong[4:] else ""
            raise ProofError(f"{self.title}: {'; '.join(texts)}{more}")

    def overwritten(self) -> list[int]:
        """Return the ranks whose input is not as it was. Local."""
        program, values = self.program, self.values
        found = []
        for r in range(program.p if not self.in_place else 0):
            for n in range(self.size(r, "i")):
                value = self.memory[r][self.chunk(r, Place("i", n), 0)]
                if values.origin[value] is not None or values.rank[value] != r:
                    found.append(r)
                    break
        return found
