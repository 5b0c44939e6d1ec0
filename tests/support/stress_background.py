"""Submit at random from four threads of each rank, and kill or stop a rank; check the outcomes.

::

    python tests/support/stress_background.py [--operations 10000] [--ranks 3] [--seed 0]
        [--end calm]

It runs under the launcher of the interpreter's environment. ``--end`` is what happens to a rank at
a random moment: ``calm``, nothing; ``killed``; ``stopped``, for less than the deadline; ``late``,
for longer than that. A wrong result, an error that is not expected and a rank that hangs end it.
"""

import argparse
import random
import tempfile
import time
from pathlib import Path

from ranks import BOUND, Ranks

SUPPORT = Path(__file__).resolve().parent
ENDS = ("calm", "killed", "stopped", "late")
SHORT, LONG = 1.0, 3.5  # seconds for which a rank is stopped
DEADLINE = 2  # seconds that others wait for a rank that is stopped for long

WORK = """
import faulthandler
sys.path.insert(0, {support!r})
from storm import Storm
faulthandler.dump_traceback_later({limit} - 5)
signal.alarm({limit})

def pause(count):
    if rank != {victim} or count != {moment} or "{end}" == "calm":
        return
    if "{end}" == "killed":
        die()
    if not os.fork():
        time.sleep({SHORT} if "{end}" == "stopped" else {LONG})
        os.kill(os.getppid(), signal.SIGCONT)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGSTOP)

storm = Storm(comm, {seed}, {operations}, pause)
storm.start()
storm.join()
members = {{k: each.size for k, each in enumerate(storm.groups) if each is not None}}
note(
    error=None, right=storm.right, said=storm.said, heard=storm.heard, problems=storm.problems,
    members=members, colour=rank % 2,
)
faulthandler.cancel_dump_traceback_later()
if "{end}" in ("killed", "late"):
    leave()
"""


def storm(job, ranks, operations, seed, end="calm", limit=60):
    """Run a storm, and return its outcome: for each rank, the number of right results.

    Parameters
    ----------
    job : Ranks
    ranks, operations, seed : int
    end : str
        One of ENDS.
    limit : int
        Seconds after which a rank is said to hang.
    """
    rng = random.Random(f"{seed} {end}")
    victim = rng.randrange(ranks)
    text = WORK.format(
        support=str(SUPPORT), limit=limit, victim=victim, moment=rng.randrange(operations // 4),
        end=end, seed=seed, operations=operations, SHORT=SHORT, LONG=LONG,
    )  # fmt: skip
    env = {"COLLECTIVES_TIMEOUT": str(DEADLINE)} if end == "late" else {}
    ends = end in ("killed", "late")
    notes = job(text, ranks, env=env, survive=ends, deadline=limit + 10)
    for rank, each in notes.items():
        if rank == victim and end == "killed":
            assert each["error"] == "killed"
            continue
        assert each["error"] is None, (notes, job.result)
        assert not each["problems"], (rank, each["problems"], job.result)
        _check_errors(rank, each, victim, ranks, end)
        if end == "killed":
            late = max(when for _, _, when in each["heard"].values()) - notes[victim]["at"]
            assert late < BOUND, (rank, late, each["heard"])
    _check_agreement(notes)
    return {rank: each.get("right") for rank, each in notes.items()}


def _check_errors(rank, note, victim, ranks, end):
    """See that those groups ended that have lost a rank, and no others."""
    lost = {
        "0": True,
        "1": True,
        "2": rank % 2 == victim % 2,
        "3": victim > 0,
        "4": victim < ranks - 1,
    }
    for group, size in note["members"].items():
        error = note["heard"].get(group)
        if end in ("calm", "stopped") or size == 1:
            assert error is None, (rank, group, error)
        elif end == "killed":
            assert (error is not None) == lost[group], (rank, group, error)
            assert error is None or error[0] in ("PeerLostError", "CommunicatorError"), error


def _check_agreement(notes):
    """See that ranks of one group have the same bits, and the same texts of errors."""
    said = {}
    for rank, each in notes.items():
        for number, what in each.get("said", {}).items():
            said.setdefault(number, {})[rank] = what
    for number, by_rank in said.items():
        halves = [{w for r, w in by_rank.items() if r % 2 == half} for half in (0, 1)]
        assert all(len(half) <= 1 for half in halves), (number, by_rank)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--end", choices=ENDS, default="calm")
    parser.add_argument("--limit", type=int, default=300, help="seconds for a job")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        right = storm(
            Ranks(Path(folder)), options.ranks, options.operations, options.seed, options.end,
            options.limit,
        )  # fmt: skip
    print(
        f"{options.operations} operations, {options.end}: right on each rank {right}; "
        f"{time.monotonic() - began:.1f} s"
    )


if __name__ == "__main__":
    main()
