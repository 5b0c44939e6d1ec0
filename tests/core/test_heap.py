"""The heap of shared arrays: the memory that NumPy gets, forks, and programs without a heap."""

import gc
import multiprocessing
import os
import pickle
import subprocess
import threading
from itertools import pairwise

import numpy as np
import pytest
from programs import alone

import collectives as cc
from collectives import _core

LEAST = 16 << 10
SIZES = [LEAST, LEAST + 1, 20_000, 40_000, 65_536, 100_001, 1 << 20, 5_000_001, 48 << 20]


def state():
    return dict(zip(("reserved", "used", "kept", "limit"), _core.heap_state(), strict=True))


@pytest.fixture(autouse=True)
def shared():
    with cc.shared_arrays():
        yield


def test_which_arrays_are_in_it():
    long, short = np.ones(LEAST, np.uint8), np.ones(LEAST - 1, np.uint8)
    assert _core.in_heap(long)
    assert not _core.in_heap(short)
    assert long.ctypes.data % 4096 == 0
    assert _core.in_heap(np.arange(4.0e4) + 1)
    assert _core.in_heap(long[100:])
    assert not _core.in_heap(np.frombuffer(bytearray(LEAST), np.uint8))


def test_only_in_the_context():
    done = []

    def make():
        done.append(np.ones(LEAST))

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    assert not _core.in_heap(done[0])
    with cc.shared_arrays():  # nested
        pass
    assert _core.in_heap(np.ones(LEAST))


def test_arrays_outlive_the_context():
    with cc.shared_arrays():
        x = np.arange(100_000)
    assert (x == np.arange(100_000)).all()
    x.resize(400_000, refcheck=False)
    assert (x[:100_000] == np.arange(100_000)).all()


@pytest.mark.parametrize("nbytes", SIZES)
def test_zeros_are_zero_where_other_arrays_were(nbytes):
    for turn in range(3):
        x = np.empty(nbytes, np.uint8)
        if turn < 2:
            x[:] = 7
        else:  # part of the block has no memory yet, or has been given back
            x[nbytes // 2 :: 5] = 7
        at = x.ctypes.data
        del x
        z = np.zeros(nbytes, np.uint8)
        assert z.ctypes.data == at
        assert not z.any()
        del z


@pytest.mark.parametrize("nbytes", SIZES)
def test_blocks_do_not_overlap(nbytes):
    arrays = [np.full(nbytes, i, np.uint8) for i in range(4)]
    del arrays[1]
    arrays += [np.full(nbytes, i, np.uint8) for i in (4, 5)]
    for x in arrays:
        assert (x == x[0]).all()
    ends = sorted((x.ctypes.data, x.ctypes.data + nbytes) for x in arrays)
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))


def test_used_bytes_are_counted_and_waste_is_bounded():
    gc.collect()
    before = state()["used"]
    for nbytes in SIZES:
        x = np.empty(nbytes, np.uint8)
        assert nbytes <= state()["used"] - before <= max(1.25 * nbytes, nbytes + 4096)
        del x
        assert state()["used"] == before


def test_pages_are_given_back_above_a_bound():
    arrays = [np.ones(64 << 20, np.uint8) for _ in range(6)]
    del arrays
    assert state()["kept"] <= 256 << 20
    x = [np.zeros(64 << 20, np.uint8) for _ in range(6)]
    assert not any(each.any() for each in x)


@pytest.mark.parametrize(("old", "new"), [(LEAST, 3), (3, 9000), (50_000, 51_000), (9000, 10**6)])
def test_resize(old, new):
    x = np.arange(old, dtype=np.int64)
    x.resize(new, refcheck=False)
    kept = min(old, new)
    assert (x[:kept] == np.arange(kept)).all()
    assert not x[kept:].any()


def test_resize_within_a_block_stays_in_place():
    x = np.ones(65_000, np.uint8)
    at = x.ctypes.data
    x.resize(65_536, refcheck=False)
    assert x.ctypes.data == at


def test_pickles_and_files(tmp_path):
    x = np.random.default_rng(1).random(50_000)
    y = pickle.loads(pickle.dumps(x, protocol=5))
    assert (x == y).all()
    m = np.memmap(tmp_path / "m", np.float64, "w+", shape=x.shape)
    m[:] = x
    assert not _core.in_heap(m)
    assert (m == y).all()


