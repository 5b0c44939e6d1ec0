"""Parameter servers: each policy, both transports, errors on all ranks."""

import threading
from fractions import Fraction

import numpy as np
import pytest

import collectives as cc
from collectives import server
from collectives.errors import ArgumentError, BufferError, MismatchError, PeerAbortedError

LONG = 40_000  # elements of float32: on all servers


@pytest.fixture
def comm(world):
    if world.comm.size == 1:
        pytest.skip("a server and a worker are two ranks")
    yield world.comm
    assert world.comm.allreduce_object(1) == world.comm.size


def start(rank):
    """Return parameters that differ between ranks: all begin with those of rank 0."""
    return {
        "long": np.arange(LONG, dtype=np.float32) % 97 + rank,
        "short": np.full((3, 5), 1.0 + rank),
    }


def gradients(w, worker, step):
    """Return those of a quadratic function, which differs between workers and steps."""
    return {name: each - (worker + 1) * (step % 3) for name, each in w.items()}


def alone(workers, steps, optimizer):
    """Return what one process comes to that has the batches of all workers."""
    w = start(0)
    states = {name: {} for name in w}
    for step in range(steps):
        for name, each in w.items():
            total = gradients(w, 0, step)[name]
            for worker in range(1, workers):
                total += gradients(w, worker, step)[name]
            total /= each.dtype.type(workers)
            optimizer(each, total, states[name], step + 1)
    return w


def servers_of(comm):
    """Return how many servers there may be: one, and two of three ranks or more."""
    return [1] if comm.size == 2 else [1, [comm.size - 1, 0]]


def test_synchronous_is_one_process_with_the_whole_batch(comm):
    steps = 5
    for servers in servers_of(comm):
        w = start(comm.rank)
        optimizer = server.SGD(0.25, 0.5)
        with server.ParameterServer(comm, w, optimizer=optimizer, servers=servers) as ps:
            assert (ps.is_server, ps.is_worker) == (comm.rank in ps.servers, ps.server is None)
            for step in range(steps if ps.is_worker else 0):
                ps.pull()
                assert ps.version == step
                ps.push(gradients(w, ps.worker, step))
            if ps.is_worker:
                ps.pull()
        wanted = alone(len(ps.workers), steps, server.SGD(0.25, 0.5))
        if ps.is_worker or servers == 1:
            for name, each in w.items():
                assert np.array_equal(each, wanted[name])
        found = ps.statistics
        nbytes = sum(each.nbytes for each in w.values())
        if ps.is_worker:
            assert (found.received_bytes, found.sent_bytes) == (
                (steps + 1) * nbytes,
                steps * nbytes,
            )
        elif servers == 1:
            workers = comm.size - 1
            assert found.staleness == {0: workers * steps}
            assert found.pushed == dict.fromkeys(range(workers), steps)
            assert found.received_bytes == workers * steps * nbytes
            assert found.sent_bytes == workers * (steps + 1) * nbytes


def test_asynchronous_applies_every_gradient(comm):
    """In whatever order: sums of whole numbers are exact."""
    w = [np.zeros(LONG), np.zeros(1)]
    with server.ParameterServer(
        comm, w, optimizer=server.SGD(1.0), policy=server.Asynchronous(), priorities=[0, 1]
    ) as ps:
        for _ in range(10 if ps.is_worker else 0):
            assert list(ps.pull_each()) == ["1", "0"]
            assert w[0].min() == w[0].max() == w[1][0]  # of one version
            ps.push([np.full(LONG, -1.0), -np.ones(1)])
    if ps.is_server:
        total = 10 * (comm.size - 1)
        assert w[0].min() == w[0].max() == w[1][0] == total == ps.version
        found = ps.statistics
        assert sum(found.staleness.values()) == total
        late = sum(k * n for k, n in found.staleness.items())
        assert found.mean_staleness == late / total
        assert {k: sum(each.values()) for k, each in found.staleness_of.items()} == found.pushed
    else:
        assert ps.statistics.mean_staleness == 0
        assert ps.statistics.waited >= 0


def passes(comm, ps, source, dest):
    """Have one worker wait for another."""
    token = np.zeros(1)
    if ps.worker == source:
        comm.send(token, ps.workers[dest])
    elif ps.worker == dest:
        comm.recv(token, ps.workers[source])


