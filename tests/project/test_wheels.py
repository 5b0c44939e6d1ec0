"""The wheels that ``make wheels`` puts together, with a file in place of a core."""

import base64
import csv
import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "wheels"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="it needs the sources")

INFO = "collectives_mpi-9.9.dist-info"
MODULE = "_core.cpython-313-aarch64-linux-gnu.so"


@pytest.fixture
def build(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    return pytest.importorskip("make_wheels")


@pytest.fixture
def made(build, tmp_path):
    pure, core = tmp_path / "collectives_mpi-9.9-py3-none-any.whl", tmp_path / "core.so"
    core.write_bytes(b"machine code")
    with zipfile.ZipFile(pure, "w") as file:
        file.writestr("collectives/__init__.py", "version = 9.9\n")
        file.writestr(
            f"{INFO}/METADATA", "Metadata-Version: 2.1\nName: collectives-mpi\nVersion: 9.9\n"
        )
        file.writestr(f"{INFO}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        file.writestr(f"{INFO}/RECORD", "collectives/__init__.py,,\n")
    (tmp_path / "out").mkdir()
    return build.packed(pure, core, MODULE, "cp313-cp313-linux_aarch64", tmp_path / "out")


def test_a_wheel_has_the_core_and_its_tag(made):
    assert made.name == "collectives_mpi-9.9-cp313-cp313-linux_aarch64.whl"
    with zipfile.ZipFile(made) as file:
        assert file.read(f"collectives/{MODULE}") == b"machine code"
        about = file.read(f"{INFO}/WHEEL").decode().splitlines()
    assert "Tag: cp313-cp313-linux_aarch64" in about
    assert "Root-Is-Purelib: false" in about


def test_the_record_has_each_file_once_with_its_hash(made):
    with zipfile.ZipFile(made) as file:
        rows = list(csv.reader(file.read(f"{INFO}/RECORD").decode().splitlines()))
        assert sorted(row[0] for row in rows) == sorted(file.namelist())
        for name, digest, size in rows:
            data = file.read(name)
            if name == f"{INFO}/RECORD":
                assert (digest, size) == ("", "")
                continue
            found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
            assert (digest, size) == (f"sha256={found}", str(len(data)))


def test_equal_sources_make_equal_wheels(build, made, tmp_path):
    again = tmp_path / "again"
    again.mkdir()
    pure, core = tmp_path / "collectives_mpi-9.9-py3-none-any.whl", tmp_path / "core.so"
    other = build.packed(pure, core, MODULE, "cp313-cp313-linux_aarch64", again)
    assert other.read_bytes() == made.read_bytes()


def test_a_command_that_warns_ends_the_build(build):
    code = "import sys; sys.stderr.write('core.c:1: warning: unused'); print('made')"
    with pytest.raises(SystemExit, match="warning: unused"):
        build.run(sys.executable, "-c", code)
    assert build.run(sys.executable, "-c", "print('made')") == "made\n"


def test_headers_are_those_of_the_version(build, tmp_path, monkeypatch):
    headers = sys.modules["python_headers"]
    include = tmp_path / "versions" / "3.99.1" / "include" / "python3.99"
    include.mkdir(parents=True)
    (include / "Python.h").touch()
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert headers.installed("3.99") == include
    assert headers.installed("3.98") is None
    assert not headers.is_whole(include)
    (include / "pyconfig.h").write_text("#include <x86_64-linux-gnu/python3.99/pyconfig.h>\n")
    assert not headers.is_whole(include), "Debian's has the settings elsewhere"
    (include / "pyconfig.h").write_text("#define SIZEOF_LONG 8\n")
    assert headers.is_whole(include)


def test_the_command_says_what_it_makes():
    told = subprocess.run(
        [sys.executable, FOLDER / "make_wheels.py", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "--machine" in told.stdout, told.stderr
