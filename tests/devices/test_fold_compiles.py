"""The fold kernels of devices compile for each kind of device, by NVRTC, without a device."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

import pytest
from usual import FULL

from collectives.devices import folds

DEVICES = ["sm_80", "sm_90", "sm_100"]
# One of each kind of element and of operation.
SOME = [("SUM", "float32"), ("SUM", "float16"), ("MIN", "bfloat16"), ("PROD", "complex128")]
SOME += [("LAND", "uint8"), ("MAX", "float64")]


def found():
    """Return the path of NVRTC, as its packages on PyPI install it."""
    for folder in map(Path, sys.path):
        for library in folder.glob("nvidia/*/lib/libnvrtc.so.*"):
            return library
    return None


class Compiler:
    """NVRTC, as far as it is needed here."""

    def __init__(self, path):
        self.library = ctypes.CDLL(str(path))

    def text(self, program, what):
        """Return what a program has after it was compiled: ``PTX``, ``CUBIN``, ``ProgramLog``."""
        size = ctypes.c_size_t()
        assert getattr(self.library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
        text = ctypes.create_string_buffer(size.value)
        assert getattr(self.library, f"nvrtcGet{what}")(program, text) == 0
        return text.raw

    def compile(self, source, *options):
        """Return the log, the PTX and the binary of a source."""
        program = ctypes.c_void_p()
        words = (ctypes.c_char_p * len(options))(*(each.encode() for each in options))
        made = self.library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"fold.cu", 0, None, None
        )
        assert made == 0
        try:
            status = self.library.nvrtcCompileProgram(program, len(options), words)
            log = self.text(program, "ProgramLog").rstrip(b"\0").decode()
            assert status == 0, log
            return log, self.text(program, "PTX").decode(), self.text(program, "CUBIN")
        finally:
            self.library.nvrtcDestroyProgram(ctypes.byref(program))


@pytest.fixture(scope="module")
def compiler():
    path = found()
    if path is None:
        pytest.skip("NVRTC is not installed (pip install nvidia-cuda-nvrtc-cu12)")
    return Compiler(path)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("op", "dtype"), folds.PAIRS if FULL else SOME)
def test_a_kernel_compiles_without_a_warning(compiler, op, dtype, device):
    """NVRTC cannot make errors of warnings, so its log has to be empty."""
    options = (f"--gpu-architecture={device}", "--std=c++17", "--ftz=true")  # as CuPy has them
    log, ptx, binary = compiler.compile(folds.source(op, dtype), *options)
    assert log.strip() == ""
    assert f".entry {folds.kernel_name(op, dtype)}(" in ptx
    assert len(binary) > 1000
    # Two roundings are not one, and subnormals stay; a test for NaN may take them for zero.
    assert not re.search(r"\bfma\.|\bmad\.\w+\.f", ptx)
    assert set(re.findall(r"\S+\.ftz\.\S+", ptx)) <= {"setp.nan.ftz.f32", "setp.num.ftz.f32"}
    # Vectors, and nothing that lies in memory though it should lie in registers.
    assert re.search(r"ld\.global\.v[24]\.[a-z]\d+", ptx)
    assert re.search(r"st\.global\.v[24]\.[a-z]\d+", ptx)
    assert ".local" not in ptx


def test_a_warning_would_be_seen(compiler):
    """The test above relies on it."""
    text = folds.source("SUM", "float32") + "__global__ void kernel() { int unused; }\n"
    log, _, _ = compiler.compile(text, "--gpu-architecture=sm_90")
    assert "declared but never referenced" in log
