"""Messages in shared memory: two ranks that are one process, whose boxes are soon full."""

import gc
import mmap
import random

import pytest

from collectives import _core
from collectives.errors import ArgumentError, CommunicatorError

ROOM = 4096
MOST = ROOM // 4 - 56  # bytes of a message that is not offered first


@pytest.fixture
def ranks():
    """Return the contexts of both ranks, by number of the context."""
    memory = mmap.mmap(-1, _core.mail_bytes(2, ROOM))
    mails = [_core.Mail(memory, rank, ROOM, [0, 1]) for rank in range(2)]
    made = {}

    def contexts(number=2):
        if number not in made:
            made[number] = [_core.Context(mail, number, (0, 1)) for mail in mails]
        return made[number]

    return contexts


def complete(*letters, turns=10000):
    """Move letters on until all have ended."""
    left = list(letters)
    for _ in range(turns):
        left = [each for each in left if not each.test()]
        if not left:
            return
    raise AssertionError(f"{len(left)} letters have not ended")


@pytest.mark.parametrize("early", [False, True], ids=["asked", "early"])
@pytest.mark.parametrize(
    "nbytes", [0, 1, 7, 8, MOST - 1, MOST, MOST + 1, ROOM, 10 * ROOM + 3, 1 << 20]
)
def test_a_message_arrives(ranks, nbytes, early):
    zero, one = ranks()
    data, place = random.Random(nbytes).randbytes(nbytes), bytearray(nbytes)
    if early:
        sent = zero.isend(data, 1)
        one.irecv(bytearray(0), 1)  # which nobody sends: reads the boxes
        received = one.irecv(place, 0)
    else:
        received = one.irecv(place, 0)
        sent = zero.isend(data, 1)
    complete(sent, received)
    assert place == data


def test_to_itself(ranks):
    zero, _ = ranks()
    for nbytes in (5, 5 * ROOM):
        place = bytearray(nbytes)
        complete(zero.isend(b"x" * nbytes, 0), zero.irecv(place, 0))
        assert place == b"x" * nbytes


@pytest.mark.parametrize("seed", range(8))
def test_many_messages_both_ways_at_once(ranks, seed):
    """Messages with one tag between two ranks keep their order, of whatever length."""
    chance = random.Random(seed)
    everything, letters = [], []
    for source in range(2):
        for context in (2, 4):
            for tag in range(2):
                texts = [
                    chance.randbytes(chance.choice([0, 3, 500, MOST, MOST + 1, 3 * ROOM]))
                    for _ in range(20)
                ]
                places = [bytearray(len(each)) for each in texts]
                everything.append((texts, places))
                for text, place in zip(texts, places, strict=True):
                    letters.append((source, context, tag, text, place))
    # The order in which calls are made differs, but for those that must keep theirs.
    sends = merged(chance, letters)
    receives = merged(chance, letters)
    waiting = []
    while sends or receives:
        if sends and (not receives or chance.random() < 0.5):
            source, context, tag, text, _ = sends.pop()
            waiting.append(ranks(context)[source].isend(text, 1 - source, tag))
        else:
            source, context, tag, _, place = receives.pop()
            waiting.append(ranks(context)[1 - source].irecv(place, source, tag))
        if chance.random() < 0.3:
            waiting = [each for each in waiting if not each.test()]
    complete(*waiting)
    for texts, places in everything:
        assert places == texts


def merged(chance, letters):
    """Return letters from the last to the first, those of one context, tag and source in order."""
    queues = {}
    for each in letters:
        queues.setdefault(each[:3], []).append(each)
    order = []
    while queues:
        key = chance.choice(list(queues))
        order.append(queues[key].pop(0))
        if not queues[key]:
            del queues[key]
    return order[::-1]


