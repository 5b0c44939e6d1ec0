"""The fake GPU runs correct programs, whenever its streams run; what it is for, it finds.

`test_fake_faults` has what it finds wrong, each in a program of a few calls.
"""

from __future__ import annotations

import ctypes
import gc
import inspect
import random
import struct
import threading
import time

import numpy as np
import pytest
from fake_arrays import Array
from fake_errors import (
    InvalidAddress,
    InvalidArgument,
    Race,
    Stalled,
    WrongDevice,
)
from fake_gpu import Accesses, FakeDriver
from fake_memory import PAGE, POISON, Span
from fake_order import MODES

from collectives.devices.driver import Driver

N = 3 * PAGE


def after(driver: FakeDriver, stream: int, other: int) -> None:
    """Let a stream wait for another one."""
    event = driver.event()
    driver.record(event, other)
    driver.wait(stream, event)
    driver.end_event(event)


def test_it_has_the_calls_of_the_protocol():
    calls = [name for name in vars(Driver) if not name.startswith("_")]
    assert len(calls) > 20
    for name in calls:
        asked = inspect.signature(getattr(Driver, name)).parameters
        assert list(inspect.signature(getattr(FakeDriver, name)).parameters) == list(asked), name


# -- correct programs ------------------------------------------------------------------------------


def test_a_round_trip_through_pinned_memory(driver: FakeDriver):
    values = np.random.default_rng(0).integers(0, 255, N, np.uint8)
    source, target = driver.allocate(N), driver.allocate(N)
    there, back = driver.pinned(N), driver.pinned(N)
    one, two = driver.stream(), driver.stream()
    for k in range(5):
        there.array[:] = values + np.uint8(k)
        driver.copy(source, there.address, N, one)
        after(driver, two, one)
        driver.copy(target, source, N, two)
        driver.copy(back.address, target, N, two)
        after(driver, one, two)
        driver.drain(two)
        assert np.array_equal(back.array, values + np.uint8(k))
    assert driver.read(target + 5, 3) == bytes(values[5:8] + np.uint8(4))
    for address in (source, target):
        driver.free(address)
    for pinned in (there, back):
        pinned.free()
    driver.end_stream(one)
    driver.end_stream(two)


def test_the_default_stream_waits_for_blocking_streams(driver: FakeDriver):
    blocking = driver.blocking_stream()
    x = Array.of(driver, np.ones(8), stream=blocking)
    default = Array(driver, (8,), "float64")
    driver.copy(default.address, x.address, 64, 0)
    assert default.get().tolist() == [1] * 8
    driver.end_stream(blocking)


def test_lazy_streams_run_only_what_is_asked_for():
    with FakeDriver(mode="lazy") as driver:
        one, two = driver.stream(), driver.stream()
        x, y = Array.of(driver, np.ones(3), stream=one), Array.of(driver, np.ones(3), stream=two)
        event, other = driver.event(), driver.event()
        driver.record(event, one)
        driver.record(other, two)
        time.sleep(0.02)
        assert not driver.done(event)
        while not driver.done(event):
            time.sleep(0.001)
        assert not driver.done(other)
        assert y.get().tolist() == x.get().tolist()
        for each in (event, other):
            driver.end_event(each)
        for each in (one, two):
            driver.end_stream(each)


# -- memory ----------------------------------------------------------------------------------------


def test_spans_with_pitch():
    rows = Span(100, 4, 10, 5)  # 100..104, 110..114, ..., 140..144
    assert not rows.overlaps(Span(104, 6, 10, 5))
    assert rows.overlaps(Span(113, 2))
    assert not rows.overlaps(Span(134, 6))
    assert not rows.overlaps(Span(144, 100))
    assert rows.overlaps(Span(0, 1000))
    assert rows.overlaps(Span(97, 4, 40, 2))
    assert not rows.overlaps(Span(95, 4, 40, 2))
    assert Span(0, 8, 8, 3).plain() == Span(0, 24)
    assert Span(0, 200).covers(rows)
    assert not rows.covers(Span(100, 5))


def test_new_memory_holds_no_zeros(driver: FakeDriver):
    address, pinned = driver.allocate(100), driver.pinned(100)
    assert driver.read(address, 100) == bytes([POISON]) * 100
    assert (pinned.array == POISON).all()
    assert address % 512 == pinned.address % 512 == 0
    driver.free(address)
    pinned.free()


def test_a_device_is_full():
    with FakeDriver(memory=1000) as driver:
        address = driver.allocate(600)
        with pytest.raises(MemoryError):
            driver.allocate(401)
        with driver.on(1):
            driver.free(driver.allocate(1000))
        driver.free(address)
        driver.free(driver.allocate(1000))


