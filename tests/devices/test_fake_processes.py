"""Memory and events of the fake GPU between two processes."""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
from fake_arrays import Array
from fake_errors import InvalidAddress, InvalidHandle, Race, Stalled, StillInUse
from fake_gpu import Accesses, FakeDriver

N = 10_000
DEADLINE = 20  # seconds for a process


@contextlib.contextmanager
def other(program: Callable[..., None], *args: Any) -> Iterator[Connection]:
    """Run a function in another process, with one end of a pipe; yield the other end."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=program, args=(there, *args), daemon=True)
    process.start()
    there.close()
    try:
        yield here
        process.join(DEADLINE)
        assert process.exitcode == 0
    finally:
        process.kill()
        process.join()


def until_told() -> tuple[threading.Event, dict[str, Any]]:
    """Return an event, and the needs of a driver for a kernel that waits for it."""
    go = threading.Event()
    options = {
        "compile_kernel": lambda source, name: lambda *arguments: go.wait(DEADLINE),
        "accesses": lambda name, arguments: Accesses(),
    }
    return go, options


def receive(pipe: Connection) -> Any:
    assert pipe.poll(DEADLINE)
    return pipe.recv()


def add_one(pipe: Connection, mode: str) -> None:
    """Add one to each byte of memory of another process, as often as it asks."""
    with FakeDriver(mode=mode, seed=2) as driver:
        memory, theirs = receive(pipe)
        address, asked = driver.open_memory(memory), driver.open_event(theirs)
        assert driver.open_memory(memory) == address
        assert driver.place(address + 5) == ("device", 0)
        finished, stream, staged = driver.shared_event(), driver.stream(), driver.pinned(N)
        pipe.send(driver.export_event(finished))
        while receive(pipe):
            driver.wait(stream, asked)
            driver.copy(staged.address, address, N, stream)
            copied = driver.event()
            driver.record(copied, stream)
            driver.synchronize(copied)
            staged.array += 1
            driver.copy(address, staged.address, N, stream)
            driver.record(finished, stream)
            pipe.send(True)
            driver.synchronize(finished)
            driver.end_event(copied)
        for _ in range(2):
            driver.close_memory(address)
        with pytest.raises(InvalidAddress, match="close after free"):
            driver.close_memory(address)
        with pytest.raises(InvalidHandle, match="only where it was made"):
            driver.record(asked, stream)
        driver.forget()
        pipe.send("closed")
        receive(pipe)
        for event in (asked, finished):
            driver.end_event(event)
        driver.end_stream(stream)
        staged.free()


@pytest.mark.parametrize("mode", ["random", "lazy"])
def test_two_processes_take_turns_on_memory(mode: str):
    with other(add_one, mode) as pipe, FakeDriver(mode=mode, seed=1) as driver:
        address, asked, stream = driver.allocate(N), driver.shared_event(), driver.stream()
        x = Array.of(driver, np.arange(N) % 100, stream=stream)
        values = Array.of(driver, (np.arange(N) % 100).astype(np.uint8), stream=stream)
        driver.copy(address, values.address, N, stream)
        pipe.send((driver.export_memory(address), driver.export_event(asked)))
        finished = driver.open_event(receive(pipe))
        back, read = driver.stream(), driver.event()
        for _ in range(3):
            driver.record(asked, stream)
            pipe.send(True)
            receive(pipe)
            driver.wait(back, finished)
            # The order after the operations before `asked` comes by way of the other process.
            driver.copy(values.address, address, N, back)
            driver.record(read, back)
            driver.wait(stream, read)  # the other process writes again after that
        driver.synchronize(finished)
        assert driver.done(finished)
        end = driver.event()
        driver.record(end, back)
        driver.synchronize(end)
        assert driver.read(values.address, N) == ((np.arange(N) % 100 + 3).astype("u1")).tobytes()
        assert x.get().tolist() == (np.arange(N) % 100).tolist()
        with pytest.raises(StillInUse, match="another process"):
            driver.free(address)
        driver.forget()
        pipe.send(False)
        assert receive(pipe) == "closed"
        driver.free(address)
        pipe.send(True)
        for event in (end, read, asked, finished):
            driver.end_event(event)
        driver.end_stream(stream)
        driver.end_stream(back)


def read_too_early(pipe: Connection) -> None:
    """Read memory that another process has not written yet: with its event, and then without."""
    with FakeDriver(mode="lazy") as driver:
        memory, written = receive(pipe)
        address, event = driver.open_memory(memory), driver.open_event(written)
        ordered, other = driver.stream(), driver.stream()
        target = driver.allocate(N)
        driver.wait(ordered, event)
        driver.copy(target, address, N, ordered)
        second = driver.allocate(N)
        with pytest.raises(
            Race, match=r"read of bytes 0 to 10000 .* earlier write of .*have no order"
        ):
            driver.copy(second, address, N, other)
        driver.forget()
        pipe.send("found")
        receive(pipe)
        done = driver.event()
        driver.record(done, ordered)
        driver.synchronize(done)
        driver.close_memory(address)
        for each in (event, done):
            driver.end_event(each)
        for each in (target, second):
            driver.free(each)
        for each in (ordered, other):
            driver.end_stream(each)
        pipe.send("closed")


def test_races_with_other_processes_are_found():
    go, options = until_told()
    with other(read_too_early) as pipe, FakeDriver(mode="fast", **options) as driver:
        address, source, written = driver.allocate(N), driver.allocate(N), driver.shared_event()
        stream = driver.stream()
        handle = driver.export_memory(address)
        driver.launch(driver.kernel("", "wait"), 1, 1, b"", stream)
        driver.copy(address, source, N, stream)
        driver.record(written, stream)
        pipe.send((handle, driver.export_event(written)))
        assert receive(pipe) == "found"
        with pytest.raises(Race, match=r"write of bytes 0 to 10000 .* earlier read of bytes"):
            driver.copy(address, source, N, stream)
        driver.forget()
        go.set()
        pipe.send(True)
        assert receive(pipe) == "closed"
        driver.synchronize(written)
        for each in (address, source):
            driver.free(each)
        driver.end_event(written)
        driver.end_stream(stream)


def refuse(pipe: Connection) -> None:
    """Try what must fail with memory and events of another process."""
    driver = FakeDriver(deadline=0.2)
    freed, ended, event, stuck = receive(pipe)
    for open_it, handle in (
        (driver.open_memory, freed),
        (driver.open_event, ended),
        (driver.open_memory, event),
        (driver.open_memory, b"short"),
    ):
        with pytest.raises(InvalidHandle):
            open_it(handle)
    stream, opened, dead = driver.stream(), driver.open_event(stuck), driver.open_event(event)
    assert not driver.done(opened)
    with pytest.raises(Stalled, match="for another process"):
        driver.synchronize(opened)
    driver.forget()
    driver.wait(stream, opened)
    time.sleep(0.4)
    with pytest.raises(Stalled, match="the wait on stream"):
        driver.done(opened)
    driver.forget()
    pipe.send(True)
    receive(pipe)
    with pytest.raises(InvalidHandle, match="ended by the process"):
        driver.wait(stream, dead)
    driver.close()


def test_handles_of_what_is_no_more():
    go, options = until_told()
    with FakeDriver(mode="fast", **options) as driver, other(refuse) as pipe:
        address, ended, event = driver.allocate(100), driver.shared_event(), driver.shared_event()
        freed, over = driver.export_memory(address), driver.export_event(ended)
        for open_it, handle in ((driver.open_memory, freed), (driver.open_event, over)):
            with pytest.raises(InvalidHandle, match="in the process that made it"):
                open_it(handle)
        driver.forget()
        driver.free(address)
        driver.end_event(ended)
        stuck = driver.shared_event()
        stream = driver.stream()
        driver.launch(driver.kernel("", "wait"), 1, 1, b"", stream)
        driver.record(stuck, stream)
        pipe.send((freed, over, driver.export_event(event), driver.export_event(stuck)))
        assert receive(pipe)
        driver.end_event(event)
        pipe.send(True)
        go.set()
        driver.synchronize(stuck)
        driver.end_event(stuck)
        driver.end_stream(stream)
