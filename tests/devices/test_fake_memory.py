"""What the fake GPU finds wrong with memory: by its driver, and when the host touches it."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from fake_errors import (
    InvalidAddress,
    InvalidArgument,
    Leak,
    Race,
    StillInUse,
)
from fake_gpu import FakeDriver
from fake_memory import PAGE, POISON, Span

N = 3 * PAGE


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


# -- memory ----------------------------------------------------------------------------------------


def test_addresses_that_are_wrong(lazy: FakeDriver):
    address, other = lazy.allocate(1000), lazy.allocate(2000)
    outside = np.zeros(100, np.uint8)
    lazy.copy(address + 500, other + 1500, 500, 0)
    for provoke, text in (
        (lambda: lazy.copy(address + 500, other, 501, 0), "bytes 500 to 1001 cross the end of"),
        (lambda: lazy.copy_rows(address, 100, other, 200, 50, 11, 0), "cross the end"),
        (lambda: lazy.copy(address, outside.ctypes.data, 9, 0), "which no device knows"),
        (lambda: lazy.free(outside.ctypes.data), "free of .* no device knows"),
        (lambda: lazy.free(address + 8), "in the middle"),
        (lambda: lazy.free_pinned(address), "which is for pinned memory"),
        (lambda: lazy.close_memory(address), "which is for imported memory"),
        (lambda: lazy.export_memory(address + 512), "in the middle"),
    ):
        with pytest.raises(InvalidAddress, match=text):
            provoke()
    lazy.drain(0)
    lazy.free(address)
    for provoke, text in (
        (lambda: lazy.free(address), "free after free.*made at .*freed at .*test_fake_memory"),
        (lambda: lazy.copy(other, address + 7, 9, 0), "use after free"),
        (lambda: lazy.place(address), "use after free"),
    ):
        with pytest.raises(InvalidAddress, match=text):
            provoke()


def test_arguments_that_are_wrong(lazy: FakeDriver):
    address = lazy.allocate(1000)
    for provoke in (
        lambda: lazy.allocate(0),
        lambda: lazy.copy(address, address + 500, -1, 0),
        lambda: lazy.copy(address, address + 50, 51, 0),
        lambda: lazy.copy_rows(address, 9, address + 500, 10, 10, 2, 0),
        lambda: lazy.kernel("", "none"),
    ):
        with pytest.raises(InvalidArgument):
            provoke()
    lazy.copy(address, address, 0, 0)


def test_memory_in_use_is_not_freed(driver: FakeDriver):
    address, pinned = driver.allocate(N), driver.pinned(N)
    driver.copy(address, pinned.address, N, 0)
    for free in (pinned.free, lambda: driver.free(address)):
        with pytest.raises(StillInUse, match="is in flight"):
            free()
    driver.forget()
    driver.drain(0)
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


def test_leaks_are_found():
    made = {
        "100 bytes [(]device[)]": lambda driver: driver.allocate(100),
        "100 bytes [(]pinned[)]": lambda driver: driver.pinned(100),
        "stream 0x.* made at": lambda driver: driver.stream(),
        "an event that was": lambda driver: driver.event(),
    }
    for text, make in made.items():
        with pytest.raises(Leak, match=text), FakeDriver() as driver:
            make(driver)


def test_what_is_written_past_the_end_is_found(lazy: FakeDriver):
    pinned = lazy.pinned(1000)
    ctypes.memset(pinned.address + 1000, 1, 1)
    with pytest.raises(InvalidAddress, match="past the end of 1000 bytes"):
        pinned.free()


# -- the host touches what it must not -------------------------------------------------------------


# Each program runs in a child of its own, and has a lazy driver.
RUNNER = """
import ctypes, os, sys, traceback
from fake_gpu import FakeDriver
for program in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            driver = FakeDriver(mode="lazy")
            exec(program)
            driver.close()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
COPY = "p = driver.pinned(3 * 4096); d = driver.allocate(3 * 4096)\ndriver.copy({}, 12288, 0)\n"
OUT, IN = COPY.format("p.address, d"), COPY.format("d, p.address")
SEEN = "e = driver.event(); driver.record(e, 0); driver.synchronize(e)\n"
FATAL = {
    "ctypes.string_at(driver.allocate(100), 1)": True,
    OUT + "p.array[5000]": True,
    OUT + SEEN + "p.array[5000] = 1": False,
    IN + "p.array[5000] = 1": True,
    IN + "p.array[5000]; " + SEEN + "p.array[5000] = 1": False,
    "p = driver.pinned(5000); p.free(); p.array[0]": True,
    "d = driver.allocate_managed(8192); driver.fill(d, bytes(8192), 0)\n"
    "ctypes.memset(d + 4096, 1, 1)": True,
}


def test_host_accesses_end_the_process():
    """Of device memory, of pages that a device uses, and of memory that was given back."""
    result = subprocess.run(
        [sys.executable, "-c", RUNNER, *FATAL],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    statuses = [int(line) for line in result.stdout.split()]
    wanted = [-signal.SIGSEGV if is_fatal else 0 for is_fatal in FATAL.values()]
    assert statuses == wanted, result.stderr
    assert "Segmentation fault" in result.stderr  # and faulthandler says where


def test_small_pinned_memory_is_watched(lazy: FakeDriver):
    """What is not on pages of its own cannot be protected, but its bytes are compared."""
    pinned, address = lazy.pinned(64), lazy.allocate(64)
    lazy.copy(pinned.address, address, 64, 0)
    assert (pinned.array == POISON).all()
    lazy.drain(0)
    pinned.array[:] = 3
    lazy.copy(address, pinned.address, 64, 0)
    pinned.array[9] = 4
    with pytest.raises(Race, match="the host wrote into bytes 0 to 64"):
        lazy.drain(0)
