"""Threads: on one communicator they queue up, on communicators of their own they run side by side.

The order of threads differs between ranks. So threads that share a communicator either call
the same thing, so that it does not matter, or take turns in an order that is the same everywhere.
"""

import os
import signal
import sys
import threading
import time
import traceback

import numpy as np
import pytest
from cases import FULL
from mpi4py import MPI

import collectives as cc
from collectives import calls
from collectives.errors import CommunicatorError

THREADS = 4
ROUNDS = 60 if FULL or MPI.COMM_WORLD.size < 3 else 20
CALLS = os.path.join(os.path.dirname(calls.__file__), "")
DEADLINE = 60  # seconds that the threads of a test get


def in_threads(*functions):
    """Run functions side by side; raise what the first to fail raised, and never wait for ever."""
    errors = []

    def run(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,), daemon=True) for each in functions]
    limit = time.monotonic() + DEADLINE
    for thread in threads:
        thread.start()
    for thread in threads:
        while thread.is_alive() and not errors:
            assert time.monotonic() < limit, "the threads do not come to an end"
            thread.join(0.1)
    if errors:
        raise errors[0]


def until_in(thread, name, line=None):
    """Wait until a thread is in a function, and at a line of it."""
    limit = time.monotonic() + DEADLINE
    while not any(
        frame.f_code.co_name == name and line in (None, at)
        for frame, at in traceback.walk_stack(sys._current_frames().get(thread.ident))
    ):
        assert time.monotonic() < limit, f"the thread does not come to {name}"
        time.sleep(0.001)


class Turns:
    """Let the threads of a rank in one after the other, in the same order on all ranks."""

    def __init__(self, threads):
        self.threads = threads
        self.turn = 0
        self.changed = threading.Condition()

    def take(self, k, function):
        with self.changed:
            mine = self.changed.wait_for(lambda: self.turn % self.threads == k, DEADLINE)
            assert mine, f"thread {k} does not get its turn"
        try:
            return function()
        finally:
            with self.changed:
                self.turn += 1
                self.changed.notify_all()


def mixture(comm, k, i):
    """Return the i-th call of thread k, and its expected result."""
    p, root, n = comm.size, i % comm.size, 1 + (37 * i + 11 * k) % 400
    value = 1000 * k + i
    x = np.full(n, value + comm.rank, np.int64)
    total = p * value + p * (p - 1) // 2
    calls = [
        (lambda: comm.allreduce(x), total),
        (lambda: comm.iallreduce(x), total),
        (lambda: comm.broadcast(x, root=root), value + root),
        (lambda: comm.ibroadcast(x, root=root), value + root),
        (lambda: comm.reduce(x, root=root), total if comm.rank == root else None),
        (lambda: comm.ireduce(x, root=root), total if comm.rank == root else None),
        (lambda: comm.ibarrier(), None),
        (lambda: comm.barrier(), None),
    ]
    return calls[(i + k) % len(calls)]


def check(result, wanted):
    if wanted is None:
        assert result is None
    else:
        assert (result == wanted).all()


def finished(result):
    return result.wait() if isinstance(result, cc.Request) else result


def test_the_same_calls_on_one_communicator(either):
    """Calls of different threads meet on different ranks; as they are equal, no one can tell."""
    comm = either.comm
    total = comm.size * (comm.size + 1) // 2

    def work(k):
        requests = []
        for i in range(ROUNDS):
            x = np.full(300, comm.rank + 1, np.int64)
            if (i + k) % 3 == 0:
                requests.append(comm.iallreduce(x, algorithm="ring"))
            else:
                check(comm.allreduce(x, algorithm="ring"), total)
            if len(requests) > k:
                check(requests.pop(0).wait(), total)
        for request in reversed(requests):
            check(request.wait(), total)

    in_threads(*[lambda k=k: work(k) for k in range(THREADS)])
    either.agree("done")


