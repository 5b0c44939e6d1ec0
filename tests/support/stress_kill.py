"""Kill a rank at a random moment, again and again; print the times until all others knew.

::

    python tests/support/stress_kill.py [--times 100] [--ranks 4] [--seed 0]

It runs under the launcher of the interpreter's environment. A rank that does not hear of the death,
another error than PeerLostError, a process that is left and a file in ``/dev/shm`` end it.
"""

import argparse
import os
import random
import signal
import statistics
import tempfile
import threading
import time
from pathlib import Path

from ranks import Ranks

WORK = """
def calls():
    planned = comm.plan("allreduce", np.full(5000, rank), op=cc.MAX)
    arrays = [comm.empty(70000, np.float32) for _ in range(2)]
    arrays[0][:] = 1
    note(error="nothing yet", works=True)
    while True:
        work(0)
        assert planned()[0] == size - 1
        assert comm.allreduce(*arrays)[0] == size
        requests = [comm.ireduce(np.ones(n), root=n % size) for n in (1, 100, 10000)]
        comm.alltoall(np.ones(size * 3000))
        for request in requests:
            request.wait()
note_end(calls)
leave()
"""


def seconds_until_known(rng: random.Random, ranks: int) -> float:
    """Start a program, kill one of its ranks from outside; return how long the others took."""
    with tempfile.TemporaryDirectory() as folder:
        job = Ranks(Path(folder))
        thread = threading.Thread(target=lambda: job(WORK, ranks, survive=True))
        thread.start()
        victim = rng.randrange(ranks)
        limit = time.monotonic() + 60
        while sum("works" in each for each in job.notes().values()) < ranks:
            assert time.monotonic() < limit, job.notes()
            time.sleep(0.01)
        time.sleep(rng.random() / 2)
        pid = job.notes()[victim]["pid"]
        killed = time.time()
        os.kill(pid, signal.SIGKILL)
        # Nobody waits for the victim's own word.
        (Path(folder) / str(victim)).write_text(f'{{"pid": {pid}, "at": 0, "error": "killed"}}')
        thread.join()
        notes = job.notes()
        others = [each for rank, each in notes.items() if rank != victim]
        for each in others:
            assert each["error"] == "PeerLostError", notes
            assert f"rank {victim} (process {pid}) has died" in each["text"], notes
        assert not job.alive(), notes
        assert not job.left_behind(), job.left_behind()
        return max(each["at"] for each in others) - killed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    seconds = []
    for turn in range(options.times):
        seconds.append(seconds_until_known(rng, options.ranks))
        print(f"{turn + 1}: {seconds[-1]:.3f} s", flush=True)
    print(
        f"{options.times} times one of {options.ranks} ranks was killed; all others knew after "
        f"{max(seconds):.3f} s at most, {statistics.median(seconds):.3f} s in the middle"
    )


if __name__ == "__main__":
    main()
