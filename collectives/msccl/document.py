"""A file of MSCCL as thread blocks and steps; errors name the line.

An algorithm has a ``gpu`` for each rank, which has thread blocks (``tb``) of steps. A thread block
sends to one peer at most, and receives from one. It runs its steps in order, and waits before a
step for the step ``deps`` of the thread block ``depid`` of its rank. A step of type ``nop`` only
waits. The send of a thread block meets the receive of the thread block of its peer that has the
same channel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from xml.parsers import expat

from collectives.algorithms.spec import COLLECTIVES, Collective
from collectives.errors import ArgumentError, CollectivesError
from collectives.text.words import count, known

# Limits of a file: far more than executors take, and little enough for the memory of a laptop.
MOST_BYTES = 1 << 28
MOST_STEPS = 1 << 20
MOST_RANKS = 1 << 12
MOST_CHUNKS = 1 << 20  # of all ranks

# The steps of each type: those that receive, send, read the source, read and write the destination.
RECEIVE = frozenset(("r", "rcs", "rrc", "rrs", "rrcs"))
SEND = frozenset(("s", "rcs", "rrs", "rrcs"))
SOURCE = frozenset(("s", "rrc", "rrs", "rrcs", "cpy", "re"))
TARGET = frozenset(("r", "rcs", "rrc", "rrcs", "cpy", "re"))
FOLD = frozenset(("rrc", "rrs", "rrcs", "re"))
TYPES = ("s", "r", "rcs", "rrc", "rrs", "rrcs", "cpy", "re", "nop")

BUFFERS = {"i": "input", "o": "output", "s": "scratch"}
# Names of collectives in files that are not those of this library.
CALLED = {"reducescatter": "reduce_scatter"}
# The collectives that files can name; the calls of executors have no others of this library.
ABLE = (
    "allreduce",
    "reduce",
    "broadcast",
    "allgather",
    "reduce_scatter",
    "alltoall",
    "gather",
    "scatter",
)


class Place(NamedTuple):
    """The first chunk of a step in a buffer."""

    buffer: str
    first: int


class Step(NamedTuple):
    """A step: its line in the file, its chunks, and the step of another thread block before it."""

    line: int
    type: str
    source: Place
    target: Place
    chunks: int
    after: tuple[int, int] | None
    signals: bool
    round: int = -1  # of the rank, in files that `export` wrote


@dataclass
class Block:
    """A thread block."""

    line: int
    rank: int
    id: int
    send: int
    recv: int
    channel: int
    steps: list[Step] = field(default_factory=list)


@dataclass
class Gpu:
    """A rank: the chunks of its buffers, and its thread blocks."""

    line: int
    chunks: dict[str, int]
    blocks: list[Block] = field(default_factory=list)


@dataclass
class Program:
    """A whole file.

    `cut` is the number of chunks of each part of the `collective`. `modes` has True if the calls
    are in place, False if input and output are apart, or both.
    """

    path: str
    name: str
    collective: Collective
    p: int
    root: int
    cut: int
    channels: int
    modes: tuple[bool, ...]
    gpus: list[Gpu]


CHILD = {"": "algo", "algo": "gpu", "gpu": "tb", "tb": "step"}


class _Reader:
    """The state of `parse`: the elements that are open."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.parser = expat.ParserCreate()
        self.parser.StartElementHandler = self.begin
        self.parser.EndElementHandler = self.end
        self.parser.StartDoctypeDeclHandler = self.refuse_doctype
        self.parser.CharacterDataHandler = self.characters
        self.open: list[str] = [""]
        self.algo: dict[str, str] | None = None
        self.line = 0  # of the algorithm
        self.gpus: dict[int, Gpu] = {}
        self.steps = 0

    def fail(self, text: str, line: int = 0) -> ArgumentError:
        return ArgumentError(f"{self.path}, line {line or self.parser.CurrentLineNumber}: {text}")

    def refuse_doctype(self, *_: object) -> None:
        raise self.fail("there is a DOCTYPE, which files of MSCCL do not have")

    def characters(self, text: str) -> None:
        if text.strip():
            raise self.fail(f"there is the text {text.strip()[:20]!r} in <{self.open[-1]}>")

    def begin(self, tag: str, has: dict[str, str]) -> None:
        expected = CHILD.get(self.open[-1])
        if tag != expected:
            inside = f"in <{self.open[-1]}>" if self.open[-1] else "as the whole"
            wanted = f"wanted <{expected}>" if expected else "which has no elements"
            raise self.fail(f"there is a <{tag[:20]}> {inside}, {wanted}")
        self.open.append(tag)
        if tag == "algo":
            self.algo, self.line = has, self.parser.CurrentLineNumber
        else:
            getattr(self, tag)(has)

    def end(self, tag: str) -> None:
        self.open.pop()

    def text(self, tag: str, has: dict[str, str], name: str) -> str:
        if name not in has:
            raise self.fail(f"<{tag}> has no attribute {name!r}", self.line * (tag == "algo"))
        return has[name]

    def number(self, tag: str, has: dict[str, str], name: str, least: int, most: int) -> int:
        """Return an attribute that is a whole number."""
        text = self.text(tag, has, name)
        if not re.fullmatch(r"-?[0-9]{1,12}", text) or not least <= int(text) <= most:
            line = self.line if tag == "algo" else 0
            limits = f"{least}..{most}" if most > least else str(least)
            raise self.fail(
                f"<{tag}> has {name}={text[:20]!r}, and must have a whole number, {limits}", line
            )
        return int(text)

    def optional(self, has: dict[str, str], name: str, least: int, most: int, default: int) -> int:
        return self.number("algo", has, name, least, most) if name in has else default

    def gpu(self, has: dict[str, str]) -> None:
        rank = self.number("gpu", has, "id", 0, MOST_RANKS - 1)
        if rank in self.gpus:
            raise self.fail(f"there are two of <gpu id='{rank}'>")
        chunks = {b: self.number("gpu", has, f"{b}_chunks", 0, MOST_CHUNKS) for b in BUFFERS}
        self.rank = rank
        self.gpus[rank] = Gpu(self.parser.CurrentLineNumber, chunks)

    def tb(self, has: dict[str, str]) -> None:
        number = self.number("tb", has, "id", 0, MOST_STEPS)
        blocks = self.gpus[self.rank].blocks
        send, recv = (self.number("tb", has, k, -1, MOST_RANKS - 1) for k in ("send", "recv"))
        for peer, verb in ((send, "sends to"), (recv, "receives from")):
            if peer == self.rank:
                raise self.fail(f"thread block {number} of gpu {peer} {verb} itself")
        channel = self.number("tb", has, "chan", -1 if send == recv == -1 else 0, MOST_STEPS)
        line = self.parser.CurrentLineNumber
        blocks.append(Block(line, self.rank, number, send, recv, channel))

    def step(self, has: dict[str, str]) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise self.fail(f"there are more than {MOST_STEPS} steps")
        gpu = self.gpus[self.rank]
        block = gpu.blocks[-1]
        kind = self.text("step", has, "type")
        if kind not in TYPES:
            raise self.fail(f"<step> has type={kind[:20]!r}, and must have one of {TYPES}")
        number = self.number("step", has, "s", 0, MOST_STEPS)
        if number != len(block.steps):
            raise self.fail(
                f"<step> has s='{number}', and is step {len(block.steps)} of its thread block"
            )
        cnt = self.number("step", has, "cnt", 0 if kind == "nop" else 1, MOST_CHUNKS)
        source = self.place(has, "src", gpu.chunks, cnt, kind)
        target = self.place(has, "dst", gpu.chunks, cnt, kind)
        for types, peer, verb in ((RECEIVE, block.recv, "receives"), (SEND, block.send, "sends")):
            if kind in types and peer < 0:
                raise self.fail(f"{kind!r} {verb}, and thread block {block.id} has no peer for it")
        tb = self.number("step", has, "depid", -1, MOST_STEPS)
        at = self.number("step", has, "deps", -1, MOST_STEPS)
        if (tb < 0) != (at < 0):
            raise self.fail(f"<step> has depid='{tb}' and deps='{at}': both or neither must be -1")
        signals = self.number("step", has, "hasdep", 0, 1) == 1
        turn = self.number("step", has, "round", 0, MOST_STEPS) if "round" in has else -1
        after = (tb, at) if tb >= 0 else None
        block.steps.append(
            Step(self.parser.CurrentLineNumber, kind, source, target, cnt, after, signals, turn)
        )

    def place(
        self, has: dict[str, str], end: str, chunks: dict[str, int], cnt: int, kind: str
    ) -> Place:
        """Return the source or the target of a step, inside of its buffer if the step uses it."""
        buffer = self.text("step", has, f"{end}buf")
        if buffer not in BUFFERS:
            raise self.fail(f"<step> has {end}buf={buffer[:20]!r}, and must have i, o or s")
        first = self.number("step", has, f"{end}off", -1, MOST_CHUNKS)
        if kind in (SOURCE if end == "src" else TARGET) and not (
            0 <= first <= first + cnt <= chunks[buffer]
        ):
            raise self.fail(
                f"<step> has {end}off='{first}' and cnt='{cnt}', and the {BUFFERS[buffer]} of gpu "
                f"{self.rank} has {count(chunks[buffer], 'chunk')}"
            )
        return Place(buffer, first)

    def program(self) -> Program:
        """Return the whole, after the last element."""
        has = self.algo
        if has is None:
            raise self.fail("there is no <algo>")
        name = self.text("algo", has, "coll")
        contract = COLLECTIVES.get(CALLED.get(name, name))
        if contract is None or contract.name not in ABLE:
            raise self.fail(
                f"<algo> has coll={name[:40]!r}; {known(name, ABLE, 'it must be one of')}",
                self.line,
            )
        p = self.number("algo", has, "ngpus", 1, MOST_RANKS)
        channels = self.number("algo", has, "nchannels", 0, MOST_STEPS)
        chunks = self.number("algo", has, "nchunksperloop", 1, MOST_CHUNKS)
        cut, rest = divmod(chunks, contract.per_array(p))
        if rest:
            raise self.fail(
                f"<algo> has nchunksperloop='{chunks}', and {contract.name} on {count(p, 'rank')} "
                f"needs a multiple of {contract.per_array(p)}",
                self.line,
            )
        if sorted(self.gpus) != list(range(p)):
            missing = next((r for r in range(p) if r not in self.gpus), None)
            told = f"gpu {max(self.gpus)}" if missing is None else f"no gpu {missing}"
            raise self.fail(f"<algo> has ngpus='{p}', and there is {told}", self.line)
        total = sum(sum(gpu.chunks.values()) for gpu in self.gpus.values())
        if max(total, contract.parts(p) * cut) > MOST_CHUNKS:
            raise self.fail(f"the ranks have more than {MOST_CHUNKS} chunks", self.line)
        in_place = self.optional(has, "inplace", 0, 1, 0)
        apart = self.optional(has, "outofplace", 0, 1, 1 - in_place)
        modes = tuple(mode for mode, on in ((False, apart), (True, in_place)) if on)
        if not modes:
            raise self.fail("<algo> has inplace='0' and outofplace='0'", self.line)
        root = self.optional(has, "root", 0, p - 1, 0)
        gpus = [self.gpus[r] for r in range(p)]
        program = Program(
            self.path, has.get("name", ""), contract, p, root, cut, channels, modes, gpus
        )
        for gpu in gpus:
            self.check_gpu(program, gpu)
        return program

    def check_gpu(self, program: Program, gpu: Gpu) -> None:
        """Check the numbers of thread blocks, peers and steps that a rank refers to."""
        blocks = gpu.blocks
        for buffer in "io":
            most = program.cut * program.collective.per_array(program.p)
            if gpu.chunks[buffer] > most:
                raise self.fail(
                    f"<gpu> has {buffer}_chunks='{gpu.chunks[buffer]}', more than the "
                    f"nchunksperloop='{most}' of <algo>",
                    gpu.line,
                )
        numbers = [block.id for block in blocks]
        if sorted(numbers) != list(range(len(blocks))):
            wrong = next(b for b in blocks if numbers.count(b.id) > 1 or b.id >= len(blocks))
            raise self.fail(
                f"there are {len(blocks)} thread blocks, and this has id='{wrong.id}': the ids must"
                f" be 0..{len(blocks) - 1}, each once",
                wrong.line,
            )
        blocks.sort(key=lambda block: block.id)
        taken: dict[tuple[str, int, int], int] = {}
        for block in blocks:
            if block.channel >= program.channels:
                raise self.fail(
                    f"<tb> has chan='{block.channel}', and <algo> has nchannels="
                    f"'{program.channels}'",
                    block.line,
                )
            for verb, peer in (("sends to", block.send), ("receives from", block.recv)):
                if peer >= program.p:
                    raise self.fail(
                        f"<tb> {verb} {peer}, and gpus are 0..{program.p - 1}", block.line
                    )
                if peer < 0:
                    continue
                other = taken.setdefault((verb, peer, block.channel), block.id)
                if other != block.id:
                    raise self.fail(
                        f"thread blocks {other} and {block.id} both {verb.replace('s ', ' ')} "
                        f"{peer} on channel {block.channel}",
                        block.line,
                    )
            for step in block.steps:
                tb, at = step.after or (block.id, 0)
                if tb >= len(blocks) or (step.after and at >= len(blocks[tb].steps)):
                    raise self.fail(
                        f"<step> waits for step {at} of thread block {tb}, which is not there",
                        step.line,
                    )


def parse(path: str) -> Program:
    """Read a file; the error for one that is no XML, or malformed, has the line."""
    try:
        if not Path(path).is_file():
            raise ArgumentError(f"{path}: there is no such file")
        if Path(path).stat().st_size > MOST_BYTES:
            raise ArgumentError(f"{path}: the file has more than {MOST_BYTES} bytes")
        return parsed(path, Path(path).read_bytes())
    except OSError as error:
        raise ArgumentError(f"{path}: {error}") from error


def parsed(path: str, data: bytes) -> Program:
    """Read the contents of a file, as `parse` does."""
    reader = _Reader(path)
    try:
        reader.parser.Parse(data, True)
    except expat.ExpatError as error:
        raise ArgumentError(
            f"{path}, line {error.lineno}: it is not XML: {expat.ErrorString(error.code)}"
        ) from None
    except CollectivesError:
        raise
    except (ValueError, LookupError) as error:
        raise ArgumentError(f"{path}: {error}") from error
    return reader.program()
