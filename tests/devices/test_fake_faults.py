"""Faults that the fake GPU finds: a table of calls, and of the error that the last one raises."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_arrays import Array
from fake_errors import (
    InvalidAddress,
    InvalidArgument,
    InvalidHandle,
    Leak,
    Race,
    StillInUse,
    WrongDevice,
)
from fake_gpu import FakeDriver
from fake_memory import POISON
from fake_order import MODES

MOVE = "d.copy(y.address, x.address, 64, {})"
AFTER = "d.record(e, 0); d.wait(one, e); "  # the first stream waits for the default one
STAGE = "d.copy(a, p.address, 64, 0); "

# Programs, the error of their last statement, and its text. `a` has 1000 bytes, and `b` 2000;
# `p` is pinned memory, `x` an array that is written on the default stream, and `y` another one.
# `far` is a stream of the second device.
FAULTS = {
    # Addresses.
    "d.copy(a + 500, b, 501, 0)": (InvalidAddress, "bytes 500 to 1001 cross the end of"),
    "d.copy_rows(a, 100, b, 200, 50, 11, 0)": (InvalidAddress, "cross the end"),
    "d.copy(a, host.ctypes.data, 9, 0)": (InvalidAddress, "which no device knows"),
    "d.free(host.ctypes.data)": (InvalidAddress, "free of .* no device knows"),
    "d.free(a + 8)": (InvalidAddress, "in the middle"),
    "d.free_pinned(a)": (InvalidAddress, "which is for pinned memory"),
    "d.close_memory(a)": (InvalidAddress, "which is for imported memory"),
    "d.export_memory(a + 512)": (InvalidAddress, "in the middle"),
    "d.free(a); d.free(a)": (
        InvalidAddress,
        "free after free.*made at .*faults.*freed at <string>",
    ),
    "d.free(a); d.copy(b, a + 7, 9, 0)": (InvalidAddress, "use after free"),
    "d.free(a); d.place(a)": (InvalidAddress, "use after free"),
    "memset(p.address + 64, 1, 1); p.free()": (InvalidAddress, "past the end of 64 bytes"),
    # Arguments and handles.
    "d.allocate(0)": (InvalidArgument, "memory of 0 bytes"),
    "d.copy(a, a + 500, -1, 0)": (InvalidArgument, "rows of -1 bytes"),
    "d.copy(a, a + 50, 51, 0)": (InvalidArgument, "between overlapping bytes"),
    "d.copy_rows(a, 9, b, 10, 10, 2, 0)": (InvalidArgument, "with pitches 9 and 10"),
    "d.kernel('', 'none')": (InvalidArgument, "made without compile_kernel"),
    "with d.capturing(one): d.record(e, one)": (InvalidArgument, "captured"),
    "d.end_event(e); d.end_event(e)": (InvalidHandle, "event .* was ended"),
    "d.end_event(e); d.record(e, 0)": (InvalidHandle, "event .* was ended"),
    "d.end_event(e); d.done(e)": (InvalidHandle, "event .* was ended"),
    "d.end_stream(one); d.end_stream(one)": (InvalidHandle, "stream .* was ended"),
    "d.end_stream(one); d.wait(one, e)": (InvalidHandle, "stream .* was ended"),
    "d.end_stream(0)": (InvalidHandle, "is not one of"),
    "d.export_event(e)": (InvalidHandle, "not made by `shared_event`"),
    "d.on(2).__enter__()": (WrongDevice, "no device 2"),
    "d.record(e, far)": (WrongDevice, "event of device 0"),
    # The memory in use.
    STAGE + "d.free(a)": (StillInUse, "is in flight"),
    STAGE + "p.free()": (StillInUse, "is in flight"),
    AFTER + "d.copy(a, x.address, 64, one); del x; gc.collect(); d.event()": (
        Race,
        "the end of an",
    ),
    # Streams without an order. Those that wait for the default stream have one with it.
    MOVE.format("one"): (Race, "read of .* earlier write of .* by fill on stream 0x0"),
    MOVE.format("d.blocking_stream()") + "; d.copy(y.address, b, 64, one)": (Race, "no order"),
    AFTER + MOVE.format("one") + "; x.put(2.0)": (Race, "write of .* earlier read of"),
    "d.export_memory(a); d.copy(a, b, 64, 0); d.copy(a, b, 64, one)": (Race, "have no order"),
    # The host.
    "d.read(x.address, 8)": (Race, "the host reads"),
    "d.drain(0); d.read(x.address, 8); " + MOVE.format(0) + "; d.read(x.address, 8);"
    "d.write(x.address, bytes(8))": (Race, "the host writes"),
    # Memory without pages of its own cannot be protected, but its bytes are compared.
    STAGE + "p.array[9] = 4; d.drain(0)": (Race, "the host wrote into bytes 0 to 64"),
}


def world(driver: FakeDriver) -> dict[str, Any]:
    """Return what the programs use."""
    with driver.on(1):
        far = driver.stream()
    return {
        "d": driver,
        "a": driver.allocate(1000),
        "b": driver.allocate(2000),
        "p": driver.pinned(64),
        "one": driver.stream(),
        "far": far,
        "e": driver.event(),
        "x": Array.of(driver, np.ones(8)),
        "y": Array(driver, (8,), "float64"),
        "host": np.zeros(100, np.uint8),
        "memset": ctypes.memset,
        "gc": gc,
    }


@pytest.mark.parametrize("program", FAULTS)
def test_a_fault_is_found(lazy: FakeDriver, program: str):
    error, text = FAULTS[program]
    names = world(lazy)
    before, _, last = program.rpartition(";")
    exec(before, names)
    assert not lazy.faults
    with pytest.raises(error, match=text):
        exec(last.strip(), names)


RIGHT = (
    "d.copy(a + 500, b + 1500, 500, 0)",
    "d.copy(a, a, 0, 0)",
    "d.wait(far, e)",  # as CUDA has it, this may cross devices
    "d.copy(p.address, a, 64, one); assert (p.array == POISON).all()",  # until it has run
    "with d.capturing(one): assert d.is_capturing(one)",
    "assert not d.is_capturing(one); d.record(e, one)",
)


def test_what_is_no_fault(lazy: FakeDriver):
    names = world(lazy) | {"POISON": POISON}
    for program in RIGHT:
        exec(program, names)
    assert not lazy.faults


@pytest.mark.parametrize("mode", MODES)
def test_a_missing_wait_is_found_however_long_it_took(mode: str):
    with FakeDriver(mode=mode) as driver:
        x, y = Array.of(driver, np.ones(64)), Array(driver, (64,), "float64")
        stream = driver.stream()
        time.sleep(0.01)
        with pytest.raises(Race) as caught:
            driver.copy(y.address, x.address, 512, stream)
        text = str(caught.value)
        assert "read of bytes 0 to 512 by copy on stream" in text
        assert "earlier write of bytes 0 to 512 by fill on stream 0x0" in text
        assert text.count("test_fake_faults.py:") == 3
        with pytest.raises(Race):
            driver.check_nothing_left()
        assert len(driver.forget()) == 1
        driver.end_stream(stream)


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
