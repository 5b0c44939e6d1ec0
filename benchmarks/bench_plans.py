"""The cost of the first call of a class: proving an algorithm, compiling and packing its plan."""

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
    benchmark.pedantic(lambda: [program.pack(plan, whole=w) for w in (True, False)], rounds=5)
