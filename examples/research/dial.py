"""Print rounds and bytes of `generalised` allreduces, and the sizes at which one is the fastest.

    python examples/research/dial.py

Rounds and bytes are those of the proof, on 3 to 16 ranks. Times are those of the cost formulas, for
a network of 1 us, 12.5 GB/s, and folds at 20 GB/s.
"""

from collectives import algorithms
from collectives.check import check

names = [name for name in algorithms.names("allreduce") if name != "generalised"]
names += [f"multiplying:{k}" for k in range(2, 9)]


def counts(name, p):
    proof = check("allreduce", name, p=p, record=False)
    return f"{proof.depth:2} {float(max(proof.sent)):5.3f}"


print("rounds, and arrays that a rank sends")
print(" p  circulant  butterfly  halving_d.  generalised")
for p in range(3, 17):
    others = [counts(name, p) for name in ("circulant", "butterfly", "halving_doubling")]
    dial = {counts(f"generalised:{t}", p) for t in range(2, 9)}
    print(f"{p:2}", *(f"{each:>10}" for each in others), " ", "  ".join(sorted(dial)))


def times(names, p):
    """Return a function of the KiB: the least time by the cost formulas, and its rounds."""
    rows = [algorithms.get("allreduce", name) for name in names]
    found = [(row.factors(p), int(row.totals(p)[0])) for row in rows if not row.refusal(p)]
    return lambda kib: min(
        (1e-6 * a + kib * 1024 * (8e-11 * b + 5e-11 * g), rounds) for (a, b, g), rounds in found
    )


print("more than 5 % faster than all others, by the cost formulas")
for p in (4, 6, 8, 10, 12, 14, 16, 24, 32, 48, 64, 128):
    ours, others = times([f"generalised:{t}" for t in range(2, 15)], p), times(names, p)
    gains = {kib: others(kib)[0] / ours(kib)[0] - 1 for kib in range(1, 257)}
    wins = [kib for kib, gain in gains.items() if gain > 0.05]
    most = max(gains, key=gains.get)
    print(
        f"{p:3} ranks: {wins[0]} to {wins[-1]} KiB; most, {gains[most]:.0%}, at {most} KiB with "
        f"{ours(most)[1]} rounds"
    )
