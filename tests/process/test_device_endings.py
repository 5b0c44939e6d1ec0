"""Ranks that die while others read their device memory, on a GPU that is not there."""

import shutil
from pathlib import Path
from textwrap import dedent

import pytest
from ranks import BOUND, Ranks

TESTS = Path(__file__).resolve().parents[1]
COMPILERS = [each for each in ("g++", "clang++", "c++") if shutil.which(each)]

BEGIN = f"""
sys.path += {[str(TESTS / "support"), str(TESTS / "devices")]!r}
import fake_kernels
from fake_arrays import Array
from fake_gpu import FakeDriver
from collectives.devices import runtime
driver = FakeDriver(mode="random", seed=1, **fake_kernels.OPTIONS)
runtime.use(driver)
x = Array.of(driver, np.ones(1000, np.float32), device=rank % 2)

def work():
    while True:
        comm.allreduce(x, x)
"""


@pytest.mark.skipif(not COMPILERS, reason="there is no C++ compiler for the kernels")
@pytest.mark.each_mpi("mpich")
@pytest.mark.parametrize("when", ["in calls", "before the first call"])
def test_a_rank_is_killed(tmp_path, when):
    text = """
    if rank == 1:
        threading.Timer(0.5, die).start()
        if BEFORE:
            time.sleep(30)
    note_end(work)
    leave()
    """
    text = BEGIN + dedent(text).replace("BEFORE", str(when != "in calls"))
    notes = Ranks(tmp_path)(text, survive=True)
    others = [notes[0], notes[2]]
    for each in others:
        assert each["error"] in ("PeerLostError", "PeerAbortedError"), notes
        assert f"rank 1 (process {notes[1]['pid']}) has died" in each["text"]
    assert max(each["at"] for each in others) - notes[1]["at"] < BOUND
