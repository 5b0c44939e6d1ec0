"""``collectives run --no-mpi -H``: ranks of several hosts. A script stands in for ssh."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import environment
from jobs import PATIENCE, line_of
from namespaces import Hosts, Unavailable, two_hosts
from ranks import is_alive

from collectives.cli import main
from collectives.errors import ArgumentError
from collectives.launch import host_list
from collectives.launch.host_list import Host

# It has options, a host, and a command for the shell there, as ssh has.
SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift; done
host=$1; shift
case $host in
nohost) echo "ssh: Could not resolve hostname nohost: Name or service not known" >&2; exit 255;;
locked) echo "me@locked: Permission denied (publickey,password)." >&2; exit 255;;
strange) echo "Host key verification failed." >&2; exit 255;;
changed) echo "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @" >&2
echo "Host key verification failed." >&2; exit 255;;
down) echo "ssh: connect to host down port 22: No route to host" >&2; exit 255;;
apart) echo "ssh: connect to host apart port 22: Network is unreachable" >&2; exit 255;;
closed) echo "ssh: connect to host closed port 22: Connection refused" >&2; exit 255;;
bare) echo "sh: 1: exec: python: not found" >&2; exit 127;;
empty) echo "ModuleNotFoundError: No module named 'collectives'" >&2; exit 1;;
old) printf '\\0collectives supervisor 0.0.1\\n'; sleep 60;;
silent) sleep 60;;
noisy) while :; do echo welcome; done;;
esac
echo "welcome to $host"
export COLLECTIVES_HOST=$host OWN_HOST=$host TMPDIR=/tmp/$host
exec sh -c "$*"
"""

PLACE = "import os, sys, time; r = int(os.environ['COLLECTIVES_RANK'])\n"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The variables of a command, which finds the script."""
    path = tmp_path / "bin" / "ssh"
    path.parent.mkdir()
    path.write_text(SSH)
    path.chmod(0o755)
    found = {**os.environ, **environment()}
    return {**found, "PATH": f"{path.parent}:{found['PATH']}", "COLLECTIVES_TIMEOUT": "20"}


def words(*options: str, code: str = "pass") -> list[str]:
    return [sys.executable, "-m", "collectives", "run", "--no-mpi", *options, "-c", PLACE + code]


def run(env: dict[str, str], *options: str, code: str = "pass") -> subprocess.CompletedProcess[str]:
    command = words(*options, code=code)
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=PATIENCE)


def test_ranks_by_hosts_with_variables_and_output(env: dict[str, str], tmp_path: Path) -> None:
    code = "e = os.environ\nprint(e['COLLECTIVES_HOST'], e['MINE'], e['TMPDIR'], os.getcwd())"
    code += "\nprint('wrong', file=sys.stderr)\nos.write(1, b'\\xff end')"
    (tmp_path / "here").mkdir()
    done = subprocess.run(
        words("-H", "a:2,b:1", "--prefix", code=code),
        env={**env, "MINE": "x y\n'z'"},
        cwd=tmp_path / "here",
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done
    here = tmp_path / "here"
    wanted = []
    for rank, host in enumerate("aab"):
        wanted += [
            f"[{rank}] {host} x y",
            f"[{rank}] 'z' /tmp/{host} {here}",
            f"[{rank}] \\xff end",
        ]
    assert sorted(done.stdout.splitlines()) == sorted(wanted)
    assert sorted(done.stderr.splitlines()) == [f"[{rank}] wrong" for rank in range(3)]


def test_variables_of_a_host_and_of_a_login_have_exact_names(env: dict[str, str]) -> None:
    alike = ["USER_TOKEN", "HOME_DIR", "PWDX", "HOSTNAMES", "TMPDIR2", "COLLECTIVES_HOSTS"]
    own = ["USER", "SHELL", "LOGNAME", "HOSTNAME", "XDG_X", "SSH_X", "COLLECTIVES_HOST"]
    script = Path(env["PATH"].partition(":")[0], "ssh")
    there = "export " + " ".join(f"{name}=there" for name in own if name != "COLLECTIVES_HOST")
    script.write_text(script.read_text().replace("exec sh", f"{there}; exec sh"))
    env |= dict.fromkeys([*alike, *own], "here")
    code = f"print(*[os.environ.get(n) for n in {alike + own}])"
    done = run(env, "-H", "a:1", code=code)
    assert done.stdout.split() == ["here"] * 6 + ["there"] * 6 + ["a"], done


def test_torch_and_others_find_the_first_rank(env: dict[str, str]) -> None:
    code = "print(*[os.environ[n] for n in 'RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE'.split()],"
    code += "*[os.environ[n] for n in 'GROUP_RANK MASTER_ADDR MASTER_PORT'.split()])"
    env["SSH_CONNECTION"] = "10.0.0.1 50000 10.0.0.2 22"
    done = run(env, "-H", "a:2,b:1", code=code)
    lines = [line.split() for line in sorted(done.stdout.splitlines())]
    assert [line[:5] for line in lines] == [
        ["0", "3", "0", "2", "0"],
        ["1", "3", "1", "2", "0"],
        ["2", "3", "0", "1", "1"],
    ], done
    assert {line[5] for line in lines} == {"10.0.0.2"}
    assert len({line[6] for line in lines}) == 1
    code = "print([n for n in ('RANK', 'WORLD_SIZE', 'MASTER_PORT') if n in os.environ])"
    assert run(env, "-H", "a:1,b:1", "--no-torch-variables", code=code).stdout == "[]\n" * 2


def test_the_ranks_meet_at_the_launcher(env: dict[str, str]) -> None:
    """Nothing of their secret is on a command line. Ranks of this test share their host's name."""
    code = """
os.environ["COLLECTIVES_HOST"] = ""
import pathlib, subprocess
import collectives as cc
secret = os.environ["COLLECTIVES_SECRET"]
shown = [p.read_bytes() for p in pathlib.Path("/proc").glob("[0-9]*/cmdline")]
assert len(secret) == 64 and not any(secret.encode() in each for each in shown)
sys.stdout.write(f"{cc.allreduce_object(r)} {cc.size()}\\n")
"""
    done = run(env, "-H", "a:2,b:2", "-n", "3", code=code)
    assert (done.returncode, done.stdout) == (0, "3 3\n" * 3), done


