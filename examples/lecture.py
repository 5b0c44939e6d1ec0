"""The lecture's example: four workers with four numbers each, and the traffic of the algorithms.

Each worker starts with a vector, and all workers must end with the sum. Every algorithm gives the
same result. The algorithms differ in the messages that they send and in the number of rounds. The
traffic that is printed is not measured; it comes from the proof, which replays the plans of all
four workers.

Run it on exactly four ranks::

    collectives run -n 4 examples/lecture.py
"""

import sys

import numpy as np

import collectives as cc
from collectives import check

WORKERS = np.array([[17, 11, 1, 9], [5, 13, 23, 14], [3, 6, 10, 8], [12, 7, 2, 12]])
TOTAL = WORKERS.sum(axis=0)  # [37 37 36 43]


def main():
    if cc.size() != len(WORKERS):
        sys.exit(
            f"the lecture has {len(WORKERS)} workers and this run has {cc.size()}: "
            f"start it with `collectives run -n {len(WORKERS)} examples/lecture.py`"
        )
    mine = WORKERS[cc.rank()]
    if cc.rank() == 0:
        print("Sent: numbers that cross the network, of all workers and at most of one.\n")
        for worker, numbers in enumerate(WORKERS):
            print(f"worker {worker} starts with {numbers}")
        print()
        print(
            f"{'algorithm':<18}{'result':<16}{'rounds':>8}{'messages':>10}{'sent':>6}{'by one':>8}"
        )
    for name in cc.algorithms.names("allreduce", textbook=True):
        result = cc.allreduce(mine, algorithm=name)
        # Rank 0 prints only its own result, so every rank checks its result.
        if not np.array_equal(result, TOTAL):
            raise SystemExit(f"{name}: worker {cc.rank()} ends with {result}")
        if cc.rank() == 0:
            proof = check.check("allreduce", name, p=cc.size())
            sent, most = proof.traffic * len(mine), max(proof.sent) * len(mine)
            print(
                f"{name:<18}{result!s:<16}{proof.depth:>8}{sum(proof.messages):>10}"
                f"{float(sent):>6g}{float(most):>8g}"
            )


if __name__ == "__main__":
    main()
