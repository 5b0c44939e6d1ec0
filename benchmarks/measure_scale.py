"""Take the time and memory of simulations at thousands of ranks, each in a process of its own.

Run it as ``python benchmarks/measure_scale.py``; it needs no MPI. With ``--json FILE`` it also
writes what it measured. The time of a run is that of `simulate` alone, from the name of the
algorithm to the result, and without the import.
"""

import platform
import subprocess
import sys

from turns import options

from collectives.choice import profile
from collectives.text import files

CASES = (
    ("allreduce", "ring", "Flat(1024)"),
    ("allreduce", "ring", "Flat(2048)"),
    ("allreduce", "ring", "Flat(4096)"),
    ("allreduce", "ring", "Hosts(512, 8)"),
    ("allreduce", "butterfly", "Flat(65536)"),
    ("allreduce", "butterfly", "Flat(65535)"),
    ("allreduce", "butterfly", "Hosts(8192, 8)"),
    ("broadcast", "tree", "Flat(65536)"),
    ("reduce", "tree", "Flat(65536)"),
    ("allreduce", "tree", "Hosts(8192, 8)"),
    ("allreduce", "halving_doubling", "Flat(4096)"),
    ("allreduce", "butterfly", "FatTree(512, 8, 16, 4.0)"),
    ("alltoall", "pairwise", "Torus((8, 8, 8))"),
)
RUN = """
import resource, sys, time
from collectives.simulate import simulate
from collectives.topology import FatTree, Flat, Hosts, Torus
collective, algorithm, machine = sys.argv[1:]
began = time.perf_counter()
found = simulate(collective, algorithm, 1 << 20, eval(machine), record=False)
took = time.perf_counter() - began
memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(took, memory, found.messages, found.time)
"""


def main():
    arguments = options(__doc__, turns=3, json=None)
    print(
        f"{'algorithm':28} {'machine':26} {'messages':>11} {'s':>7} {'GB':>6} {'predicted us':>13}"
    )
    rows = []
    for case in CASES:
        runs = []
        for _ in range(arguments.turns):
            done = subprocess.run(
                [sys.executable, "-c", RUN, *case], check=True, capture_output=True, text=True
            )
            runs.append([float(word) for word in done.stdout.split()])
        took, memory, messages, predicted = sorted(runs)[len(runs) // 2]
        name = f"{case[0]} {case[1]}"
        print(
            f"{name:28} {case[2]:26} {messages:11.0f} {took:7.2f} {memory / 1e9:6.2f} "
            f"{1e6 * predicted:13.1f}",
            flush=True,
        )
        rows.append([*case, int(messages), took, memory, predicted])
    if arguments.json:
        names = ("collective", "algorithm", "machine", "messages", "seconds", "bytes", "predicted")
        found = [dict(zip(names, row, strict=True)) for row in rows]
        facts = {
            "command": f"python benchmarks/measure_scale.py --json {arguments.json}",
            "python": platform.python_version(),
            "machine": "{}, {} cores".format(*profile.machine()),
        }
        files.write_json(arguments.json, {**facts, "rows": found})


if __name__ == "__main__":
    main()
