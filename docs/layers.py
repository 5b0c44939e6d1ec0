"""The layers of the library, in one table for the tests, the manual and CONTRIBUTING.md.

Rooms (packages and modules) are listed from the top to the bottom, and imports point downward: a
room imports those below it and none above. `arrows` reads the imports in the sources, including
those inside functions and under TYPE_CHECKING; `table` and `picture` show the table.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

SOURCES = Path(__file__).resolve().parents[1] / "collectives"


class Room(NamedTuple):
    """A package, or some modules at the top level."""

    name: str
    modules: tuple[str, ...]
    content: str
    short: str  # for the picture


class Layer(NamedTuple):
    """Rooms of one kind, from the top to the bottom."""

    name: str
    rooms: tuple[Room, ...]


def _package(name: str, content: str, short: str) -> Room:
    return Room(f"{name}/", (name,), content, short)


LAYERS = (
    Layer(
        "tools",
        (
            Room(
                "cli/",
                ("cli", "__main__"),
                "the command `collectives`: parse, call, print",
                "parse, call, print",
            ),
            _package("explorer", "the page that plays algorithms", "a page that plays"),
            _package(
                "measuring",
                "the measurements of `bench`, `tune` and `doctor`, and their reports as data",
                "bench, tune, doctor",
            ),
        ),
    ),
    Layer(
        "package",
        (
            Room(
                "__init__.py",
                ("__init__",),
                "`import collectives`: the names for programs",
                "import collectives",
            ),
        ),
    ),
    Layer(
        "front ends",
        (
            Room(
                "as_horovod.py",
                ("as_horovod",),
                "`import horovod` imports this library",
                "import horovod",
            ),
            _package(
                "mpi4py",
                "communicators of mpi4py whose collectives run here",
                "mpi4py's programs",
            ),
            _package(
                "tensorflow",
                "TensorFlow: Horovod's interface, the tape, `tf.distribute`, `tensorflow.keras`",
                "TensorFlow",
            ),
            _package("keras", "Keras 3 on any backend: optimizer, callbacks", "Keras 3"),
            _package("jax", "JAX: collectives under `jit` and `grad`, and for optax", "JAX"),
            _package(
                "torch",
                "PyTorch: Horovod's interface, the backend of `torch.distributed`, hooks for DDP",
                "PyTorch",
            ),
            _package(
                "compiled",
                "submissions inside compiled programs: `tf.function`, `jax.jit`",
                "in tf.function, jit",
            ),
            _package(
                "horovod",
                "the part of Horovod's interface that all frameworks have",
                "init, process sets, ops",
            ),
        ),
    ),
    Layer(
        "services",
        (
            _package("dask", "a function on the workers of a Dask cluster, each a rank", "Dask"),
            _package("ray", "a function on actors of a Ray cluster, each a rank", "Ray"),
            _package("spark", "a function on the tasks of a Spark cluster, each a rank", "Spark"),
            _package(
                "engines",
                "jobs in the long-lived worker processes of engines",
                "jobs in workers",
            ),
            Room(
                "elastic.py",
                ("elastic", "growth"),
                "programs that continue after the loss of ranks: a state that is kept and restored",
                "after a loss",
            ),
            _package(
                "server",
                "parameter servers: policies, optimizers, pulls and pushes",
                "pull, push",
            ),
            _package(
                "federated",
                "federated averaging: strategies, rounds with deadlines, masks, privacy",
                "train, data stay",
            ),
            _package(
                "background",
                "collectives that run in the background: order, turns, fusion, priorities, stalls",
                "submit, wait",
            ),
        ),
    ),
    Layer(
        "public",
        (
            Room(
                "doors",
                ("check", "draw", "simulate", "topology"),
                "the modules `check`, `draw`, `simulate`, `topology`, for programs",
                "check, simulate, ...",
            ),
            _package(
                "slow",
                "the ranks in Python, on machines without the core: threads or processes",
                "ranks without the core",
            ),
            Room(
                "default.py",
                ("default",),
                "the calls on the default communicator, all ranks of the job",
                "cc.allreduce(x)",
            ),
            Room(
                "communicator.py",
                ("communicator",),
                "the communicator: its making, groups, shared memory, `explain`",
                "Communicator",
            ),
            _package("calls", "its methods: signatures, and the steps around a run", "methods"),
            _package("compression", "codecs for an allreduce that sends fewer bytes", "codecs"),
            _package("records", "records of calls: timelines and traces", "timelines, traces"),
        ),
    ),
    Layer(
        "choice",
        (
            _package(
                "choice",
                "the choice of the algorithm and its reason: profile, table, model",
                "which, why",
            ),
        ),
    ),
    Layer(
        "process",
        (
            _package(
                "launch",
                "ranks as children: by the right mpiexec, or without MPI; `spawn`",
                "mpiexec, spawn",
            ),
            _package(
                "devices",
                "arrays in the memory of GPUs, and their transports",
                "GPUs",
            ),
            _package(
                "process",
                "the process of a rank: MPI, environment, shared segment, forks, its end",
                "MPI, memory, forks, end",
            ),
            Room("reductions.py", ("reductions",), "`SUM`, `AVG`, your own", "SUM, AVG, ..."),
        ),
    ),
    Layer(
        "core",
        (
            Room(
                "_core.pyx",
                ("_core",),
                "plans as C arrays, the executor, kernels, transports; no algorithm",
                "runs programs",
            ),
        ),
    ),
    Layer(
        "pure",
        (
            _package("arrays", "the kinds of arrays", "NumPy, torch, ..."),
            _package("synthesis", "searches for algorithms for a network: bounds, trees", "search"),
            _package("msccl", "algorithms as the XML of MSCCL", "XML of MSCCL"),
            _package("simulation", "algorithms in simulated time", "time"),
            _package("picture", "drawings as text, SVG and PNG", "text, SVG, PNG"),
            _package(
                "plans", "an algorithm's plan, its proof, its program", "plan, proof, program"
            ),
            _package("algorithms", "the texts, their registry, the contracts", "the text"),
        ),
    ),
    Layer(
        "words",
        (
            Room(
                "errors.py",
                ("errors", "_version", "coreless"),
                "the tree of errors and warnings, and the one for machines without the core",
                "errors",
            ),
            _package(
                "text",
                "numbers and ranks in words, tables, progress, places in a program, files",
                "words, tables",
            ),
        ),
    ),
)

# The forms of a generator: from room to room.
WAY = (("algorithms/", "plans/"), ("plans/", "picture/"), ("plans/", "_core.pyx"))


class Arrow(NamedTuple):
    """An import: the module that has it, and the module that it imports."""

    file: str
    line: int
    source: str
    target: str


def modules(folder: Path = SOURCES) -> dict[str, Path]:
    """Return all modules below a folder by their names inside the package."""
    found = {}
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)
        found[name] = path
    return found


def arrows(folder: Path = SOURCES) -> Iterator[Arrow]:
    """Yield every import between modules of the package, also inside functions."""
    known = modules(folder)
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for target in _targets(node, known):
                yield Arrow(str(path.relative_to(folder)), node.lineno, name, target)
    for path in sorted(folder.rglob("*.p[yx][xi]")):
        if path.suffix in (".pyx", ".pxi"):
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                statement = re.match(r"\s*((?:from collectives|import collectives)\b.*)", line)
                if statement:
                    text = re.sub(r"\($", "(x)", statement[1].strip())
                    for node in ast.walk(ast.parse(text)):
                        for target in _targets(node, known):
                            yield Arrow(str(path.relative_to(folder)), number, "_core", target)


def _targets(node: ast.AST, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules of the package that a statement imports."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.partition(".")[0] == "collectives":
                yield alias.name.partition(".")[2] or "__init__"
    elif isinstance(node, ast.ImportFrom) and node.level:
        raise ValueError(f"line {node.lineno}: imports of the package are absolute")
    elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "collectives":
        module = (node.module or "").partition(".")[2]
        for alias in node.names:
            full = f"{module}.{alias.name}".lstrip(".")
            yield full if full in known or full == "_core" else module or "__init__"


def room_of(module: str) -> str:
    """Return the room of a module. Raises KeyError where the table has none."""
    first = module.partition(".")[0]
    return {name: room.name for room in rooms() for name in room.modules}[first]


def rooms() -> list[Room]:
    """Return all rooms from the top to the bottom."""
    return [room for layer in LAYERS for room in layer.rooms]


def table() -> list[str]:
    """Return the table in Markdown, as CONTRIBUTING.md has it."""
    lines = ["| layer | room | content |", "|---|---|---|"]
    for layer in LAYERS:
        for number, room in enumerate(layer.rooms):
            name = layer.name if number == 0 else ""
            lines.append(f"| {name} | `{room.name}` | {room.content} |")
    return lines


# -- the picture ---------------------------------------------------------------------------------

WIDTH, LEFT, ROW, HEIGHT, GAP = 860, 110, 66, 46, 24

STYLE = """
    .layers { width: 100%; max-width: 860px; height: auto;
      color: var(--pst-color-text-base, #222); }
    .layers text { fill: currentColor; font-family: system-ui, sans-serif; }
    .layers .layer { fill: currentColor; fill-opacity: 0.05; }
    .layers .label { font-size: 16px; font-weight: 600; }
    .layers .box { fill: var(--pst-color-background, #fff); stroke: currentColor;
      stroke-opacity: 0.45; }
    .layers .name { font-size: 13px; font-weight: 600; font-family: monospace;
      text-anchor: middle; }
    .layers .what { font-size: 11.5px; text-anchor: middle; }
    .layers .way { stroke: var(--pst-color-primary, #0a7d91); stroke-width: 2;
      stroke-dasharray: 5 4; fill: none; }
    .layers #tip path { fill: var(--pst-color-primary, #0a7d91); }
"""


def picture() -> str:
    """Return the picture of the layers as SVG: imports point down, and in a row to the left."""
    bottom = ROW * len(LAYERS)
    names = ", ".join(layer.name for layer in LAYERS)
    lines = [
        f'<svg class="layers" viewBox="0 0 {WIDTH} {bottom + 4}" '
        'xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="layers-title">',
        f'  <title id="layers-title">The layers, from the top to the bottom: {names}</title>',
        f"  <style>{STYLE}  </style>",
        '  <defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0 0 L10 5 L0 10 z"/></marker></defs>',
    ]
    places: dict[str, tuple[float, float, float]] = {}
    for row, layer in enumerate(LAYERS):
        top = 4 + ROW * row
        lines += [
            f'  <rect class="layer" x="4" y="{top}" width="{WIDTH - 8}" height="{ROW - 8}" '
            'rx="8"/>',
            f'  <text class="label" x="18" y="{top + 34}">{layer.name}</text>',
        ]
        width = (WIDTH - LEFT - 16 - GAP * (len(layer.rooms) - 1)) / len(layer.rooms)
        for number, room in enumerate(reversed(layer.rooms)):
            left = LEFT + number * (width + GAP)
            middle = left + width / 2
            places[room.name] = left, top + 6, width
            lines += [
                f'  <rect class="box" x="{left:.1f}" y="{top + 6}" width="{width:.1f}" '
                f'height="{HEIGHT}" rx="6"/>',
                f'  <text class="name" x="{middle:.1f}" y="{top + 25}">{room.name}</text>',
                f'  <text class="what" x="{middle:.1f}" y="{top + 43}">{escape(room.short)}</text>',
            ]
    for source, target in WAY:
        lines.append(
            f'  <path class="way" marker-end="url(#tip)" d="{_path(places, source, target)}"/>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _path(places: dict[str, tuple[float, float, float]], source: str, target: str) -> str:
    """Return a line from the edge of one box to that of another."""
    left, top, width = places[source]
    to_left, to_top, _ = places[target]
    if top == to_top:  # beside each other
        middle = top + HEIGHT / 2
        return f"M{left + width:.1f} {middle} L{to_left:.1f} {middle}"
    x = left + width / 2
    return f"M{x:.1f} {top} L{x:.1f} {to_top + HEIGHT}"


# The readers of a schedule: their names, places and results.
READERS = (
    ("proof", "plans/proof.py", "every rank ends with its contract"),
    ("drawings", "picture/", "text and SVG, of the proof"),
    ("explorer", "explorer/cases.py", "the data that the page plays"),
    ("clock", "simulation/clock.py", "the time on a network, with arrays"),
    ("synthesis", "synthesis/search.py", "proves and times what it has found"),
    ("program", "plans/program.py", "what the core runs, of one rank's rounds"),
)


def schedule_picture() -> str:
    """Return the picture of a schedule and its readers as SVG."""
    height = 54 * len(READERS)
    middle = height / 2
    names = ", ".join(name for name, *_ in READERS)
    lines = [
        f'<svg class="layers" viewBox="0 0 {WIDTH} {height + 8}" '
        'xmlns="http://www.w3.org/2000/svg" role="img" aria-labelledby="readers-title">',
        f'  <title id="readers-title">Text, Schedule, and its readers: {names}</title>',
    ]

    def box(left: float, top: float, width: float, name: str, *texts: str) -> None:
        lines.append(
            f'  <rect class="box" x="{left}" y="{top}" width="{width}" '
            f'height="{24 + 18 * len(texts)}" rx="6"/>'
        )
        for k, (kind, text) in enumerate((("name", name), *(("what", each) for each in texts))):
            lines.append(
                f'  <text class="{kind}" x="{left + width / 2}" y="{top + 17 + 17 * k}">'
                f"{escape(text)}</text>"
            )

    box(6, middle - 30, 200, "text", "algorithms/: a generator", "yields the rounds of one rank")
    columns = "source, sent in, target, taken in,", "blocks, fold"
    box(276, middle - 39, 230, "Schedule", "algorithms/schedule.py", *columns)
    lines.append(f'  <path class="way" marker-end="url(#tip)" d="M206 {middle} L272 {middle}"/>')
    for k, (name, place, result) in enumerate(READERS):
        top = 4 + 54 * k
        box(600, top, 254, f"{name}: {place}", result)
        lines.append(
            f'  <path class="way" marker-end="url(#tip)" d="M506 {middle} L596 {top + 21}"/>'
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def setup(app: Any) -> dict[str, Any]:
    """Give the manual directives ``layers`` and ``schedule`` that show the pictures."""
    from docutils import nodes
    from docutils.parsers.rst import Directive

    class Picture(Directive):
        def run(self) -> list[nodes.Node]:
            drawn = picture() if self.name == "layers" else schedule_picture()
            return [nodes.raw("", drawn, format="html")]

    app.add_directive("layers", Picture)
    app.add_directive("schedule", Picture)
    return {"parallel_read_safe": True}
