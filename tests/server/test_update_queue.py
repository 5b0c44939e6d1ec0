"""Policies, pieces and optimizers, without ranks."""

import numpy as np
import pytest

from collectives import server
from collectives.compression import Float16, Int8, NoCompression, RandomK, Sign, TopK
from collectives.errors import ArgumentError, BufferError, UnsupportedTypeError
from collectives.server.parameters import cut, gradients, memory_bytes, read
from collectives.server.training import Encoding
from collectives.server.transport import Push
from collectives.server.update_queue import BatchPieces, UpdateQueue


def push(worker, base=0, call=0):
    return Push(worker, call, base, 1.0, None, lambda: None)


def taken(queue):
    return [each.worker for each in queue.take()]


def test_synchronous_waits_for_all_in_their_order():
    queue = UpdateQueue(server.Synchronous(), 3)
    for worker in (2, 0):
        assert queue.arrive(push(worker))
        assert taken(queue) == []
    assert queue.missing == [1]
    queue.arrive(push(1))
    assert (taken(queue), queue.version) == ([0, 1, 2], 1)
    assert not queue.lose(1, "killed")


def test_synchronous_counts_who_has_finished_as_long_as_its_gradient_waits():
    queue = UpdateQueue(server.Synchronous(), 2)
    queue.arrive(push(0))
    queue.leave(0)
    assert taken(queue) == []
    queue.arrive(push(1))
    assert taken(queue) == [0, 1]
    queue.arrive(push(1, 1))
    assert taken(queue) == [1]


def test_asynchronous_counts_staleness():
    queue = UpdateQueue(server.Asynchronous(), 2)
    for worker, base in ((0, 0), (0, 1), (1, 0), (0, 2)):
        assert queue.arrive(push(worker, base))
        assert taken(queue) == [worker]
    assert queue.staleness == {0: {0: 2, 1: 1}, 1: {2: 1}}
    assert queue.lose(1, "killed")
    assert not queue.lose(0, "killed")


def test_bounded_staleness_knows_the_slowest():
    queue = UpdateQueue(server.BoundedStaleness(2), 3)
    for worker in (0, 0, 1):
        queue.arrive(push(worker))
        queue.take()
    assert queue.slowest == 0
    assert queue.missing == [0, 1, 2]
    for _ in range(3):
        queue.arrive(push(1))
        queue.take()
    assert queue.missing == [0, 2]  # 1 waits for 2
    assert queue.lose(2, "killed")
    assert queue.slowest == 2


@pytest.mark.parametrize("number", [0, -1, 1.5, None])
def test_a_quorum_is_a_positive_number(number):
    class Wrong(server.Policy):
        def quorum(self, present, total):
            return number

    queue = UpdateQueue(Wrong(), 2)
    queue.arrive(push(0))
    with pytest.raises(ArgumentError, match=r"Wrong\(\).quorum\(1?2?, 2\) returned"):
        queue.take()


def test_backup_workers_drop_what_is_late():
    queue = UpdateQueue(server.BackupWorkers(1), 3)
    queue.arrive(push(0))
    assert taken(queue) == []
    queue.arrive(push(2))
    assert taken(queue) == [0, 2]
    assert not queue.arrive(push(1))
    assert queue.dropped == {1: 1}
    assert queue.arrive(push(1, 1))
    assert queue.lose(0, "killed")
    assert not queue.lose(2, "killed")


def test_pieces_of_a_batch_are_all_given_out_once():
    pieces = BatchPieces(103, 3, 4)
    first = [pieces.claim(0) for _ in range(6)]
    assert first[:4] == [(0, 8), (8, 17), (17, 25), (25, 34)]
    assert first[4] == (59, 68)  # the last one of worker 1, who has as many as worker 2
    rest = []
    while piece := pieces.claim(1):
        rest.append(piece)
    covered = sorted([*first, *rest])
    assert [a for a, _ in covered] == [0, *(b for _, b in covered[:-1])]
    assert covered[-1][1] == 103
    assert BatchPieces(1, 3, 8).claim(0) == (0, 1)


def test_a_gradient_is_cut_over_servers_by_size_and_priority():
    arrays = {"short": np.zeros(5, np.float16), "long": np.zeros(40_001, np.float32)}
    arrays["last"] = np.zeros((3, 2))
    parameters = read(arrays)
    shards = cut(parameters, 2, [2, 1, 0])
    assert [piece.parameter for piece in shards[0]] == [2, 1]
    assert [(piece.parameter, piece.start, piece.stop) for piece in shards[1]] == [
        (1, 20_000, 40_001),
        (0, 0, 5),
    ]
    for pieces in shards:
        ends = [each.offset + each.nbytes for each in pieces]
        assert all(each.offset % 16 == 0 for each in pieces)
        assert sorted(ends) == ends
        assert ends[-1] <= memory_bytes(pieces)


