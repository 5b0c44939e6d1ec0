"""Draw the loss of ``examples/torch_diloco.py`` over the bytes that a rank sends, and that of DDP.

    python benchmarks/diloco_curves.py docs/howto/diloco.svg

Each way trains on two hosts with one rank each. The hosts are network namespaces, which need root,
and ``--mbit`` is the speed of the link between them. The program prints loss, bytes and seconds.
"""

import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
import curves
from namespaces import two_hosts
from turns import options

ROOT = Path(__file__).resolve().parents[1]
WAYS = {
    "each step": ("--ddp",),
    "each step, int8": ("--ddp", "--compression", "int8"),
    "DiLoCo, 20 steps": (),
    "DiLoCo, 20 steps, 4 parts, 2 steps of overlap": ("--parts", "4", "--overlap", "2"),
    "the same, int4": ("--parts", "4", "--overlap", "2", "--compression", "int4"),
}
LINE = re.compile(r"step (\d+): loss ([\d.]+), ([\d.]+) MB, ([\d.]+) s")


def main():
    arguments = options(__doc__, path=Path, steps=400, width=256, mbit=100)
    program = str(ROOT / "examples" / "torch_diloco.py")
    sizes = ["--width", str(arguments.width), "--steps", str(arguments.steps), "--report", "20"]
    lines = {}
    print(f"{'way':46} {'loss':>6} {'MB':>7} {'s':>6}")
    for way, words in WAYS.items():
        with tempfile.TemporaryDirectory() as folder, two_hosts(Path(folder)) as hosts:
            hosts.rate(arguments.mbit)
            done = hosts.run(1, program, *sizes, *words, deadline=100)
        if done.status:
            sys.exit(f"{way}: status {done.status}\n{done.err}")
        rows = [list(map(float, each)) for each in LINE.findall(done.out)]
        lines[way] = [each[2] for each in rows], [each[1] for each in rows]
        print(f"{way:46} {rows[-1][1]:6.3f} {rows[-1][2]:7.2f} {rows[-1][3]:6.1f}", flush=True)
    axes = {"xlabel": "MB that a rank sends", "ylabel": "loss", "xscale": "log", "yscale": "log"}
    curves.draw(lines, arguments.path, "each step", title="Two hosts, one rank each", **axes)


if __name__ == "__main__":
    main()