def test_bounded_staleness_holds_a_fast_worker(comm):
    """The slowest has done no step when the others have done what they may, and all go on then."""
    w = np.zeros(3)
    bound, steps = 2, 6
    with server.ParameterServer(
        comm, [w], optimizer=server.SGD(1.0), policy=server.BoundedStaleness(bound)
    ) as ps:
        last = len(ps.workers) - 1
        for step in range(steps if ps.is_worker else 0):
            if last and step == 0 and ps.worker == last:
                passes(comm, ps, 0, last)
            ps.pull()
            ps.push([-np.ones(3)])
            if last and step == bound and ps.worker == 0:
                passes(comm, ps, 0, last)
    if ps.is_server:
        assert w[0] == steps * len(ps.workers)


def test_backup_workers_drop_the_late_gradient(comm):
    if comm.size < 3:
        pytest.skip("a backup is a second worker")
    w = np.zeros(3)
    with server.ParameterServer(
        comm, [w], optimizer=server.SGD(1.0), policy=server.BackupWorkers(1)
    ) as ps:
        last = len(ps.workers) - 1
        if ps.worker == last:
            ps.pull()
            passes(comm, ps, last, 0)  # now it has version 0
            passes(comm, ps, 0, last)
            ps.push([np.full(3, -100.0)])
        elif ps.is_worker:
            passes(comm, ps, last, 0)  # without worker 0 there is no update
            for _ in range(4):
                ps.pull()
                ps.push([-np.ones(3)])
            ps.pull()
            passes(comm, ps, 0, last)
    if ps.is_server:
        assert w[0] == ps.version == 4
        assert ps.statistics.dropped == {last: 1}


def test_rapid_reassignment_moves_pieces_to_who_is_fast(comm):
    count = 90
    x = np.arange(count, dtype=np.float64)
    w = np.zeros(1)
    done = 0
    with server.ParameterServer(
        comm, [w], optimizer=server.SGD(1.0), policy=server.RapidReassignment(3)
    ) as ps:
        last = len(ps.workers) - 1
        if ps.is_worker:
            ps.pull()
            total = np.zeros(1)
            if last and ps.worker != last:  # they would take all pieces before it is there
                passes(comm, ps, last, ps.worker)
            for number, part in enumerate(ps.parts(count)):
                total -= x[part].sum()
                done += part.stop - part.start
                if last and ps.worker == last and number == 0:
                    for other in range(last):
                        passes(comm, ps, last, other)
                    passes(comm, ps, 0, last)
            if last and ps.worker == 0:
                passes(comm, ps, 0, last)
            ps.push([total / max(done, 1)], weight=done)
    if last and ps.worker == last:
        assert done == count // len(ps.workers) // 3
    assert comm.allreduce_object(done) == count
    if ps.is_server:
        assert np.isclose(w[0], x.mean(), rtol=1e-15)


@pytest.mark.parametrize("kept", [False, True])
def test_a_pull_that_is_left_early_is_a_whole_pull(comm, kept):
    """Also where the program keeps the iterator."""
    for servers in servers_of(comm):
        w = {"a": np.zeros(LONG), "b": np.zeros(4)}
        with server.ParameterServer(comm, w, optimizer=server.SGD(1.0), servers=servers) as ps:
            for step in range(6 if ps.is_worker else 0):
                names = ps.pull_each()
                if step in (2, 3):
                    assert next(names) in w
                    if not kept:
                        del names
                else:
                    assert sorted(names) == ["a", "b"]
                if step not in (2, 3) or not kept:
                    assert [each[-1] for each in w.values()] == [-step, -step]
                ps.push({name: np.ones_like(each) for name, each in w.items()})
            if ps.is_worker:
                ps.pull()
                assert [each[-1] for each in w.values()] == [-6, -6]
        assert set(ps.statistics.staleness) <= {0}


def test_a_second_pull_without_a_push_does_not_wait(comm):
    w = [np.zeros(4)]
    with server.ParameterServer(comm, w, optimizer=server.SGD(1.0), timeout=20) as ps:
        for step in range(3 if ps.is_worker else 0):
            ps.pull()
            ps.pull()
            assert w[0][0] == -step
            assert ps.version == step
            ps.push([np.ones(4)])