def test_threads_make_and_free_arrays():
    """Each array is freed by another thread than the one that made it."""
    wrong, pile, lock = [], [], threading.Lock()

    def work(seed):
        rng = np.random.default_rng(seed)
        with cc.shared_arrays():
            for turn in range(12_500):
                n = int(rng.integers(LEAST, 3 * LEAST))
                x = np.zeros(n, np.uint8) if turn % 2 else np.empty(n, np.uint8)
                if turn % 2 and x[:: n // 8].any():
                    wrong.append(turn)
                x[[0, n // 2, -1]] = seed
                with lock:
                    pile.append((x, seed))
                    other, mark = pile.pop(int(rng.integers(len(pile))))
                if not (other[[0, other.size // 2, -1]] == mark).all():
                    wrong.append(turn)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 9)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong


def in_child(check):
    """Fork; return what `check` returns in the child."""
    reader, writer = os.pipe()
    go, going = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"raised"
        try:
            os.close(going)
            os.read(go, 1)  # the parent has written
            answer = b"yes" if check() else b"no"
        finally:
            os.write(writer, answer)
            os._exit(0)
    os.close(writer)
    os.close(go)

    def result():
        os.close(going)
        with os.fdopen(reader, "rb") as file:
            answer = file.read()
        os.waitpid(child, 0)
        return answer

    return result


@pytest.mark.parametrize("lent", [False, True])
@pytest.mark.parametrize("n", [LEAST, 1_000_003])
def test_a_fork_has_its_own(lent, n):
    x, zeros = np.arange(n), np.zeros(n)
    zeros[n // 2] = 1
    for each in (x, zeros):
        assert not lent or _core.in_heap(each[n // 3 :], lend=True)
    seen = {}

    def check():
        same = (x == np.arange(n)).all() and zeros.sum() == 1
        x[:] = -1
        zeros[:] = -1
        made = np.ones(n)  # in a heap of its own
        return same and _core.in_heap(made) and made.sum() == n

    result = in_child(check)
    x[:] = 5
    zeros[:] = 5
    seen["parent"] = (x == 5).all()
    assert result() == b"yes"
    assert seen["parent"]
    assert (x == 5).all()
    assert (zeros == 5).all()
    assert _core.in_heap(x, lend=True) == lent


@pytest.mark.parametrize("lent", [False, True])
def test_what_a_parent_frees_and_fills_again_is_not_seen_by_its_child(lent):
    n = 3_000_000
    x, holes = np.full(n, 3, np.uint8), np.zeros(n, np.uint8)
    if lent:
        _core.in_heap(x, lend=True)
        _core.in_heap(holes, lend=True)
    box = [x, holes]

    def check():
        return (box[0] == 3).all() and not box[1].any()

    result = in_child(check)
    box.clear()
    del x, holes
    junk = [np.full(n, 9, np.uint8) for _ in range(8)]
    assert result() == b"yes"
    del junk


def test_forks_of_forks():
    x = np.arange(200_000)

    def check():
        y = np.arange(100_000)
        inner = in_child(lambda: all((z == np.arange(z.size)).all() for z in (x, y)))
        x[:] = 0
        y[:] = 0
        return inner() == b"yes"

    for _ in range(3):
        result = in_child(check)
        x[0] = 0
        assert result() == b"yes"


def test_programs_that_are_started_leave_it_alone():
    x, y = np.ones(200_000), np.ones(200_000)
    assert _core.in_heap(x, lend=True)
    subprocess.run(["true"], check=True)
    os.system("true")
    assert _core.in_heap(y, lend=True)
    subprocess.run(["true"], check=True, preexec_fn=lambda: None)  # this one forks
    z = np.ones(200_000)
    assert _core.in_heap(x, lend=True)
    assert _core.in_heap(z, lend=True)


def _sum(n):
    return float(np.ones(n).sum())


def test_multiprocessing():
    data = np.arange(1_000_000)
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.map(_sum, [10, 10**6]) == [10, 10**6]
        assert pool.apply(data.sum) == data.sum()


def test_threads_write_during_forks():
    """A fork makes blocks private while other threads write to them: no write is lost."""
    x = np.zeros(1_000_000, np.int64)
    stop = threading.Event()
    turns = [0]

    def write():
        while not stop.is_set():
            x[:] += 1
            turns[0] += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(20):
            result = in_child(lambda: True)
            extra = np.ones(1_000_000)  # blocks that the next fork makes private
            assert extra.all()
            assert result() == b"yes"
    finally:
        stop.set()
        thread.join()
    assert (x == turns[0]).all()


def passes(text, **env):
    result = alone(text, env=env)
    assert result.status == 0, result
    return result


def test_the_environment_shares_the_arrays_of_all_threads():
    passes(
        """
        import atexit, threading, numpy as np
        early = [np.arange(5000), np.arange(50)]
        import collectives as cc
        from collectives import _core
        made = []
        thread = threading.Thread(target=lambda: made.append(np.ones(5000)))
        thread.start()
        thread.join()
        assert _core.in_heap(made[0]) and _core.in_heap(np.ones(5000))
        assert not _core.in_heap(early[0])
        early[0].resize(9000, refcheck=False)
        del early[:]
        with cc.shared_arrays():
            last = np.ones(50000)
        atexit.register(lambda: last.sum())
        class Late:
            def __del__(self):
                last[:] = 2
        late = Late()
        """,
        COLLECTIVES_SHARED_ARRAYS="1",
    )


def test_a_full_heap_warns_once_and_loses_nothing():
    result = passes(
        """
        import numpy as np, collectives as cc
        from collectives import _core
        with cc.shared_arrays():
            arrays = [np.full(50_000, i) for i in range(20)]
        assert all((x == i).all() for i, x in enumerate(arrays))
        assert 1 <= sum(map(_core.in_heap, arrays)) <= 3
        del arrays[:]
        with cc.shared_arrays():
            assert _core.in_heap(np.ones(50_000))
        """,
        COLLECTIVES_SHM_LIMIT="1M",
    )
    assert result.err.count("SharedMemoryWarning") == 1
    assert (
        "has no room for another array (limit 1048576 bytes, COLLECTIVES_SHM_LIMIT)" in result.err
    )


@pytest.mark.parametrize(("wish", "line"), [("1", 2), ("0", 5)])
def test_no_shared_memory_is_a_warning(wish, line):
    """It names the line of the program: the import, or the `with` statement."""
    result = passes(
        """
        import collectives as cc, numpy as np
        from collectives import _core
        for _ in range(2):
            with cc.shared_arrays():
                assert not _core.in_heap(np.ones(50_000))
        """,
        COLLECTIVES_SHM="0",
        COLLECTIVES_SHARED_ARRAYS=wish,
    )
    assert result.err.count("SharedMemoryWarning") == 1
    assert (
        f"<string>:{line}: SharedMemoryWarning: arrays are not in shared memory, and collectives "
        "copy them: COLLECTIVES_SHM=0" in result.err
    )


def test_a_program_that_closes_all_files(tmp_path):
    """Another file gets the number, and nothing is done to it."""
    (tmp_path / "file").write_bytes(bytes(range(256)) * 4096)
    passes(f"""
        import os, numpy as np, collectives as cc
        from collectives import _core
        with cc.shared_arrays():
            lent, quiet, used = (np.full(100_000, 7) for _ in range(3))
            assert _core.in_heap(lent, lend=True)
            os.closerange(3, 50)
            files = [open({str(tmp_path / "file")!r}, "r+b") for _ in range(20)]
            del used
            assert not np.zeros(100_000).any()
            for _ in range(2):
                child = os.fork()
                if child == 0:
                    good = (lent == 7).all() and (quiet == 7).all()
                    lent[:] = quiet[:] = 1
                    os._exit(0 if good and all(f.tell() == 0 for f in files) else 1)
                assert os.waitpid(child, 0)[1] == 0
                assert (lent == 7).all() and (quiet == 7).all()
            assert all(f.tell() == 0 and f.read(3) == b"\\0\\1\\2" for f in files)
            big = [np.ones(64 << 20, np.uint8) for _ in range(6)]
            del big
            assert not np.zeros(64 << 20, np.uint8).any()
        assert os.path.getsize({str(tmp_path / "file")!r}) == 256 * 4096
        """)


@pytest.mark.parametrize(("gib", "works"), [(40, True), (None, False)])
def test_limits_of_addresses(gib, works):
    result = passes(f"""
        import resource, numpy as np, collectives as cc
        from collectives import _core
        now = int(open("/proc/self/statm").read().split()[0]) * 4096
        most = now + ({gib} << 30 if {gib} else 300 << 20)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        with cc.shared_arrays():
            x = np.ones(50_000)
        assert _core.in_heap(x) == {works}, _core.heap_state()
        assert x.sum() == 50_000
        """)
    assert result.err.count("no memory can be reserved for them") == (0 if works else 1)


def test_invalid_settings_are_errors():
    result = alone(
        "import collectives", env={"COLLECTIVES_SHARED_ARRAYS": "1", "COLLECTIVES_SHM": "no"}
    )
    assert result.status
    assert "COLLECTIVES_SHM is 'no'" in result.err


def test_what_a_fork_has_made_private_is_given_back():
    passes("""
        import os, numpy as np, collectives as cc
        from collectives import _core
        def data():
            return int(open("/proc/self/statm").read().split()[5]) * 4096
        with cc.shared_arrays():
            np.ones(50_000)
            before = data()
            for turn in range(4):
                x = np.empty(256 << 20, np.uint8)
                assert _core.in_heap(x)
                x[0] = 1
                child = os.fork()
                if child == 0:
                    os._exit(0)
                os.waitpid(child, 0)
                del x
        assert data() < before + (256 << 20), (before, data())
        """)


def test_an_array_that_is_longer_than_any_heap_is_no_part_of_it():
    passes(
        """
        import numpy as np, collectives as cc
        with cc.shared_arrays():
            arrays = [np.ones(16384, np.uint8) for _ in range(20_000)]
            del arrays  # some of them give their pages back
            try:
                np.empty(480 << 30, np.uint8)
            except MemoryError:
                pass
        """,
        COLLECTIVES_SHM_LIMIT="1024G",
    )