@pytest.mark.parametrize(
    ("codec", "error"),
    [
        (None, 0),
        (NoCompression(), 0),
        (Float16(), 0.01),
        (Int8(), 0.1),
        (Sign(), 4),
        (TopK(0.5), 4),
    ],
)
def test_a_gradient_is_sent_and_read(codec, error):
    parameters = read([np.zeros(700), np.zeros((5, 7), np.float32)])
    pieces = cut(parameters, 1, [0, 1])[0]
    rng = np.random.default_rng(0)
    given = [rng.normal(size=700), rng.normal(size=(5, 7)).astype(np.float32)]
    flat = gradients(given, parameters)
    sender, receiver = (Encoding(parameters, pieces, codec) for _ in range(2))
    total = [np.zeros(700), np.zeros(35)]
    for call in range(40):
        memory = np.zeros(sender.nbytes, np.uint8)
        sender.write(memory, flat, 3)
        for i, each in enumerate(flat):
            got = receiver.read(memory, i, call)
            assert got.dtype == each.dtype
            if call == 0:
                assert np.abs(got - each).max() <= error
            total[i] += got
    # Omitted elements are sent later; rounded ones, in both directions.
    for each, wanted in zip(total, flat, strict=True):
        assert np.linalg.norm(each / 40 - wanted) <= 0.2 * np.linalg.norm(wanted)


def test_random_elements_are_those_of_the_call():
    parameters = read([np.zeros(100, np.float32)])
    pieces = cut(parameters, 1, [0])[0]
    codec = RandomK(0.1, error_feedback=False)
    sender, receiver = (Encoding(parameters, pieces, codec) for _ in range(2))
    found = set()
    for call in range(3):
        memory = np.zeros(sender.nbytes, np.uint8)
        sender.write(memory, [np.ones(100, np.float32)], 0)
        got = receiver.read(memory, 0, call)
        assert (np.count_nonzero(got), got.sum()) == (10, 100)
        found.add(got.tobytes())
    assert len(found) == 3


def test_a_codec_for_an_allreduce_only_is_refused():
    parameters = read([np.zeros(100, np.float32)])
    pieces = cut(parameters, 1, [0])[0]
    from collectives.compression import PowerSGD

    with pytest.raises(ArgumentError, match=r"powersgd.* compresses an allreduce"):
        Encoding(parameters, pieces, PowerSGD(2))


def test_a_rate_may_be_a_schedule():
    w = np.zeros(1)
    for number in (1, 2):
        server.SGD(lambda step: 1 / step)(w, np.ones(1), {}, number)
    assert w[0] == -1.5


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: server.SGD("fast"), "rate is 'fast'"),
        (lambda: server.SGD(0.1, 1.0), "momentum is 1.0"),
        (lambda: server.BackupWorkers(0), "backups is 0"),
        (lambda: server.BoundedStaleness(-1), "bound is -1"),
        (lambda: server.RapidReassignment(1), "pieces is 1"),
        (lambda: read(np.zeros(3)), "parameters is a ndarray"),
        (lambda: read([]), "parameters is empty"),
        (lambda: gradients([], read([np.zeros(1)])), "0 gradients for 1 parameters"),
        (
            lambda: gradients({"x": 1}, read({"w": np.zeros(1)})),
            "gradient of 'x'; the parameters are: w",
        ),
        (lambda: gradients({}, read({"w": np.zeros(1)})), "no gradient of parameter w"),
        (lambda: gradients(None, read({"w": np.zeros(1)})), "takes the grad .* w has none"),
        (lambda: gradients(1.0, read({"w": np.zeros(1)})), "was given a float"),
        (lambda: gradients(np.zeros(1), read({"w": np.zeros(1)})), "was given a ndarray"),
        (lambda: gradients([np.zeros(2)], read({"w": np.zeros(3)})), r"shape \(2,\)"),
    ],
)
def test_arguments_are_refused(call, text):
    with pytest.raises(ArgumentError, match=text):
        call()


@pytest.mark.parametrize("wrong", [np.zeros(3, complex), [None] * 3, ["1"] * 3])
def test_gradients_are_real_numbers(wrong):
    parameters = read({2: np.zeros(3, np.float32)})
    with pytest.raises(UnsupportedTypeError, match="gradient of parameter 2 has dtype"):
        gradients({2: wrong}, parameters)
    for right in ([1, 2, 3], np.arange(1, 4, dtype=np.int8), np.arange(1.0, 4)):
        assert gradients({2: right}, parameters)[0].tolist() == [1, 2, 3]


def test_parameters_that_cannot_be_changed_are_refused():
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    with pytest.raises(BufferError, match="read-only"):
        read([fixed])
    with pytest.raises(ArgumentError, match=r"parameter 0 is 1\.0"):
        read([1.0])
    with pytest.raises(UnsupportedTypeError, match="int64"):
        read([np.arange(3)])


def test_parameters_without_memory_of_their_own_are_written_as_a_whole():
    class Variable:
        name = "kernel"

        def __init__(self):
            self.held = np.zeros((2, 3), np.float32)

        def numpy(self):
            return self.held

        def assign(self, value):
            self.held = value.copy()

    whole = np.zeros((4, 6))
    variable = Variable()
    found = read({"strided": whole[::2, ::2], "variable": variable})
    for each in found:
        each.flat[:] = np.arange(6)
        each.commit()
    assert (whole[::2, ::2] == [[0, 1, 2], [3, 4, 5]]).all()
    assert whole[1].sum() == 0
    assert (variable.held == [[0, 1, 2], [3, 4, 5]]).all()