@pytest.mark.parametrize("compression", ["int8", "topk:0.2"])
def test_compressed_gradients_come_to_the_same(comm, compression):
    w = {"long": np.zeros(LONG, np.float32), "short": np.ones(5)}
    target = np.sin(np.arange(LONG, dtype=np.float32))
    with server.ParameterServer(comm, w, optimizer=server.SGD(0.2), compression=compression) as ps:
        for _ in range(30 if ps.is_worker else 0):
            ps.pull()
            ps.push({"long": w["long"] - target, "short": w["short"]})
    if ps.is_server:
        assert np.linalg.norm(w["long"] - target) < 0.1 * np.linalg.norm(target)
        sent = 30 * len(ps.workers) * sum(each.nbytes for each in w.values())
        assert ps.statistics.received_bytes < 0.45 * sent


@pytest.mark.parametrize("heavy", [30000.0, 1e-9, 1e300])
def test_a_weighted_mean_of_halves_is_finite(comm, heavy):
    w = np.zeros(3, np.float16)
    with server.ParameterServer(comm, [w], optimizer=server.SGD(1.0)) as ps:
        if ps.is_worker:
            ps.pull()
            ps.push([np.full(3, -40000.0, np.float16)], weight=heavy * (1 + ps.worker / 3))
            ps.pull()
    if ps.is_server:
        assert np.array_equal(w, np.full(3, 40000, np.float16))


def test_gradients_that_are_not_finite_are_left_out_and_counted(comm):
    w = np.zeros(2)
    with server.ParameterServer(comm, [w], optimizer=server.SGD(1.0)) as ps:
        if ps.is_worker:
            ps.pull()
            ps.push([np.array([-1.0, np.nan if ps.worker == 0 else -1.0])])
            ps.pull()
            ps.push([np.full(2, -1.0)])
    if ps.is_server:
        assert w.tolist() == [1.0 + (len(ps.workers) > 1)] * 2
        assert ps.statistics.refused == {0: 1}
        assert "; 1 not finite; " in str(ps.statistics).replace(", ", "; ")
    elif ps.worker == 0:
        assert ps.statistics.refused == {0: 1}


def test_any_function_may_be_the_optimizer(comm):
    def update(values, gradient, state, number):
        state["seen"] = state.get("seen", 0) + 1
        assert state["seen"] == number
        values[:] = np.maximum(values, gradient)

    w = np.zeros(4)
    with server.ParameterServer(comm, [w], optimizer=update, policy=server.Asynchronous()) as ps:
        for step in range(7 if ps.is_worker else 0):  # the server holds who does not pull
            ps.push([np.full(4, ps.worker + 1.0 + step)])
    if ps.is_server:
        assert (w == len(ps.workers) + 6).all()


def test_all_ranks_raise_what_is_wrong_on_one(comm):
    def make(parameters, **options):
        options = {"optimizer": server.SGD(0.1), **options}
        return server.ParameterServer(comm, parameters, **options)

    with pytest.raises(ArgumentError, match="at least one server and one worker"):
        make([np.zeros(3)], servers=comm.size)
    with pytest.raises(ArgumentError, match="the class SGD, and must be an object"):
        make([np.zeros(3)], optimizer=server.SGD)
    with pytest.raises(ArgumentError, match="optimizer is a Fraction of fractions, and"):
        make([np.zeros(3)], optimizer=Fraction(1))
    with pytest.raises(ArgumentError, match="must wait for one worker at least"):
        make([np.zeros(3)], policy=server.BackupWorkers(comm.size - 1))
    with pytest.raises(ArgumentError, match="compresses an allreduce"):
        make([np.zeros(3)], compression="powersgd")
    with pytest.raises(ArgumentError, match=r"compression is int8.* and bits is 'size'"):
        server.ParameterServer(
            comm.dup(bits="size"), [np.zeros(3)], optimizer=server.SGD(0.1), compression="int8"
        )
    text = "parameter 0 is 1.0" if comm.rank == 1 else "rank 1: ArgumentError"
    with pytest.raises(ArgumentError, match=text):
        make([1.0 if comm.rank == 1 else np.zeros(3)])
    fixed = np.zeros(3)
    fixed.flags.writeable = comm.rank != 1
    text = "read-only" if comm.rank == 1 else "rank 1: BufferError"
    with pytest.raises(BufferError if comm.rank == 1 else ArgumentError, match=text):
        make([fixed])
    with pytest.raises(MismatchError, match=r"parameters is .*\(4,\).* on rank 1"):
        make([np.zeros(4 if comm.rank == 1 else 3)])
    with pytest.raises(MismatchError, match="policy is Asynchronous"):
        make([np.zeros(3)], policy=server.Asynchronous() if comm.rank == 1 else None)