@pytest.mark.parametrize(
    ("code", "status", "text"),
    [
        ("if r == 3: sys.exit(7)", 7, "collectives: rank 3 of 4 on b ended with exit status 7\n"),
        ("if r == 2: os.kill(os.getpid(), 9)", 137, "rank 2 of 4 on b was ended by SIGKILL"),
        ("if r == 1: raise KeyError('bad')", 1, "KeyError: 'bad'"),
    ],
)
def test_the_first_that_fails_ends_all(
    env: dict[str, str], code: str, status: int, text: str
) -> None:
    began = time.monotonic()
    done = run(env, "-H", "a:2,b:2", code=f"{code}\ntime.sleep(50)")
    assert done.returncode == status, done
    assert text in done.stderr
    assert "connection" not in done.stderr
    assert time.monotonic() - began < 30


def test_a_rank_that_is_stopped_at_its_end(env: dict[str, str]) -> None:
    """The supervisor of its host reports it to the launcher, which would wait for ever."""
    env["COLLECTIVES_TIMEOUT"] = "2"
    done = run(env, "-H", "a:2,b:2", code="if r == 3: os.kill(os.getpid(), 19)")
    assert done.returncode == 1, done
    told = "collectives: rank 3 of 4 on b has been stopped for 2 s, and the others have ended\n"
    assert done.stderr == told


def test_a_rank_that_is_stopped_and_goes_on(env: dict[str, str]) -> None:
    env["COLLECTIVES_TIMEOUT"] = "4"
    code = """
import subprocess
if r == 2:
    subprocess.Popen(["sh", "-c", f"sleep 2; kill -CONT {os.getpid()}"], start_new_session=True)
    os.kill(os.getpid(), 19)
    time.sleep(4)
"""
    done = run(env, "-H", "a:2,b:1", code=code)
    assert (done.returncode, done.stderr) == (0, ""), done


