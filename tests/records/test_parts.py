"""The folder of a timeline's tapes where others can write, too: nothing of theirs is followed."""

import json
import os
import stat

import pytest
from programs import program

from collectives.errors import ArgumentError
from collectives.records import parts, tracefile

CALLS = """
import numpy as np, collectives as cc
comm = cc.world()
for _ in range(3):
    comm.allreduce(np.ones(3))
"""


@pytest.fixture
def shared(tmp_path):
    """Return a folder in which everybody can write, without the sticky bit."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    return folder


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_text("mine")
    path.chmod(0o600)
    return path


def intact(victim):
    return victim.read_text() == "mine" and stat.S_IMODE(victim.stat().st_mode) == 0o600


def test_the_folder_is_ours_alone(shared):
    tracefile.create(shared / "out.json", "token", ["a"])
    folder = parts.folder(shared / "out.json")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    with parts.Parts(shared / "out.json") as tapes:
        os.close(tapes.create("0.records", os.O_RDWR))
        assert stat.S_IMODE((folder / "0.records").stat().st_mode) == 0o600
        with pytest.raises(FileExistsError):
            tapes.create("0.records", os.O_RDWR)


@pytest.mark.parametrize("planted", ["out.json", "out.json.parts"])
def test_links_to_files_and_folders(shared, victim, planted):
    """As seen: a 0600 file of root was overwritten through out.json.parts/1.json."""
    (shared / planted).symlink_to(victim)
    path = shared / "out.json"
    if planted == "out.json":
        tracefile.create(path, "token", ["a"])
        assert tracefile.token(path) == "token"
    else:
        with pytest.raises(ArgumentError, match=r"out.json.parts is not a folder of this user"):
            tracefile.create(path, "token", ["a"])
    assert intact(victim)


def test_a_link_to_a_folder(shared, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (shared / "out.json.parts").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArgumentError, match="remove it, or choose another path"):
        tracefile.create(shared / "out.json", "token", ["a"])
    assert os.listdir(tmp_path / "elsewhere") == []
    assert tracefile.complete(shared / "out.json") == ([], [])


@pytest.mark.parametrize("name", ["0.json", "0.records"])
def test_a_link_inside(shared, victim, name):
    """In a folder of our own, from before; also a tape is not opened through a link."""
    path = shared / "out.json"
    tracefile.create(path, "token", ["a"])
    (shared / "out.json.parts" / name).symlink_to(victim)
    with parts.Parts(path) as tapes:
        with pytest.raises(FileExistsError):
            tapes.create(name, os.O_WRONLY)
        with pytest.raises(OSError, match="symbolic links"):
            tapes.open(name)
    assert intact(victim)


def test_the_timeline_is_exchanged_for_a_link(shared, victim):
    path = shared / "out.json"
    tracefile.create(path, "token", ["a"])
    path.unlink()
    path.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links"):
        tracefile.add(path, ["{}"])
    path.unlink()
    path.hardlink_to(victim)
    with pytest.raises(OSError, match="not a file of its own"):
        tracefile.add(path, ["{}"])
    assert intact(victim)


def test_a_pipe_is_no_timeline(shared):
    os.mkfifo(shared / "out.json")
    assert tracefile.token(shared / "out.json") is None  # and does not wait for a writer


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make folders of other users")
def test_a_folder_of_another_user(shared, victim):
    folder = shared / "out.json.parts"
    folder.mkdir()
    (folder / "1.json").symlink_to(victim)
    os.chown(folder, 12345, 12345)
    with pytest.raises(ArgumentError, match="is not a folder of this user"):
        tracefile.create(shared / "out.json", "token", ["a"])
    assert tracefile.complete(shared / "out.json") == ([], [])
    assert os.listdir(folder) == ["1.json"]


def test_what_a_tape_without_its_other_file_leaves(shared):
    """A rank died between the two; the next timeline of the name starts afresh."""
    path = shared / "out.json"
    tracefile.create(path, "token", ["a"])
    (shared / "out.json.parts" / "0.json").write_text("{}")
    (shared / "out.json.parts" / "1.records").write_text("")
    tracefile.create(path, "another", ["a"])
    assert os.listdir(shared / "out.json.parts") == []
    (shared / "out.json.parts" / "1.records").write_text("")
    assert tracefile.complete(path) == ([1], [])
    assert os.listdir(shared) == ["out.json"]


@pytest.mark.each_mpi("mpich")
@pytest.mark.parametrize("planted", ["out.json", "out.json.parts", "out.json.parts/1.json"])
def test_a_whole_program(shared, victim, planted):
    (shared / planted).parent.mkdir(exist_ok=True)
    (shared / planted).symlink_to(victim)
    if planted == "out.json.parts/1.json" and os.geteuid() == 0:
        os.chown(shared / "out.json.parts", 12345, 12345)
    path = shared / "out.json"
    result = program(CALLS, 2, env={"COLLECTIVES_TIMELINE": str(path)})
    assert intact(victim)
    if result.status == 0:
        loaded = json.loads(path.read_text())
        assert {each["pid"] for each in loaded["traceEvents"]} == {0, 1}
        assert os.listdir(shared) == ["out.json"]
    else:
        assert "is not a folder of this user; remove it, or choose another path" in result.err
