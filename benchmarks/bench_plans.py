"""The cost of the first call of a class: proving an algorithm, compiling and packing its plan.

Run as a program, this prints the milliseconds of CPU time in which one rank plans each algorithm:
``python benchmarks/bench_plans.py P HOST [COLLECTIVE/NAME ...]`` for P ranks, HOST on each host.
"""

import sys
import time
from itertools import pairwise

import pytest

from collectives import algorithms, check
from collectives.plans import program, schedule

# Rounds that grow with p, with log2 p, and one of p messages; more blocks than ranks.
ALGORITHMS = [
    ("allreduce", "ring"),
    ("allreduce", "butterfly"),
    ("allreduce", "all_to_all"),
    ("broadcast", "tree"),
    ("alltoall", "pairwise"),
]


@pytest.fixture(params=ALGORITHMS, ids="-".join)
def algorithm(request):
    return algorithms.get(*request.param)


@pytest.mark.parametrize("p", [8, 64])
def bench_plans_check(benchmark, algorithm, p):
    benchmark.group = f"check on {p} ranks"
    rounds = 5 if p == 8 else 1
    proof = benchmark.pedantic(check.check, (algorithm,), {"p": p}, rounds=rounds)
    assert proof.depth > 0


@pytest.mark.parametrize("p", [8, 64, 512])
def bench_plans_compile(benchmark, algorithm, p):
    benchmark.group = f"compile for a rank of {p}"
    plan = benchmark.pedantic(schedule.compile, (algorithm, p, 1), rounds=5)
    assert plan.rounds


@pytest.mark.parametrize("p", [8, 64, 512])
def bench_plans_pack(benchmark, algorithm, p):
    benchmark.group = f"pack for a rank of {p}"
    plan = schedule.compile(algorithm, p, 1)
    benchmark.pedantic(program.pack_both, (plan,), rounds=5)


def planned(row, p, host):
    """Return the milliseconds to compile, to count publications of all hosts, and to pack."""
    for function in vars(program).values():
        if hasattr(function, "cache_clear"):
            function.cache_clear()
    hosts = [range(first, min(first + host, p)) for first in range(0, p, host)]
    times = [time.process_time()]
    plan = schedule.compile(row, p, 5)
    times.append(time.process_time())
    for local in hosts:
        program.most_published(row, p, 0, frozenset(local))
    times.append(time.process_time())
    program.pack_both(plan, local=hosts[0], lend=True)
    times.append(time.process_time())
    return [1e3 * (b - a) for a, b in pairwise(times)]


def main(p, host, *asked):
    print(f"{p} ranks, {host} on a host        total  compile  count   pack")
    for collective in algorithms.COLLECTIVES:
        for name in algorithms.names(collective):
            row = algorithms.get(collective, name)
            title = f"{collective}/{name}"
            if row.refusal(p) or (asked and title not in asked):
                continue
            compiled, counted, packed = planned(row, p, host)
            total = compiled + counted + packed
            print(f"{title:33}{total:6.0f}{compiled:9.0f}{counted:7.0f}{packed:7.0f}", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:])