@pytest.mark.parametrize(
    ("host", "text"),
    [
        ("nohost", "no ranks on nohost: the name of this host does not resolve (ssh: Could not"),
        ("locked", "no ranks on locked: ssh asks for a password there: let it log in by a key"),
        ("strange", "no ranks on strange: ssh does not know the key of this host: log in once by"),
        ("changed", "no ranks on changed: the key of this host has changed: log in once by hand"),
        ("down", "no ranks on down: it cannot be reached: it is down, or a firewall refuses"),
        ("apart", "no ranks on apart: this host has no route to it, or a firewall refuses"),
        ("closed", "no ranks on closed: no program listens there for ssh, or a firewall refuses"),
        ("bare", "no ranks on bare: " + sys.executable + " cannot be run there: install Python"),
        ("empty", "no ranks on empty: the library is not in "),
        ("old", "no ranks on old: it has version 0.0.1 of the library, and this host has "),
        ("silent", "no answer from silent in 3 s"),
        ("noisy", "no ranks on noisy: its shell writes without an end"),
    ],
)
def test_a_host_that_cannot_start_ranks(env: dict[str, str], host: str, text: str) -> None:
    env["COLLECTIVES_TIMEOUT"] = "3" if host == "silent" else "20"
    done = run(env, "-H", f"a:1,{host}:1", code="time.sleep(50)")
    assert done.returncode == 2, done
    assert f"collectives: {text}" in done.stderr


def test_a_folder_that_a_host_lacks(env: dict[str, str], tmp_path: Path) -> None:
    script = Path(env["PATH"].partition(":")[0], "ssh")
    script.write_text(script.read_text().replace("exec sh", f"rmdir {tmp_path}/gone; exec sh"))
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        words("-H", "a:1"), env=env, cwd=tmp_path / "gone", capture_output=True, text=True
    )
    assert done.returncode == 2, done
    assert f"no ranks on a: [Errno 2] No such file or directory: '{tmp_path}/gone'" in done.stderr


def started(env: dict[str, str], folder: Path, n: int) -> tuple[subprocess.Popen[str], list[int]]:
    """Start ranks that sleep; return the launcher, and their processes."""
    folder.mkdir()
    code = f"open(f'{folder}/{{os.getpid()}}', 'w').close()\ntime.sleep({PATIENCE})"
    child = subprocess.Popen(
        words("-H", "a:2,b:2", code=code), env=env, stderr=subprocess.PIPE, text=True
    )
    limit = time.monotonic() + PATIENCE
    while len(found := list(folder.iterdir())) < n and time.monotonic() < limit:
        assert child.poll() is None
        time.sleep(0.02)
    return child, [int(path.name) for path in found]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rank_is_left_after_a_signal(
    env: dict[str, str], tmp_path: Path, number: signal.Signals
) -> None:
    child, processes = started(env, tmp_path / "ranks", 4)
    assert len(processes) == 4
    child.send_signal(number)
    child.communicate(timeout=PATIENCE)
    wanted = -number if number == signal.SIGKILL else 128 + number
    assert child.returncode == wanted
    limit = time.monotonic() + PATIENCE / 4
    while any(map(is_alive, processes)) and time.monotonic() < limit:
        time.sleep(0.05)
    assert not any(map(is_alive, processes))


def test_ranks_that_stop_together_have_time_on_each_host(
    env: dict[str, str], tmp_path: Path
) -> None:
    """More than the others have. Children of ranks do not get the signal."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    code = f"""
from collectives.process import stopping
stopping.watch()
child = os.fork()
while not child: time.sleep(1)
open(r'{folder}/' + str(r), 'w').close()
while not stopping.reason(): time.sleep(0.01)
time.sleep(4)
print(stopping.reason(), os.waitpid(child, os.WNOHANG)[0])
os.kill(child, 9)"""
    with subprocess.Popen(
        words("-H", "a:1,b:1", code=code), env=env, stdout=-1, stderr=-1, text=True
    ) as child:
        limit = time.monotonic() + PATIENCE
        while len(list(folder.iterdir())) < 2 and time.monotonic() < limit:
            assert child.poll() is None
            time.sleep(0.02)
        child.send_signal(signal.SIGTERM)
        out, err = child.communicate(timeout=PATIENCE)
    assert (child.returncode, out) == (0, "SIGTERM 0\n" * 2), err


def test_an_interrupt_while_a_host_does_not_answer(env: dict[str, str]) -> None:
    child = subprocess.Popen(
        words("-H", "a:1,silent:1"), env=env, stderr=subprocess.PIPE, text=True
    )
    time.sleep(2)
    assert child.poll() is None
    child.send_signal(signal.SIGINT)
    _, err = child.communicate(timeout=15)
    assert (child.returncode, err) == (130, "")


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    try:
        with two_hosts(tmp_path_factory.mktemp("hosts")) as made:
            yield made
    except Unavailable as reason:
        pytest.skip(str(reason))


MEET = """
import platform
from collectives.process import rendezvous
meeting = rendezvous.from_environment(10)
sys.stdout.write(f"{meeting.allgather((r, platform.node()))}\\n")
"""


def between(
    hosts: Hosts, env: dict[str, str], code: str, *options: str, launcher: int = 0
) -> subprocess.Popen[str]:
    """Start two ranks on each of two hosts, one of which has the launcher."""
    link = Path(env["PATH"].partition(":")[0], "ssh")
    link.unlink()
    link.symlink_to(hosts.agent)
    command = hosts.inside(launcher, *words("-H", "host1:2,host2:2", *options, code=code))
    return subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_ranks_of_two_hosts_meet(hosts: Hosts, env: dict[str, str]) -> None:
    child = between(hosts, env, MEET)
    out, err = child.communicate(timeout=PATIENCE)
    places = [(rank, f"host{rank // 2 + 1}") for rank in range(4)]
    assert (child.returncode, out) == (0, f"{places}\n" * 4), err


STORE = """
import socket
place = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
if r == 0:
    server = socket.create_server(("", place[1]))
    for _ in range(3):
        server.accept()[0].sendall(b"well")
