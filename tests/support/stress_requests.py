"""Look at receives from one rank while others, of another rank, take the place of complete ones.

    mpiexec -n 3 python tests/support/stress_requests.py --seconds 60

A thread of rank 0 asks for the rank that a request waits for. The answer must be its peer, or none.
"""

import argparse
import sys
import threading
import time

import numpy as np

import collectives as cc
from collectives import _core

ASKS, ANSWERS = 1, 2  # tags
NAP = 2e-5  # seconds: the threads take turns, also at the lock


def serve(comm):
    """Answer rank 0 until it sends a negative number."""
    x = np.zeros(1)
    while comm.recv(x, 0, tag=ASKS)[0] >= 0:
        comm.send(x, 0, tag=ANSWERS)


def ask(comm, seconds):
    """Receive from the other ranks in turn; return the numbers of receives, of looks, and the
    wrong answers.
    """
    current, wrong, looks = [], [], 0
    limit = time.monotonic() + seconds

    def look():
        nonlocal looks
        while time.monotonic() < limit:
            time.sleep(NAP)
            for request, peer in current:
                looks += 1
                if (found := request._awaited()) not in ([], [peer]):
                    wrong.append((peer, found))

    def advance():
        while time.monotonic() < limit:
            _core.advance_all()
            time.sleep(NAP / 2)

    sys.setswitchinterval(2e-6)
    threads = [threading.Thread(target=each) for each in (look, advance)]
    for thread in threads:
        thread.start()
    receives = 0
    while time.monotonic() < limit:
        peer = 1 + receives % (comm.size - 1)
        request = comm.irecv(np.empty(1), peer, tag=ANSWERS)
        current[:] = [(request, peer)]
        comm.send(np.zeros(1), peer, tag=ASKS)
        request.wait()
        receives += 1
    for thread in threads:
        thread.join()
    for peer in range(1, comm.size):
        comm.send(np.full(1, -1.0), peer, tag=ASKS)
    return receives, looks, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    options = parser.parse_args()
    comm = cc.Communicator(timeout=options.seconds + 60)
    if comm.rank:
        serve(comm)
        return
    receives, looks, wrong = ask(comm, options.seconds)
    print(f"{receives} receives, {looks} looks, {len(wrong)} wrong: {wrong[:5]}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