def test_taking_turns_on_one_communicator(either):
    """Different calls, in one order: a thread waits for its requests while others have the turn."""
    comm = either.comm
    turns = Turns(THREADS)

    def work(k):
        started = []
        for i in range(ROUNDS):
            call, wanted = mixture(comm, k, i)
            started.append((turns.take(k, call), wanted))
            if i % (k + 1) == k:
                for result, value in started:
                    check(finished(result), value)
                started.clear()
        for result, value in started:
            check(finished(result), value)

    in_threads(*[lambda k=k: work(k) for k in range(THREADS)])
    either.agree("done")


def test_communicators_of_their_own(either):
    """No order between the threads at all; that of the starts differs from rank to rank."""
    comms = [either.comm.dup() for _ in range(THREADS)]

    def work(k):
        comm = comms[k]
        started = []
        for i in range(ROUNDS):
            call, wanted = mixture(comm, k, i)
            started.append((call(), wanted))
            if len(started) > 5:
                result, value = started.pop(0)
                check(finished(result), value)
        for result, value in reversed(started):
            check(finished(result), value)

    order = sorted(range(THREADS), key=lambda k: (k + either.comm.rank) % THREADS)
    in_threads(*[lambda k=k: work(k) for k in order])
    for comm in comms:
        comm.free()


def test_some_share_and_some_do_not(plain):
    """Requests of one communicator are moved on by threads that wait on another."""
    shared, own = plain.comm, plain.comm.dup()
    outs = [np.zeros(2000, np.int64) for _ in range(ROUNDS)]
    total = shared.size * (shared.size + 1) // 2

    def starts():
        requests = [shared.iallreduce(np.full(2000, shared.rank + 1), out) for out in outs]
        for request in requests[::-1] if shared.rank % 2 else requests:
            check(request.wait(), total)

    def blocks():
        for i in range(ROUNDS):
            check(own.allreduce(np.full(100, i)), i * own.size)

    in_threads(starts, blocks)
    own.free()


def test_large_ones_side_by_side(plain):
    comms = [plain.comm.dup() for _ in range(2)]

    def work(comm):
        for i in range(5):
            y = comm.allreduce(np.full(200_000, i + comm.rank, np.float64))
            assert (y == comm.size * i + comm.size * (comm.size - 1) / 2).all()

    in_threads(*[lambda comm=comm: work(comm) for comm in comms])
    for comm in comms:
        comm.free()


def test_many_threads_wait_for_one_request(plain):
    comm = plain.comm
    for i in range(20):
        if i % comm.size == comm.rank:
            time.sleep(0.002)  # so that there is something to wait for on the other ranks
        request = comm.iallreduce(np.full(1000, i))
        results = []

        def wait(request=request, results=results):
            while not request.test():
                results.append(request.wait())
            results.append(request.wait())

        in_threads(*[wait] * THREADS)
        assert all(each is results[0] for each in results)
        assert (results[0] == i * comm.size).all()


def test_requests_are_dropped_by_threads(plain):
    comm = plain.comm
    outs = [np.zeros(500) for _ in range(ROUNDS)]
    turns = Turns(THREADS)

    def work(k):
        for out in outs[k::THREADS]:
            turns.take(k, lambda out=out: comm.iallreduce(np.ones(500), out) and None)

    in_threads(*[lambda k=k: work(k) for k in range(THREADS)])
    limit = time.monotonic() + DEADLINE
    while comm.allreduce(np.array([not all(out.all() for out in outs)]), op=cc.LOR)[0]:
        assert time.monotonic() < limit
    assert all((out == comm.size).all() for out in outs)


def test_first_come_first_served(plain):
    """A thread that has left the communicator goes to the end of the queue."""
    comm = plain.comm
    engine = comm._engine
    order = []

    def enter(k):
        with engine:  # it waits in the second line of the function, without the GIL
            order.append(k)

    threads = [threading.Thread(target=enter, args=(k,), daemon=True) for k in range(6)]
    with engine:
        for thread in threads:
            thread.start()
            until_in(thread, "enter", enter.__code__.co_firstlineno + 1)
        assert order == []
    with engine:
        order.append("late")
    for thread in threads:
        thread.join(DEADLINE)
    assert order == [0, 1, 2, 3, 4, 5, "late"]


# -- what goes wrong -------------------------------------------------------------------------


