"""Files that users name: whole or not at all, and never through a link."""

import errno
import json
import os
import re
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from jobs import line_of

from collectives.text import files


@pytest.fixture
def victim(tmp_path):
    """Return a file of ours that nobody else may change."""
    path = tmp_path / "victim"
    path.write_text("mine")
    path.chmod(0o600)
    return path


def test_a_file_is_new_or_replaced(tmp_path):
    path = tmp_path / "out.json"
    files.write(path, "é\n")
    assert path.read_bytes() == b"\xc3\xa9\n"
    files.write(str(path), b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert os.listdir(tmp_path) == ["out.json"]


def test_a_lock_that_is_not_given_back(tmp_path):
    """A process that waits names the holder; the end of the other process opens the lock."""
    path = str(tmp_path / "out")
    program = f"""if True:
        import os
        from collectives.text import files
        with files.locked({path!r}, 1):
            print(flush=True)
            input()
            os._exit(0)
    """
    holder = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    line_of(holder)
    wanted = pytest.raises(TimeoutError, match=r"another process has kept .*/.out.lock locked")
    with wanted, files.locked(path, 0.1):
        pass
    holder.communicate(b"\n", timeout=100)
    with files.locked(path, 0.1):
        assert os.listdir(tmp_path) == [".out.lock"]
    assert os.listdir(tmp_path) == []


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def flock(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with files.locked(str(tmp_path / "out"), 0.1):
        pass


def test_rows_of_measurements_have_a_line_each(tmp_path):
    rows = [{"bytes": 8, "times": [1.5, {"max": 2}]}, {"bytes": 64, "times": []}]
    document = {"host": {"cpu": "é"}, "runs": [{"ranks": 2, "rows": rows}], "rows": []}
    files.write_json(tmp_path / "out.json", document)
    text = (tmp_path / "out.json").read_text()
    assert json.loads(text) == document
    assert [json.dumps(row) in text.splitlines()[4 + i] for i, row in enumerate(rows)] == [True] * 2
    assert len(text.splitlines()) == 8


def test_a_kill_while_a_file_is_written_leaves_the_old_one_alone(tmp_path):
    """Also where the new one has been written, and is not yet on the disk."""
    path = tmp_path / "out"
    path.write_text("old")
    program = f"""if True:
        import os, signal
        from collectives.text import files
        os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
        files.write({str(path)!r}, "new" * 100_000)
    """
    done = subprocess.run([sys.executable, "-c", program], timeout=100)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["out"]


def test_others_may_read_it_as_the_mask_says(tmp_path):
    before = os.umask(0o027)
    try:
        files.write(tmp_path / "out", "")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o640


def test_a_file_that_is_replaced_keeps_its_permissions(victim):
    files.write(victim, "new")
    assert (victim.read_text(), stat.S_IMODE(victim.stat().st_mode)) == ("new", 0o600)


@pytest.mark.parametrize("make", [os.symlink, os.link], ids=["symlink", "link"])
def test_a_link_is_replaced(tmp_path, victim, make):
    path = tmp_path / "out.json"
    make(victim, path)
    files.write(path, "new")
    assert path.read_text() == "new"
    assert not path.is_symlink()
    assert victim.read_text() == "mine"
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600


def test_a_link_to_nothing_makes_nothing_there(tmp_path):
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    files.write(tmp_path / "out", "new")
    assert sorted(os.listdir(tmp_path)) == ["out"]


def test_who_reads_keeps_the_old_file(tmp_path):
    path = tmp_path / "out"
    files.write(path, "old")
    with path.open() as reader:
        files.write(path, "new")
        assert reader.read() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("name", ["no/out", "folder"])
def test_an_error_has_the_name(tmp_path, name):
    (tmp_path / "folder").mkdir()
    path = tmp_path / name
    with pytest.raises(OSError, match=name) as caught:
        files.write(path, "new")
    assert (caught.value.filename, caught.value.filename2) == (str(path), None)
    assert os.listdir(tmp_path) == ["folder"]
    assert os.listdir(tmp_path / "folder") == []


def test_streams_are_written_to(tmp_path, capfd):
    """A device or folder is not replaced by a file."""
    files.write("/dev/null", "nothing")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    files.write("/dev/stdout", "to the terminal\n")
    assert capfd.readouterr().out == "to the terminal\n"
    assert os.path.islink("/dev/stdout")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    found = []
    reader = threading.Thread(target=lambda: found.append(pipe.read_text()))
    reader.start()
    files.write(pipe, "through a pipe")
    reader.join(10)
    assert found == ["through a pipe"]
    assert pipe.is_fifo()


def test_folders(tmp_path):
    files.make_folder(tmp_path / "a" / "b")
    files.make_folder(str(tmp_path / "a" / "b"))
    (tmp_path / "own").symlink_to(tmp_path / "a")
    files.make_folder(tmp_path / "own")
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError):
        files.make_folder(tmp_path / "file")


WRITES = re.compile(r"write_text|write_bytes|O_CREAT|O_TRUNC|open\([^)]*[\"'][wax]b?\+?[\"']")

# Files that have no name, or a new one, or lie in a folder of their user alone; and pipes.
OWN = {
    "text/files.py",
    "cli/horovodrun.py",
    "records/parts.py",
    "records/checksums.py",
    "process/segment.py",
    "process/rendezvous.py",
    "process/slurm.py",
    "launch/rank.py",
}


def test_nobody_else_writes_files():
    sources = Path(files.__file__).parents[1]
    found = {
        str(each.relative_to(sources))
        for each in sources.rglob("*.py")
        if WRITES.search(each.read_text(encoding="utf-8"))
    }
    assert found <= OWN


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make links of other users")
def test_a_link_of_another_user_is_no_folder(tmp_path):
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    os.lchown(link, 12345, 12345)
    with pytest.raises(PermissionError, match="It is a link of another user"):
        files.make_folder(link)