def test_addresses_may_come_again():
    with FakeDriver(reuses_addresses=True) as driver:
        address = driver.allocate(100)
        driver.free(address)
        assert driver.allocate(100) == address
        driver.free(address)


# -- devices and handles ---------------------------------------------------------------------------


def test_the_current_device_is_of_a_thread_and_is_restored(driver: FakeDriver):
    found = []

    def fail() -> None:
        with driver.on(1):
            thread = threading.Thread(target=lambda: found.append(driver.current))
            thread.start()
            thread.join()
            found.append(driver.current)
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [*found, driver.current] == [0, 1, 0]
    assert driver.devices() == 2


def test_places(driver: FakeDriver):
    with driver.on(1):
        address, managed = driver.allocate(10), driver.allocate_managed(10)
    pinned = driver.pinned(10)
    ours = np.zeros(3)
    assert driver.place(address + 9) == ("device", 1)
    assert driver.place(address + 10).kind == "host"
    assert driver.place(managed) == ("managed", 1)
    assert driver.place(pinned.address).kind == driver.place(ours.ctypes.data).kind == "host"
    ctypes.memset(managed, 3, 10)
    assert driver.read(managed, 10) == bytes([3]) * 10
    driver.free(address)
    driver.free(managed)
    pinned.free()


# -- races -----------------------------------------------------------------------------------------


def test_lazy_streams_lose_their_patience_if_they_have_one():
    with FakeDriver(mode="lazy", patience=0.01) as driver:
        x, event = Array.of(driver, np.ones(3)), driver.event()
        driver.record(event, 0)
        end = time.monotonic() + 10
        while not driver._events[event].op.is_done:
            assert time.monotonic() < end
            time.sleep(0.001)
        assert driver.done(event)
        assert driver.read(x.address, 24) == np.ones(3).tobytes()
        driver.end_event(event)


@pytest.mark.parametrize("seed", range(24))
def test_random_programs_have_the_races_that_their_graph_has(seed: int):
    """Without a race, they compute what the same calls compute one after another."""
    chance = random.Random(seed)
    with FakeDriver(mode=MODES[seed % 3], seed=seed) as driver:
        program = Program(driver, chance)
        for _ in range(80):
            program.step()
        program.end()
    assert program.races > 3


class Program:
    """Random calls, with the graph of their order."""

    def __init__(self, driver: FakeDriver, chance: random.Random) -> None:
        self.driver, self.chance, self.races = driver, chance, 0
        self.memory = [driver.allocate(64) for _ in range(6)]
        self.values = [np.full(64, POISON, np.uint8) for _ in self.memory]
        for k in range(6):
            self.values[k][:] = k
            driver.write(self.memory[k], bytes(self.values[k]))
        self.streams = {driver.stream(): frozenset() for _ in range(3)}
        self.events = {driver.event(): frozenset() for _ in range(3)}
        self.seen: frozenset[int] = frozenset()  # by the host
        self.done: list[tuple[tuple[int, set[int]], tuple[int, set[int]]]] = []

    def step(self) -> None:
        kinds = ["copy", "record", "wait", "synchronize", "done"]
        kind = self.chance.choices(kinds, [12, 6, 6, 1, 1])[0]
        stream, event = self.chance.choice([*self.streams]), self.chance.choice([*self.events])
        if kind == "copy":
            self.copy(stream)
        elif kind == "record":
            self.driver.record(event, stream)
            self.events[event] = self.streams[stream] | self.seen
        elif kind == "wait":
            self.driver.wait(stream, event)
            self.streams[stream] |= self.events[event]
        else:
            if kind == "synchronize":
                self.driver.synchronize(event)
            while not self.driver.done(event):
                time.sleep(0.0005)
            self.seen |= self.events[event]

    def copy(self, stream: int) -> None:
        to, of = self.chance.sample(range(6), 2)
        width, rows = self.chance.randint(1, 8), self.chance.randint(1, 4)
        pitches = [self.chance.randint(width, 12) for _ in range(2)]
        begins = [self.chance.randint(0, 16) for _ in range(2)]
        places = [
            [begin + row * pitch + k for row in range(rows) for k in range(width)]
            for begin, pitch in zip(begins, pitches, strict=True)
        ]
        writes, reads = (to, {*places[0]}), (of, {*places[1]})
        before = self.streams[stream] | self.seen
        is_race = any(
            number not in before and (meets(writes, w) or meets(writes, r) or meets(reads, w))
            for number, (w, r) in enumerate(self.done)
        )
        call = (self.memory[to] + begins[0], pitches[0], self.memory[of] + begins[1], pitches[1])
        if is_race:
            self.races += 1
            with pytest.raises(Race):
                self.driver.copy_rows(*call, width, rows, stream)
            self.driver.forget()
            return
        self.driver.copy_rows(*call, width, rows, stream)
        self.values[to][places[0]] = self.values[of][places[1]]
        self.streams[stream] = before | {len(self.done)}
        self.done.append((writes, reads))

    def end(self) -> None:
        for stream in self.streams:
            self.driver.drain(stream)
            self.driver.end_stream(stream)
        for event in self.events:
            self.driver.end_event(event)
        for address, values in zip(self.memory, self.values, strict=True):
            assert self.driver.read(address, 64) == bytes(values)
            self.driver.free(address)