class Signal:
    """Send this process a signal when its main thread has been inside a call for a while."""

    def __init__(self, number, handler):
        self.number, self.handler = number, handler
        self.thread = threading.Thread(target=self.send)

    def send(self):
        limit = time.monotonic() + DEADLINE
        while not self.is_inside():
            assert time.monotonic() < limit, "the main thread calls nothing"
            time.sleep(0.01)
        time.sleep(0.2)
        os.kill(os.getpid(), self.number)

    @staticmethod
    def is_inside():
        frame = sys._current_frames()[threading.main_thread().ident]
        files = {each.f_code.co_filename for each, _ in traceback.walk_stack(frame)}
        return any(each.startswith(CALLS) for each in files)

    def __enter__(self):
        self.before = signal.signal(self.number, self.handler)
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.thread.join()
        signal.signal(self.number, self.before)


@pytest.mark.several
def test_a_signal_handler_cannot_reenter(plain):
    comm = plain.comm
    seen = []

    def handler(number, frame):
        for call in (comm.barrier, comm.ibarrier, comm.dup, comm.free):
            with pytest.raises(CommunicatorError, match="inside a call on this communicator"):
                call()
        seen.append(number)
        plain.mpi.Barrier()

    if comm.rank == 0:
        with Signal(signal.SIGUSR1, handler):
            y = comm.allreduce(np.ones(10))
        assert seen == [signal.SIGUSR1]
    else:
        plain.mpi.Barrier()
        y = comm.allreduce(np.ones(10))
    assert (y == comm.size).all()


def joined(x, y):
    return x + y


