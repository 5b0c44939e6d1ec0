"""Programs with submissions in the background that end: well, early, by a signal, in a child."""

import os

import pytest
from programs import program
from ranks import BOUND, Ranks

pytestmark = pytest.mark.each_mpi


@pytest.fixture
def ranks(tmp_path):
    return Ranks(tmp_path)


STORM = """
from collectives import background
rng = np.random.default_rng(rank)
other = comm.dup()
for group in (comm, other):
    background.start(group)

def storm(thread):
    # The same submissions on all ranks, in an order of each rank's own.
    for lap in range({laps}):
        names = [f"{{thread}} {{lap}} {{k}}" for k in range(25)]
        handles = []
        for k in rng.permutation(25):
            size_of = (1, 10, 1000, 70000)[k % 4]
            group = (comm, other)[k % 2]
            x = np.full(size_of, rank + 1.0, (np.float32, np.float64)[int(k % 3 == 0)])
            options = dict(op="max") if k % 5 == 0 else {{}}
            handles.append((k, background.submit(
                "allreduce", x, x, name=names[k], priority=int(k % 3), group=group, **options
            )))
        for k, handle in handles:
            wanted = size if k % 5 == 0 else size * (size + 1) / 2
            assert (handle.wait() == wanted).all(), (names[k], wanted)

ended, heard = [], []
def listen(thread):
    try:
        storm(thread)
        ended.append(thread)
    except cc.CollectivesError as error:
        heard.append(error)

threads = [threading.Thread(target=listen, args=(k,)) for k in range(4)]
for thread in threads:
    thread.start()
"""


def test_mixed_submissions_of_four_threads(ranks):
    """In different orders on each rank; 10 000 with COLLECTIVES_TEST_FULL."""
    laps = 100 if os.environ.get("COLLECTIVES_TEST_FULL") else 4
    notes = ranks(
        STORM.format(laps=laps)
        + """
for thread in threads:
    thread.join()
note(error=None, ended=len(ended))
"""
    )
    assert [each.get("ended") for each in notes.values()] == [4] * 3, (notes, ranks.result)


def test_a_rank_is_killed(ranks):
    """All threads of all others hear of it."""
    notes = ranks(
        STORM.format(laps=10**6)
        + """
if rank == 1:
    time.sleep(0.5)
    die()
for thread in threads:
    thread.join()
first = next((e for e in heard if type(e) is cc.errors.PeerLostError), heard[0])
note(error=type(first).__name__, text=str(first), heard=len(heard))
leave()
""",
        survive=True,
    )
    for rank, each in notes.items():
        if rank != 1:
            assert each["error"] == "PeerLostError", (notes, ranks.result)
            assert each["heard"] == 4
            assert "rank 1" in each["text"]
            assert each["at"] - notes[1]["at"] < BOUND


def test_a_rank_is_stopped_for_a_while(ranks):
    """The others wait for it."""
    notes = ranks(
        STORM.format(laps=4)
        + """
if rank == 1 and not os.fork():
    time.sleep(0.2)
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(1.5)
    os.kill(os.getppid(), signal.SIGCONT)
    os._exit(0)
for thread in threads:
    thread.join()
note(error=None, ended=len(ended))
"""
    )
    assert [each.get("ended") for each in notes.values()] == [4] * 3, (notes, ranks.result)


BEGIN = """
    import time
    import numpy as np
    import collectives as cc
    from collectives import background
    comm = cc.world()
    background.start()
"""


def test_a_program_that_does_not_wait():
    """What was submitted is completed while the program ends."""
    result = program(
        BEGIN
        + """
    def tell(handle):
        assert (handle.wait() == 2).all()
        print("right\\n", end="", flush=True)
    for k in range(50):
        handle = background.submit("allreduce", np.ones(1000))
    handle.add_done_callback(tell)
    """
    )
    assert result.status == 0, result
    assert result.out.count("right") == 2


def test_a_submission_that_is_never_complete():
    """Nobody waits for it: the error is said at the end."""
    result = program(
        BEGIN
        + """
    if comm.rank == 0:
        handle = background.submit("allreduce", np.ones(1), name="lonely")
    """
    )
    assert result.status != 0
    text = result.out + result.err
    assert "collectives: rank 0 " in text
    assert "'lonely'" in text
    assert "rank 1" in text


def test_a_forked_child():
    """It cannot submit, and does not disturb the parent."""
    result = program(
        BEGIN
        + """
    import os
    background.submit("allreduce", np.ones(1)).wait()
    child = os.fork()
    if child == 0:
        try:
            background.submit("allreduce", np.ones(1))
        except cc.CollectivesError as error:
            os._exit(7 if "forked" in str(error) else 8)
        os._exit(9)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert background.submit("allreduce", np.ones(1)).wait()[0] == 2
    print("right\\n", end="", flush=True)
    """
    )
    assert result.status == 0, result
    assert result.out.count("right") == 2


@pytest.mark.parametrize("first", ["mpi", "library"])
def test_the_program_finalises_mpi(first):
    """After all was waited for; nothing can be submitted after that."""
    result = program(
        BEGIN
        + f"""
    assert background.submit("allreduce", np.ones(1)).wait()[0] == 2
    print("right\\n", end="", flush=True)
    if "{first}" == "library":
        background.stop()
    from mpi4py import MPI
    MPI.Finalize()
    try:
        background.submit("allreduce", np.ones(1))
    except cc.CollectivesError as error:
        assert "finalised" in str(error)
        print("refused\\n", end="", flush=True)
    """
    )
    assert result.status == 0, result
    assert result.out.count("right") == 2
    assert result.out.count("refused") == 2
