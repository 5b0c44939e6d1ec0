"""A server and its workers in shared memory, in one process: what each sees of the other."""

import mmap

import numpy as np
import pytest

from collectives.errors import PeerLostError, StallError
from collectives.server.shared import Layout, SharedEndpoint, SharedLink
from collectives.server.transport import Claim, Left, Push

NBYTES = 64


def wait(function, what):
    """Return at once: a wait fails."""
    found = function()
    assert found, what
    return found


@pytest.fixture
def ends():
    """Return a server's end and those of its workers, which are numbers 3 and 5."""
    layout = Layout(4096, [3, 5], NBYTES, NBYTES)
    memory = mmap.mmap(-1, layout.stop)
    lines = [SharedLink(memory, layout, worker, wait) for worker in (3, 5)]
    return SharedEndpoint(memory, layout), lines


def filled(number):
    return np.full(NBYTES, number, np.uint8)


def pulled(line, version=0, slowest=0):
    line.ask(version, slowest)
    return [(number, have, set(memory)) for number, have, memory in line.arriving()]


def test_nothing_is_pulled_before_the_first_version(ends):
    port, (line, _) = ends
    with pytest.raises(AssertionError, match="apply"):
        pulled(line)
    port.publish(0, 0, filled(1), True)
    assert pulled(line) == [(0, NBYTES, {1})]


def test_a_pull_has_one_version_while_others_are_published(ends):
    """Also if its worker stops in the middle: it keeps one buffer."""
    port, (slow, fast) = ends
    port.publish(0, 0, filled(0), True)
    slow.ask(0, 0)
    arriving = slow.arriving()
    version, _, memory = next(arriving)
    for number in range(1, 9):
        port.publish(number, 0, filled(number), True)
        assert pulled(fast, number) == [(number, NBYTES, {number})]
        assert set(memory) == {version}
    arriving.close()
    assert pulled(slow) == [(8, NBYTES, {8})]


def test_a_worker_waits_for_a_version_and_for_the_slowest(ends):
    port, (line, _) = ends
    port.publish(2, 1, filled(0), True)
    assert pulled(line, 2, 1)
    for wanted in ((3, 1), (2, 2)):
        with pytest.raises(AssertionError, match="apply"):
            pulled(line, *wanted)
    port.publish(2, 2, filled(9), False)
    assert pulled(line, 2, 2) == [(2, NBYTES, {0})]


def test_two_gradients_may_be_on_their_way(ends):
    port, (line, other) = ends

    def push(line, number):
        line.push((number, 10 + number, 0.5), lambda memory: memory.fill(number))

    push(line, 0)
    push(line, 1)
    with pytest.raises(AssertionError, match="take a gradient"):
        push(line, 2)
    push(other, 7)
    came = list(port.events())
    assert [each[:4] for each in came] == [(3, 0, 10, 0.5), (3, 1, 11, 0.5), (5, 7, 17, 0.5)]
    assert [set(each.codes) for each in came] == [{0}, {1}, {7}]
    assert list(port.events()) == []
    came[0].release()
    push(line, 2)
    assert next(iter(port.events())).call == 2


def test_a_last_gradient_comes_before_its_worker_leaves(ends):
    port, (line, other) = ends
    line.push((0, 0, 1.0), lambda memory: None)
    line.leave(4, 256, "")
    other.leave(1, 64, "KeyError: 'é'")
    kinds = list(port.events())
    assert isinstance(kinds[0], Push)
    assert kinds[1:] == [Left(3, 4, 256, ""), Left(5, 1, 64, "KeyError: 'é'")]
    assert list(port.events()) == []


def test_pieces_are_asked_for_and_given(ends):
    port, (line, _) = ends
    asked = []

    def serve(function, what):
        for event in port.events():
            assert isinstance(event, Claim)
            asked.append(event[:3])
            event.answer((4, 9) if len(asked) == 1 else None)
        return wait(function, what)

    line._wait = serve
    assert line.claim(2, 100) == (4, 9)
    assert line.claim(2, 100) is None
    assert asked == [(3, 2, 100), (3, 2, 100)]


@pytest.mark.parametrize("kind", [PeerLostError, StallError])
def test_workers_have_the_error_of_their_server(ends, kind):
    port, lines = ends
    assert lines[0].failure() is None
    port.fail(kind("worker 1 is lost: " + "é" * 2000))
    for line in lines:
        error = line.failure()
        assert type(error) is kind
        assert str(error).startswith("worker 1 is lost: é")