X = [np.ones(10), np.ones(1 << 14)]
SEVERAL = {  # the calls that make others, on a communicator of one rank, and its ring
    "allreduce_many": lambda comm, ring: comm.allreduce_many(X),
    "iallreduce_many": lambda comm, ring: comm.iallreduce_many(X).wait(),
    "compressed": lambda comm, ring: comm.allreduce(X[0], compression="int8"),
    "split": lambda comm, ring: comm.split(0).free(),
    "dup": lambda comm, ring: comm.dup().free(),
    "empty": lambda comm, ring: comm.empty(10),
    "broadcast_object": lambda comm, ring: comm.broadcast_object("x"),
    "gather_object": lambda comm, ring: comm.gather_object("x"),
    "allgather_object": lambda comm, ring: comm.allgather_object("x"),
    "scatter_object": lambda comm, ring: comm.scatter_object(["x"]),
    "alltoall_object": lambda comm, ring: comm.alltoall_object(["x"]),
    "reduce_object": lambda comm, ring: comm.reduce_object("x", joined),
    "allreduce_object": lambda comm, ring: comm.allreduce_object("x", joined),
    "scan_object": lambda comm, ring: comm.scan_object("x", joined),
    "neighbor_allgatherv": lambda comm, ring: ring.neighbor_allgatherv(X[0]),
    "neighbor_alltoallv": lambda comm, ring: ring.neighbor_alltoallv(X[0], [4, 6]),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_a_signal_handler_cannot_call_in_the_middle_of_several_calls(plain, name):
    """A trace function runs in the middle of them as a handler does, but at each line."""
    comm = plain.comm.split(plain.comm.rank)
    ring = comm.cart((1,), periods=True)
    callee = ring.comm if name.startswith("neighbor") else comm
    said = []

    def handler(frame, event, argument):
        try:
            callee.barrier()
            said.append("")
        except CommunicatorError as error:
            said.append(str(error))
        return handler

    SEVERAL[name](comm, ring)  # the first call imports modules
    sys.settrace(handler)
    try:
        SEVERAL[name](comm, ring)
    finally:
        sys.settrace(None)
    refused = [k for k, text in enumerate(said) if "inside a call on this communicator" in text]
    assert refused, said
    # From the first of the calls to the last one.
    assert len(refused) == refused[-1] - refused[0] + 1, said
    assert not any(said[: refused[0]] + said[refused[-1] + 1 :]), said
    assert comm.allreduce(np.ones(1)) == callee.allreduce(np.ones(1)) == [1]
    comm.free()


@pytest.mark.several
def test_a_signal_handler_may_use_another_communicator(plain):
    comm, other = plain.comm, plain.comm.split(plain.comm.rank)
    seen = []

    def handler(number, frame):
        seen.append(other.allreduce(np.ones(1))[0])
        plain.mpi.Barrier()

    if comm.rank == 0:
        with Signal(signal.SIGUSR1, handler):
            comm.barrier()
        assert seen == [1]
    else:
        plain.mpi.Barrier()
        comm.barrier()
    other.free()


@pytest.mark.several
def test_interrupted_while_queued(plain):
    """Nothing was started: the communicator is as good as before, and so is the queue."""
    comm = plain.comm
    if comm.rank == 0:
        results, entered = [], threading.Event()

        def come_first():
            with comm._engine:
                entered.set()
                results.append(comm.allreduce(np.ones(10)))

        inside = threading.Thread(target=come_first, daemon=True)
        inside.start()
        assert entered.wait(DEADLINE)
        behind = threading.Timer(0.1, lambda: results.append(comm.allreduce(np.full(10, 2.0))))
        behind.daemon = True
        with Signal(signal.SIGINT, signal.default_int_handler):
            behind.start()
            with pytest.raises(KeyboardInterrupt):
                comm.barrier()
        assert not results
        plain.mpi.Barrier()
        inside.join(DEADLINE)
        behind.join(DEADLINE)
        assert [each[0] for each in results] == [comm.size, 2 * comm.size]
    else:
        plain.mpi.Barrier()
        assert (comm.allreduce(np.ones(10)) == comm.size).all()
        assert (comm.allreduce(np.full(10, 2.0)) == 2 * comm.size).all()
    comm.barrier()


def test_freed_while_another_thread_is_inside(plain):
    """The free waits for that call; who comes after it is told."""
    comm = plain.comm.dup()
    if comm.size == 1:
        comm.free()
        pytest.skip("one rank waits for nobody")
    if comm.rank == 0:
        results, errors, entered = [], [], threading.Event()

        def early():
            with comm._engine:
                entered.set()
                results.append(comm.allreduce(np.ones(10)))

        def late():
            until_in(threading.main_thread(), "free")
            time.sleep(0.2)
            with pytest.raises(CommunicatorError, match="the communicator was freed") as caught:
                comm.barrier()
            errors.append(caught.value)

        def release():
            until_in(threads[1], "barrier")
            time.sleep(0.2)
            plain.mpi.Barrier()

        threads = [threading.Thread(target=each, daemon=True) for each in (early, late, release)]
        threads[0].start()
        assert entered.wait(DEADLINE)
        for thread in threads[1:]:
            thread.start()
        comm.free()
        for thread in threads:
            thread.join(DEADLINE)
        assert len(errors) == 1
        assert (results[0] == comm.size).all()
    else:
        plain.mpi.Barrier()
        assert (comm.allreduce(np.ones(10)) == comm.size).all()
        comm.free()


@pytest.mark.several
def test_a_stall_wakes_the_queue(plain, fresh):
    """The thread inside reaches its deadline; the one behind it learns why it cannot go on."""
    comm = fresh(validate=False, timeout=0.5)
    if comm.rank == 0:
        entered = threading.Event()

        def inside():
            with comm._engine:
                entered.set()
                with pytest.raises(cc.errors.StallError):
                    comm.allreduce(np.ones(3), algorithm="tree")

        def behind():
            assert entered.wait(DEADLINE)
            with pytest.raises(CommunicatorError, match="rank 0 stalled in allreduce 'tree'"):
                comm.barrier()

        in_threads(inside, behind, behind)
    plain.mpi.Barrier()


@pytest.mark.several
def test_a_stalled_request_in_several_threads(plain, fresh):
    comm = fresh(validate=False, timeout=0.5)
    if comm.rank == 0:
        request = comm.iallreduce(np.ones(3), algorithm="tree")

        def wait():
            with pytest.raises(
                cc.errors.StallError, match=r"waits for rank 1( on host \d)? to send"
            ):
                request.wait()

        in_threads(*[wait] * THREADS)
    plain.mpi.Barrier()