def test_calls_that_make_no_sense_are_refused(comm):
    w = np.zeros(3)
    with server.ParameterServer(comm, [w], optimizer=server.SGD(0.1)) as ps:
        if ps.is_server:
            with pytest.raises(ArgumentError, match="called on server 0"):
                ps.pull()
        else:
            for wrong in (-1, "all", None, float("nan")):
                with pytest.raises(ArgumentError, match=r"weight is .*, and must be a number"):
                    ps.push([w], weight=wrong)
            ps.push([w])
            with pytest.raises(ArgumentError, match="twice without a pull"):
                ps.push([w])
    with pytest.raises(ArgumentError, match=r"after the end|called on"):
        ps.push([w])


def test_who_gives_up_is_named_or_dropped(comm):
    """A worker leaves by an exception: synchronous ranks raise that, others go on without it."""
    last = comm.size - 1

    def train(policy):
        w = np.zeros(3)
        with server.ParameterServer(comm, [w], optimizer=server.SGD(1.0), policy=policy) as ps:
            for _ in range(3 if ps.is_worker else 0):
                ps.pull()
                if comm.rank == last:
                    raise KeyError("bad data")
                ps.push([-np.ones(3)])
            if ps.is_worker:
                ps.pull()
        return ps

    kinds = KeyError if comm.rank == last else PeerAbortedError
    with pytest.raises(kinds, match="bad data"):
        train(server.Synchronous())
    if comm.size == 2:
        return
    if comm.rank == last:
        with pytest.raises(KeyError):
            train(server.Asynchronous())
        return
    ps = train(server.Asynchronous())
    if ps.is_server:
        assert ps.version == 3 * (len(ps.workers) - 1)
        assert "bad data" in ps.statistics.lost[len(ps.workers) - 1]


def test_batches_of_different_lengths_are_an_error_everywhere(comm):
    if comm.size < 3:
        pytest.skip("of two workers")

    def train():
        policy = server.RapidReassignment(2)
        with server.ParameterServer(comm, [w], optimizer=server.SGD(0.1), policy=policy) as ps:
            if ps.is_worker:
                for _ in ps.parts(100 + ps.worker):
                    pass
                ps.push([w])
                ps.pull()

    w = np.zeros(3)
    with pytest.raises(MismatchError, match=r"and another worker 10.; all must pass the same"):
        train()


def test_an_optimizer_that_fails_is_an_error_everywhere(comm):
    def update(values, gradient, state, number):
        raise ZeroDivisionError("in the optimizer")

    def train():
        w = np.zeros(3)
        with server.ParameterServer(comm, [w], optimizer=update) as ps:
            for _ in range(3 if ps.is_worker else 0):
                ps.pull()
                ps.push([w])

    with pytest.raises(
        ZeroDivisionError if comm.rank == 0 else PeerAbortedError, match="in the optimizer"
    ):
        train()


def test_a_second_thread_is_refused(comm):
    w = np.zeros(3)
    seen = []
    policy = server.Asynchronous()

    def update():
        with pytest.raises(ArgumentError, match="while another thread was"):
            ps.pull()
        seen.append(True)

    class Slow:
        """A gradient whose values are read when a second thread calls."""

        def __array__(self, dtype=None, copy=None):
            thread = threading.Thread(target=update)
            thread.start()
            thread.join()
            return np.ones(3)

    with server.ParameterServer(comm, [w], optimizer=server.SGD(1.0), policy=policy) as ps:
        if ps.is_worker:
            ps.push([Slow()])
            ps.pull()
    assert len(seen) == ps.is_worker


def test_workers_hear_which_server_has_failed(comm):
    def train():
        w = np.zeros(3)
        with server.ParameterServer(comm, [w], optimizer=server.SGD(0.1)) as ps:
            ps.pull()  # servers do not
            ps.push([w])
            ps.pull()

    kind = ArgumentError if comm.rank == 0 else PeerAbortedError
    text = "called on server 0" if comm.rank == 0 else r"server 0 \(rank 0\): .*called on server 0"
    with pytest.raises(kind, match=text):
        train()


def test_one_rank_alone(world):
    if world.comm.size > 1:
        pytest.skip("of one rank")
    with pytest.raises(ArgumentError, match="the communicator has 1 ranks"):
        server.ParameterServer(cc.world(), [np.zeros(1)], optimizer=server.SGD(1.0))