@pytest.mark.parametrize("nbytes", [10, MOST, 5 * ROOM])
@pytest.mark.parametrize("early", [False, True])
def test_too_long_a_message_is_an_error_of_its_receiver(ranks, nbytes, early):
    """And of its sender, if it was offered first."""
    zero, one = ranks()
    place = bytearray(9)
    if early:
        sent, received = zero.isend(b"x" * nbytes, 1), one.irecv(place, 0)
    else:
        received = one.irecv(place, 0)
        sent = zero.isend(b"x" * nbytes, 1)
    with pytest.raises(CommunicatorError, match="longer than the place for it"):
        complete(received)
    if nbytes <= MOST:
        complete(sent)
    else:
        with pytest.raises(CommunicatorError, match="longer than the place for it"):
            complete(sent)
    place = bytearray(4)
    complete(zero.isend(b"next", 1), one.irecv(place, 0))
    assert place == b"next"


@pytest.mark.parametrize("nbytes", [10, 5 * ROOM])
@pytest.mark.parametrize("is_send", [False, True])
def test_a_dropped_letter_leaves_the_rest_alone(ranks, nbytes, is_send):
    """A rank that drops a send or a receive hears no more of it, whatever the other side does."""
    zero, one = ranks()
    dropped, place = bytearray(nbytes), bytearray(nbytes)
    letter = zero.isend(b"a" * nbytes, 1, 5) if is_send else one.irecv(dropped, 0, 5)
    del letter
    sent, received = zero.isend(b"b" * nbytes, 1, 6), one.irecv(place, 0, 6)
    complete(sent, received)
    assert place == b"b" * nbytes


def test_a_cycle_that_is_collected_leaves_a_letter_its_memory(ranks, monkeypatch):
    """Else the memory is freed, to which a message may come, and Python reports an error."""
    _, one = ranks()
    reports = []
    monkeypatch.setattr("sys.excepthook", lambda *error: reports.append(error))
    cycle = [one.irecv(bytearray(8), 0)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert reports == []


def test_letters_in_the_middle_are_dropped(ranks):
    """A receive that is given up while its message comes does not take those of others."""
    zero, one = ranks()
    first, second = bytearray(20 * ROOM), bytearray(20 * ROOM)
    letters = [zero.isend(b"a" * len(first), 1), zero.isend(b"b" * len(second), 1)]
    taken, kept = one.irecv(first, 0), one.irecv(second, 0)
    for _ in range(3):
        assert not taken.test()
        letters[0].test()
    del taken
    before = bytes(first)
    complete(kept, *letters)
    assert second == b"b" * len(second)
    assert first == before


def test_the_sender_of_a_message_is_found(ranks):
    zero, one = ranks()
    assert one.sender(3) == -1
    letters = [zero.isend(b"x" * nbytes, 1, 3) for nbytes in (2, 5 * ROOM)]
    place, long = bytearray(2), bytearray(5 * ROOM)
    assert (one.sender(3), one.sender(4), zero.sender(3), ranks(4)[1].sender(3)) == (0, -1, -1, -1)
    complete(one.irecv(place, 0, 3))
    assert one.sender(3) == 0
    complete(*letters, one.irecv(long, 0, 3))
    assert one.sender(3) == -1


def test_contexts_are_separate(ranks):
    zero, one = ranks()
    other_zero, other_one = ranks(4)
    a, b = bytearray(1), bytearray(1)
    letters = [zero.isend(b"a", 1), other_zero.isend(b"b", 1)]
    letters += [other_one.irecv(b, 0), one.irecv(a, 0)]
    complete(*letters)
    assert (a, b) == (b"a", b"b")


def test_no_such_rank(ranks):
    zero, _ = ranks()
    with pytest.raises(ArgumentError, match="there is no rank 2 among 2"):
        zero.isend(b"", 2)
    with pytest.raises(ArgumentError, match="there is no rank -1"):
        zero.irecv(bytearray(), -1)


def test_a_place_must_be_writable(ranks):
    zero, _ = ranks()
    with pytest.raises(BufferError):
        zero.irecv(b"constant", 1)


def test_memory_must_be_large_enough():
    with pytest.raises(ValueError, match="too small"):
        _core.Mail(mmap.mmap(-1, 4096), 0, ROOM, [0, 1])