def meets(one: tuple[int, set[int]], other: tuple[int, set[int]]) -> bool:
    """Return whether both are bytes of the same memory, and have one in common."""
    return one[0] == other[0] and bool(one[1] & other[1])


def test_an_array_may_go_in_the_order_of_its_stream(driver: FakeDriver):
    x, target = Array.of(driver, np.ones(8)), driver.allocate(64)
    driver.copy(target, x.address, 64, 0)
    address = x.address
    del x
    gc.collect()
    with pytest.raises(InvalidAddress, match="after free"):
        driver.copy(target, address, 64, 0)
    driver.forget()
    driver.drain(0)
    driver.free(target)


# -- failures of streams ---------------------------------------------------------------------------


def test_what_fails_on_a_stream_is_raised_by_the_next_calls(lazy: FakeDriver):
    x, y = Array.of(lazy, np.ones(8)), Array(lazy, (8,), "float64")
    lazy.fail_next("copy", OSError("burnt"), on_device=True)
    lazy.copy(y.address, x.address, 64, 0)
    for _ in range(2):
        with pytest.raises(OSError, match="burnt"):
            lazy.drain(0)
    lazy.fail_next("allocate", MemoryError())
    lazy.forget()
    with pytest.raises(MemoryError):
        lazy.allocate(5)
    lazy.free(lazy.allocate(5))


def slow(source: str, name: str):
    return lambda blocks, threads, arguments: time.sleep(blocks / 10)


def test_nothing_is_waited_for_beyond_the_deadline():
    options = {"compile_kernel": slow, "accesses": lambda name, arguments: Accesses()}
    with FakeDriver(mode="fast", deadline=0.2, **options) as driver:
        driver.launch(driver.kernel("", "slow"), 5, 1, b"", 0)
        with pytest.raises(Stalled, match=r"host waited 0.2 s for drain on stream 0x0.*fake_gpu"):
            driver.drain(0)
        time.sleep(0.5)
        assert driver.forget()


# -- kernels ---------------------------------------------------------------------------------------

ARGUMENTS = struct.Struct("<QQQ")  # target, source, number of values


def compile_increment(source: str, name: str):
    """Return a kernel that writes source + 1 into target; a stand-in for one in C++."""
    assert (source, name) == ("// source", "increment")

    def run(blocks: int, threads: int, arguments: bytes) -> None:
        target, source, n = ARGUMENTS.unpack(arguments)
        numbers = ctypes.c_int64 * n
        for k in range(n):
            numbers.from_address(target)[k] = numbers.from_address(source)[k] + 1

    return run


def increments(name: str, arguments: bytes) -> Accesses:
    target, source, n = ARGUMENTS.unpack(arguments)
    return Accesses(reads=[(source, 8 * n)], writes=[(target, 8 * n)], pointers=[0, 8])


@pytest.mark.parametrize("mode", MODES)
def test_kernels(mode: str):
    with FakeDriver(mode=mode, compile_kernel=compile_increment, accesses=increments) as driver:
        x, y = Array.of(driver, np.arange(10)), Array(driver, (10,), "int64")
        kernel = driver.kernel("// source", "increment")
        assert driver.kernel("// source", "increment") is kernel
        for target, source in ((y, x), (y, y)):
            arguments = ARGUMENTS.pack(target.address, source.address, 10)
            driver.launch(kernel, 2, 32, arguments, 0)
        assert y.get().tolist() == list(range(2, 12))
        wrong = [(Race, 2, arguments, driver.stream()), (InvalidArgument, 0, arguments, 0)]
        wrong += [(InvalidAddress, 1, ARGUMENTS.pack(y.address, x.address, 11), 0)]
        driver.launch(kernel, 1, 1, arguments, 0)
        for error, blocks, each, stream in wrong:
            with pytest.raises(error):
                driver.launch(kernel, blocks, 32, each, stream)
        with driver.on(1), pytest.raises(WrongDevice, match="kernel increment belongs"):
            driver.launch(kernel, 1, 1, arguments, 0)
        with driver.on(1), pytest.raises(WrongDevice, match="a kernel on device 1 uses"):
            driver.launch(driver.kernel("// source", "increment"), 1, 1, arguments, 0)
        driver.forget()
        driver.end_stream(wrong[0][3])