else:
    limit = time.monotonic() + 100
    while True:
        try:
            made = socket.create_connection(place, 5)
            break
        except OSError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.05)
    sys.stdout.write(f"{r} {made.recv(4)}\\n")
"""


@pytest.mark.parametrize("launcher", [0, 1])
def test_a_store_on_the_first_host_is_reached(
    hosts: Hosts, env: dict[str, str], launcher: int
) -> None:
    """The launcher is on the host of rank 0, or on the other one."""
    child = between(hosts, env, STORE, launcher=launcher)
    out, err = child.communicate(timeout=PATIENCE)
    assert sorted(out.splitlines()) == [f"{r} b'well'" for r in (1, 2, 3)], err


def on_each(hosts: Hosts, env: dict[str, str], code: str) -> list[str]:
    """Run a process on each of two hosts, as rank 0 and 1; return what they print."""
    children = [
        subprocess.Popen(
            hosts.inside(rank, sys.executable, "-c", PLACE + code),
            env={**env, "COLLECTIVES_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    return [child.communicate(timeout=PATIENCE)[0] for child in children]


def test_rank_0_serves_another_host(hosts: Hosts, env: dict[str, str]) -> None:
    """Others have to know the secret; what a firewall drops is an error by the deadline."""
    env["COLLECTIVES_SIZE"] = "2"
    env["COLLECTIVES_RENDEZVOUS"] = "first:host1:4747"
    env["COLLECTIVES_SECRET"] = "what only the ranks know"
    assert on_each(hosts, env, MEET) == ["[(0, 'host1'), (1, 'host2')]\n"] * 2
    wrong = "if r: os.environ['COLLECTIVES_SECRET'] = 'what others believe'\n"
    wrong += MEET.replace("(10)", "(3)")
    first, second = on_each(hosts, env, wrong)
    assert "rank 1 has not come; a process at 10.83.0.2 was refused: it does not know" in first
    assert "it has another secret: it is the rendezvous of another job" in second
    drop = "ip", "route", "add", "blackhole", "10.83.0.2/32"
    subprocess.run(hosts.inside(0, *drop), check=True)
    try:
        first, second = on_each(hosts, env, MEET.replace("(10)", "(2)"))
    finally:
        subprocess.run(hosts.inside(0, "ip", "route", "del", *drop[3:]), check=True)
    assert "has waited 2 s for the others at the rendezvous: rank 1 has not come" in first
    assert "host1 does not answer at port 4747: a firewall may drop connections" in second


def test_a_cut_cable_ends_the_ranks_of_the_other_host(hosts: Hosts, env: dict[str, str]) -> None:
    """The script that stands in for ssh goes through no cable: only the supervisor sees the cut."""
    code = f"sys.stdout.write(f'{{r}} {{os.getpid()}}\\n'); time.sleep({PATIENCE})"
    child = between(hosts, env, code)
    try:
        lines = [line_of(child).split() for _ in range(4)]
        processes = {int(rank): int(process) for rank, process in lines}
        hosts.cut()
        began = time.monotonic()
        out, err = child.communicate(timeout=PATIENCE)
        assert time.monotonic() - began < 25
        assert child.returncode != 0, out
        assert "rank 2 of 4 on host2 was ended by SIGTERM" in err
        assert not any(map(is_alive, processes.values()))
    finally:
        child.kill()


def test_the_status_of_hosts_is_one_table(env: dict[str, str]) -> None:
    code = "import collectives as cc; cc.barrier(); print('ready', flush=True); time.sleep(300)"
    command = [sys.executable, "-m", "collectives", "status"]
    options = {"env": env, "capture_output": True, "text": True, "timeout": PATIENCE}
    start = words("-n", "2", code=code)
    with subprocess.Popen(start, env=env, stdout=-1, text=True) as job:
        try:
            assert "ready" in line_of(job)
            wish = [*command, str(job.pid), "-H"]
            done = subprocess.run([*wish, "a,localhost"], **options)  # type: ignore[call-overload]
            assert done.returncode == 0, done
            head, _, *rows = done.stdout.splitlines()
            assert head.startswith("communicator 0.0: 2 ranks on ")
            assert [row.split()[0] for row in rows] == ["0", "1"], done
            done = subprocess.run([*wish, "a,locked"], **options)  # type: ignore[call-overload]
            assert done.returncode == 2
            assert "no status of locked: ssh asks for a password there" in done.stderr
        finally:
            job.terminate()


def test_hosts_are_read(tmp_path: Path) -> None:
    assert host_list.listed("a:2,me@b.c,[::1]:3,a:1") == [
        Host("a", 3),
        Host("me@b.c", 1),
        Host("[::1]", 3),
    ]
    file = tmp_path / "hosts"
    file.write_text("# hosts\na slots=2\nb:3  # big\n\nc\nc\n")
    as_others = b"\xef\xbb\xbfa\tslots=1\r\nb:3#big\r\n c max_slots=4 # comment\r\n"
    as_others += b"a \tslots = 1\tmax-slots=2\r\nc SLOTS=1\r\n"
    windows = tmp_path / "windows"
    windows.write_bytes(as_others)
    assert host_list.from_file(str(windows)) == host_list.from_file(str(file))
    hosts = host_list.from_file(str(file))
    assert hosts == [Host("a", 2), Host("b", 3), Host("c", 2)]
    assert host_list.filled(hosts, 3) == [Host("a", 2), Host("b", 1)]
    assert host_list.filled(hosts, None) == hosts


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("-oProxyCommand=x:1", "-H: '-oProxyCommand=x:1' is not a host and its slots"),
        ("a:0", "'a:0' is not a host"),
        ("a;b:1", "'a;b:1' is not a host"),
        ("", "'' is not a host"),
    ],
)
def test_what_is_no_host_is_refused(text: str, told: str) -> None:
    with pytest.raises(ArgumentError, match=told):
        host_list.listed(text)


def test_files_of_hosts_with_mistakes(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    with pytest.raises(ArgumentError, match="No such file"):
        host_list.from_file(str(file))
    file.write_text("# none\n")
    with pytest.raises(ArgumentError, match="there is no host in it"):
        host_list.from_file(str(file))
    for text in (
        "a slots 2",
        "a 2",
        "a:2 slots=3",
        "a slots=0",
        "a slots=2,max_slots=3",
        "a cpu=2",
    ):
        file.write_text(f"{text}\n")
        with pytest.raises(ArgumentError, match=f"'{text}' is not a host and its slots"):
            host_list.from_file(str(file))


def test_options_that_do_not_go_together(capsys: pytest.CaptureFixture[str]) -> None:
    for options, told in (
        (["-H", "a:1"], "-H needs --no-mpi"),
        (["--no-mpi", "-H", "a:1", "-n", "2"], "-n 2: the hosts have 1 slots"),
        (["--no-mpi", "-H", "a:1", "--hostfile", "b"], "leave one of them out"),
        (["--no-mpi"], "run needs the number of ranks: -n N"),
    ):
        assert main(["run", *options, "-c", "pass"]) == 2
        assert told in capsys.readouterr().err


def test_a_dry_run_names_the_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--no-mpi", "--dry-run", "-H", "a:1,b:1", "-c", "pass"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["a:", "COLLECTIVES_RANK=0"],
        ["b:", "COLLECTIVES_RANK=1"],
    ]
