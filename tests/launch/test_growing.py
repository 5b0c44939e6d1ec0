"""Jobs whose ranks join and leave, as a script names hosts: ``collectives run --min-np``."""

from __future__ import annotations

import errno
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jobs import PATIENCE, line_of
from namespaces import Hosts
from ranks import is_alive
from test_several_hosts import PLACE, env, hosts

from collectives.cli import main
from collectives.errors import ArgumentError
from collectives.launch import growing
from collectives.process import lobby
from collectives.process.rendezvous_server import Server

__all__ = ["env", "hosts"]  # fixtures

FEATURES, ROWS, STEPS, RATE = 5, 240, 120, 0.1

# Gradients are sums over all rows, on any rank, so the weights do not depend on the ranks.
TRAIN = """
import signal
import numpy as np, collectives as cc
from collectives import elastic

here = sys.argv[1]
x = np.random.default_rng(1).standard_normal((ROWS, FEATURES))
y = x @ np.arange(FEATURES)

def say(text):
    os.write(1, f"{text}\\n".encode())

def wait(state, hosts, size):
    while state.comm.size != size:
        if r == 0 and open(f"{here}/hosts").read() != hosts:
            with open(f"{here}/new", "w") as file:
                file.write(hosts)
            os.replace(f"{here}/new", f"{here}/hosts")
        time.sleep(0.02)
        state.commit()

def train(state):
    comm = state.comm
    say(f"{r} is {comm.rank} of {comm.size} from {state.step}")
    while state.step < STEPS:
        plan(state)
        mine = slice(comm.rank, None, comm.size)
        slope = x[mine].T @ (x[mine] @ state.weights - y[mine])
        state.weights -= RATE / ROWS * comm.allreduce(slope)
        state.step += 1
        if state.step % 10 == 0:
            state.commit()

def train_all():
    state = elastic.State(weights=np.zeros(FEATURES), step=0)
    state.register_reset_callbacks([lambda: say(f"{r} begins again among {state.comm.size}")])
    elastic.run(state, train)
    say(f"{r} ends with {' '.join(f'{w:.12f}' for w in state.weights)}")

open(f"{here}/process{os.getpid()}", "w").close()
"""
for name in ("FEATURES", "ROWS", "STEPS", "RATE"):
    TRAIN = TRAIN.replace(name, str(globals()[name]))


def expected() -> str:
    x = np.random.default_rng(1).standard_normal((ROWS, FEATURES))
    y, weights = x @ np.arange(FEATURES), np.zeros(FEATURES)
    for _ in range(STEPS):
        weights -= RATE / ROWS * (x.T @ (x @ weights - y))
    return " ".join(f"{w:.12f}" for w in weights)


def words(folder: Path, hosts: str, *options: str, plan: str) -> list[str]:
    """Return the command of a job whose script prints the file `hosts`, a word on each line."""
    (folder / "hosts").write_text(hosts)
    (folder / "program.py").write_text(f"{PLACE}{TRAIN}{plan}\ntrain_all()\n")
    script = ["--host-discovery-script", f"tr ' ' '\\n' < {folder}/hosts"]
    command = [sys.executable, "-m", "collectives", "run", "--no-mpi", *script, *options]
    return [*command, str(folder / "program.py"), str(folder)]


def run(
    env: dict[str, str], command: list[str], deadline: float = PATIENCE
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=deadline)


def check(folder: Path, out: str, begun: list[str], ends: str) -> None:
    """Compare what ranks say, and see that none is left."""
    lines = out.splitlines()
    assert sorted(line for line in lines if " from " in line) == sorted(begun)
    assert sorted(line for line in lines if " ends " in line) == [
        f"{r} ends with {expected()}" for r in ends
    ]
    left = [int(path.name.removeprefix("process")) for path in folder.glob("process*")]
    assert left
    assert not any(is_alive(each) for each in left)


GROWS_AND_LOSES = """
def plan(state):
    if state.step == 20:
        wait(state, "MORE", 4)
    if state.step == 77 and r == 3 and state.comm.size == 4:
        os.kill(os.getpid(), signal.SIGKILL)
"""

BEGUN = [
    *(f"{r} is {r} of 2 from 0" for r in range(2)),
    *(f"{r} is {r} of 4 from 20" for r in range(4)),
    *(f"{r} is {r} of 3 from 70" for r in range(3)),
]


def test_two_then_four_then_three_ranks_of_a_host(env: dict[str, str], tmp_path: Path) -> None:
    plan = GROWS_AND_LOSES.replace("MORE", "localhost:4")
    command = words(tmp_path, "localhost:2", "--min-np", "2", "--max-np", "4", plan=plan)
    done = run(env, command)
    assert done.returncode == 0, done
    check(tmp_path, done.stdout, BEGUN, "012")
    again = [line for line in done.stdout.splitlines() if " begins again " in line]
    wanted = [*(f"{r} begins again among 4" for r in (0, 1))]
    wanted += [f"{r} begins again among 3" for r in range(3)]
    assert sorted(again) == sorted(wanted)
    assert sorted(done.stderr.splitlines()) == [
        "collectives: localhost gets no more ranks: rank 3 has failed there",
        "collectives: rank 3 of 4 on localhost was ended by SIGKILL (kill -9, or the kernel when "
        "memory runs out)",
    ]


def test_hosts_come_and_go(env: dict[str, str], has_ucx: None, tmp_path: Path) -> None:
    """The ranks of a host that is not named any more leave at a commit, rank 0 as well."""
    plan = """
def plan(state):
    if state.step == 20:
        wait(state, "a b:2", 3)
    if state.step == 50 and state.comm.size == 3:
        if r == 0:
            open(f"{here}/hosts", "w").write("b:2")
        time.sleep(0.02)
        state.commit()
        plan(state)
"""
    done = run(env, words(tmp_path, "a", "-np", "1", plan=plan))
    assert done.returncode == 0, done
    begun = ["0 is 0 of 1 from 0", *(f"{r} is {r} of 3 from 20" for r in range(3))]
    check(tmp_path, done.stdout, [*begun, "1 is 0 of 2 from 50", "2 is 1 of 2 from 50"], "12")
    assert done.stderr == ""


def test_all_ranks_are_replaced(env: dict[str, str], has_ucx: None, tmp_path: Path) -> None:
    """The last one of a host that is gone stays until others have the state."""
    plan = """
def plan(state):
    while state.step == 20 and r < 2:
        if r == 0 and open(f"{here}/hosts").read() != "b:2":
            with open(f"{here}/new", "w") as file:
                file.write("b:2")
            os.replace(f"{here}/new", f"{here}/hosts")
        time.sleep(0.02)
        state.commit()
    while state.step == 20 and state.comm.size == 3:
        time.sleep(0.02)
        state.commit()
"""
    done = run(env, words(tmp_path, "a:2", "-np", "2", "--min-np", "1", plan=plan))
    assert done.returncode == 0, done
    begun = [line for line in done.stdout.splitlines() if " from " in line]
    assert {*BEGUN[:2], "2 is 0 of 2 from 20", "3 is 1 of 2 from 20"} <= set(begun)
    assert all(line.endswith(" from 20") for line in begun if line not in BEGUN[:2])
    assert done.stdout.count(f"ends with {expected()}") == 2
    assert done.stderr == ""


def test_new_ranks_do_not_begin_without_the_state(env: dict[str, str], tmp_path: Path) -> None:
    """The only rank that has it ends when others have joined, before they get it."""
    plan = """
from collectives import growth

def plan(state):
    if state.step == 20:
        if r == 0:
            growth.check_state = lambda comm: os.kill(os.getpid(), signal.SIGKILL)
        wait(state, "localhost:3", 3)
"""
    done = run(env, words(tmp_path, "localhost", "-np", "1", plan=plan))
    assert done.returncode == 137, done
    assert [line for line in done.stdout.splitlines() if " from " in line] == ["0 is 0 of 1 from 0"]
    # The launcher ends the other one when it has seen the first to fail.
    assert re.search(
        "rank [01] of 2 cannot continue: all ranks that had the state were", done.stderr
    )


@pytest.mark.parametrize("lost", ["rank", "host"])
def test_growth_between_namespaces(
    hosts: Hosts, env: dict[str, str], tmp_path: Path, has_ucx: None, lost: str
) -> None:
    link = Path(env["PATH"].partition(":")[0], "ssh")
    link.unlink()
    link.symlink_to(hosts.agent)
    plan = GROWS_AND_LOSES.replace("MORE", "host1:2 host2:2")
    begun, ends = BEGUN, "012"
    if lost == "host":
        kill = "os.kill(os.getpid(), signal.SIGKILL)"
        plan = plan.replace(kill, f"{kill.replace('getpid', 'getppid')}; time.sleep(50)")
        begun, ends = [*BEGUN[:6], "0 is 0 of 2 from 70", "1 is 1 of 2 from 70"], "01"
    command = words(tmp_path, "host1:2", "--min-num-proc", "2", plan=plan)
    done = run(env, hosts.inside(0, *command))
    assert done.returncode == 0, done
    check(tmp_path, done.stdout, begun, ends)
    assert "collectives: host2 gets no more ranks: rank" in done.stderr


def test_a_script_that_fails_or_hangs(env: dict[str, str], tmp_path: Path) -> None:
    """The job goes on with the hosts that it knows."""
    plan = """
def plan(state):
    for status in ("exit 3", "echo Oh: no", "sleep 60"):
        if state.step == 20 and r == 0:
            open(f"{here}/script", "w").write(status)
            time.sleep(1.5)
"""
    (tmp_path / "script").write_text("true")
    command = words(tmp_path, "localhost:2", "--min-np", "2", plan=plan)
    at = command.index("--host-discovery-script") + 1
    command[at] = f"sh {tmp_path}/script || exit; {command[at]}"
    plan = "if state.step == 40"
    done = run(env, command)
    assert done.returncode == 0, done
    check(tmp_path, done.stdout, BEGUN[:2], "01")
    told = done.stderr.splitlines()
    assert len(told) == 2
    assert "it has ended with exit status 3; the job keeps the hosts that it named" in told[0]
    assert "'Oh: no' is not a host and its slots" in told[1]


def test_a_script_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growing, "LONGEST_SCRIPT", 0.3)
    asked = growing.Discovery(f"echo $$ > {tmp_path}/process; sleep 60 & wait", 1)
    with pytest.raises(ArgumentError, match=r"it has not ended in 0\.3 s"):
        asked._asked()
    assert not is_alive(int((tmp_path / "process").read_text()))


def test_a_new_rank_that_does_not_come(env: dict[str, str], tmp_path: Path) -> None:
    """It is ended at the deadline, and its host gets no more ranks; the job continues."""
    plan = """
def is_there():
    try:
        return os.path.exists("/proc/" + open(f"{here}/absent").read())
    except FileNotFoundError:
        return True

def plan(state):
    if state.step == 20 and r == 0:
        open(f"{here}/hosts", "w").write("localhost:3")
    while state.step == 20 and state.comm.broadcast(np.array([is_there()]))[0]:
        time.sleep(0.1)
        state.commit()

if r == 2:
    with open(f"{here}/absent", "w") as file:
        file.write(str(os.getpid()))
    time.sleep(100)
"""
    command = words(tmp_path, "localhost:2", "--min-np", "2", plan=plan)
    done = run({**env, "COLLECTIVES_TIMEOUT": "10"}, command)
    assert done.returncode == 0, done
    check(tmp_path, done.stdout, BEGUN[:2], "01")
    assert done.stderr == (
        "collectives: localhost gets no more ranks: rank 2 has not joined within 10 s\n"
    )


@pytest.mark.parametrize(
    "end", ["os._exit(3)", pytest.param("time.sleep(100)", marks=pytest.mark.slow)]
)
def test_a_new_rank_that_fails_while_it_joins(
    env: dict[str, str], tmp_path: Path, end: str
) -> None:
    """The ranks that ran go on in their old job, at the deadline if it is there still."""
    plan = f"""
from collectives.process import hosted
if r == 2:
    hosted.HostedJob = lambda place: {end}

calls, once = [], train

def train(state):
    calls.append(state.step)
    once(state)

def plan(state):
    if state.step == 20 and r == 0:
        open(here + "/hosts", "w").write("localhost:3")
    while state.step == 20 and calls == [0]:
        time.sleep(0.02)
        state.commit()
    if state.step == 30:
        time.sleep(2)  # the launcher looks around each second
"""
    command = words(tmp_path, "localhost:2", "--min-np", "2", plan=plan)
    done = run({**env, "COLLECTIVES_TIMEOUT": "10"}, command)
    assert done.returncode == 0, done
    check(tmp_path, done.stdout, [*BEGUN[:2], "0 is 0 of 2 from 20", "1 is 1 of 2 from 20"], "01")
    why = "rank 2 has failed there"
    if "exit" not in end:  # the others have the same deadline, and one of them is the first
        why = r"its ranks could not join: rank [01] of 3 [^\n]+: rank 2 has not come"
    assert re.search(f"collectives: localhost gets no more ranks: {why}", done.stderr), done


def test_ctrl_c_refuses_no_host(env: dict[str, str], tmp_path: Path) -> None:
    plan = """
def plan(state):
    if state.step == 20:
        say("ready")
        time.sleep(60)
"""
    command = words(tmp_path, "localhost:2", "--min-np", "2", plan=plan)
    with subprocess.Popen(command, env=env, stdout=-1, stderr=-1, text=True) as job:
        while "ready" not in line_of(job):
            assert job.poll() is None
        job.send_signal(signal.SIGINT)
        told = job.communicate(timeout=PATIENCE)[1]
    assert job.returncode == 130
    assert "interrupted" in told
    assert "gets no more ranks" not in told


def test_too_few_ranks_wait_and_then_end(env: dict[str, str], tmp_path: Path) -> None:
    plan = """
def plan(state):
    if state.step == 20 and r == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""
    command = words(tmp_path, "localhost:2", "--min-np", "2", "--elastic-timeout", "2", plan=plan)
    began = time.monotonic()
    done = run(env, command)
    assert done.returncode == 2, done
    assert time.monotonic() - began < PATIENCE / 2
    waits = "collectives: the job waits for hosts, 2 s at most (--elastic-timeout): it "
    refused = "; not used any more: localhost\n"
    assert done.stderr.count(waits) == 1
    assert f"{waits}needs 2 ranks (--min-np), and has 1{refused}" in done.stderr
    assert (
        "the job has had fewer than 2 ranks for 2 s (--min-np, --elastic-timeout); not used any "
        "more: localhost" in done.stderr
    )
    assert sum(" from " in line for line in done.stdout.splitlines()) == 2


@pytest.mark.slow
def test_ranks_may_change_so_often_and_no_more(env: dict[str, str], tmp_path: Path) -> None:
    plan = GROWS_AND_LOSES.replace("MORE", "localhost:4")
    plan += "    time.sleep(0.2)\n"  # the loss is seen before the end
    command = words(tmp_path, "localhost:2", "--min-np", "2", "--reset-limit", "1", plan=plan)
    done = run(env, command)
    assert done.returncode == 2, done
    assert (
        "the ranks of the job have changed 2 times, and may change 1 time (--reset-limit)"
        in done.stderr
    )
    assert sorted(line for line in done.stdout.splitlines() if " of 4 from " in line)
    assert " ends " not in done.stdout


def test_too_few_slots_are_told_before_the_start(env: dict[str, str], tmp_path: Path) -> None:
    plan = "def plan(state): pass"
    options = ["-np", "3", "--min-np", "2", "--elastic-timeout", "60"]
    command = words(tmp_path, "localhost:1", *options, plan=plan)
    with subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        assert line_of(job, job.stderr) == (
            "collectives: the job waits for hosts, 60 s at most (--elastic-timeout): it starts "
            "with 3 ranks, and the hosts have 1 slot\n"
        )
        (tmp_path / "hosts").write_text("localhost:3")
        out, err = job.communicate(timeout=PATIENCE)
    assert (job.returncode, err) == (0, "")
    check(tmp_path, out, [f"{r} is {r} of 3 from 0" for r in range(3)], "012")


def test_no_rank_is_started_after_one_has_ended_well(env: dict[str, str], tmp_path: Path) -> None:
    plan = """
def plan(state):
    if state.step == STEPS - 1 and r == 1:
        atexit.register(time.sleep, 2.5)
"""
    plan = f"import atexit\n{plan}".replace("STEPS", str(STEPS))
    done = run(env, words(tmp_path, "localhost:2", "--min-np", "2", plan=plan))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list(tmp_path.glob("process*"))) == 2


def test_a_lost_rank_is_replaced_on_another_host(
    env: dict[str, str], has_ucx: None, tmp_path: Path
) -> None:
    """Those that are left wait for it, as they are too few."""
    plan = """
def plan(state):
    if state.step == 20 and r == 1:
        open(f"{here}/hosts", "w").write("a b c")
        os.kill(os.getpid(), signal.SIGKILL)
"""
    done = run(env, words(tmp_path, "a b", "--min-np", "2", "--max-np", "2", plan=plan))
    assert done.returncode == 0, done
    begun = [
        "0 is 0 of 2 from 0",
        "1 is 1 of 2 from 0",
        "0 is 0 of 2 from 20",
        "2 is 1 of 2 from 20",
    ]
    check(tmp_path, done.stdout, begun, "02")
    assert "collectives: b gets no more ranks: rank 1 has failed there\n" in done.stderr


HOROVOD = """
import signal
import torch
import horovod.torch as hvd

torch.set_num_threads(1)
hvd.init()
here = sys.argv[1]
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
sampler = hvd.elastic.ElasticSampler(range(60), shuffle=False)
state = hvd.elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, step=0)
say = lambda text: os.write(1, f"{r} {text}\\n".encode())
state.register_reset_callbacks([lambda: say(f"has {len(sampler)} of {hvd.size()}")])
x = torch.randn(60, 8, generator=torch.Generator().manual_seed(1))

@hvd.elastic.run
def train(state):
    say(f"is {hvd.rank()} of {hvd.size()} from {state.step}")
    while state.step < 30:
        if state.step == 10 and hvd.size() < 3:
            if not os.path.exists(f"{here}/more"):
                open(f"{here}/more", "w").close()
            time.sleep(0.02)
        else:
            if (r, state.step) == (1, 23):
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            model(x[hvd.rank() :: hvd.size()]).square().mean().backward()
            optimizer.step()
            state.step += 1
        if state.step % 5 == 0:
            state.commit()

train(state)
weights = hvd.allgather(model.weight.detach())
assert weights.shape[0] == 2
assert torch.equal(weights[0], weights[1])
"""


@pytest.mark.slow
def test_a_program_for_horovod_grows_and_shrinks(env: dict[str, str], tmp_path: Path) -> None:
    """Two join the first, with its weights; a sampler is divided again, also after a loss."""
    pytest.importorskip("torch")
    command = words(tmp_path, "localhost:1", "--as-horovod", "-np", "1", plan="")
    at = command.index("--host-discovery-script") + 1
    command[at] = f"test -e {tmp_path}/more && echo localhost:3 || echo localhost:1"
    (tmp_path / "program.py").write_text(PLACE + HOROVOD)
    done = run(env, command)
    assert done.returncode == 0, done
    told = ["is 0 of 1 from 0", "has 20 of 3", "is 0 of 3 from 10"]
    told += ["has 30 of 2", "is 0 of 2 from 20"]
    mine = [line for line in done.stdout.splitlines() if line.startswith("0 ")]
    assert mine == [f"0 {line}" for line in told]
    assert sum(line.endswith(" of 3 from 10") for line in done.stdout.splitlines()) == 3
    assert "2 is 1 of 2 from 20" in done.stdout


def test_options(capsys: pytest.CaptureFixture[str]) -> None:
    for options, text in (
        (["--min-np", "2"], "--min-np and --max-np need --no-mpi"),
        (["--host-discovery-script", "x"], "--host-discovery-script needs --no-mpi"),
        (
            ["--no-mpi", "--host-discovery-script", "x", "-H", "a"],
            "-H and --host-discovery-script both name hosts",
        ),
        (
            ["--no-mpi", "--min-np", "3", "--max-np", "2"],
            "-n is 3, and must be at least --min-np, which is 3, and at most --max-np, which is 2",
        ),
        (
            ["--no-mpi", "--min-np", "3", "-n", "2"],
            "-n is 2, and must be at least --min-np, which is 3\n",
        ),
    ):
        assert main(["run", *options, "-c", "pass"]) == 2
        assert text in capsys.readouterr().err


def test_a_forked_child_of_rank_0_does_not_keep_the_job_from_growing(
    env: dict[str, str], tmp_path: Path
) -> None:
    """A DataLoader's worker lives on. Rank 0 asks the lobby anew after each change."""
    plan = """
children = []

def plan(state):
    for step, size in (20, 2), (50, 3):
        if state.step == step and state.comm.size == size - 1:
            if r == 0:
                state.commit()
                child = os.fork()
                if child == 0:
                    time.sleep(60)
                    os._exit(0)
                children.append(child)
            wait(state, f"localhost:{size}", size)
    if state.step == STEPS - 1:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
"""
    plan = plan.replace("STEPS", str(STEPS))
    command = words(tmp_path, "localhost:1", "--min-np", "1", "--max-np", "3", plan=plan)
    done = run(env, command)
    assert done.returncode == 0, done
    begun = ["0 is 0 of 1 from 0", *(f"{r} is {r} of 2 from 20" for r in range(2))]
    check(tmp_path, done.stdout, [*begun, *(f"{r} is {r} of 3 from 50" for r in range(3))], "012")


def test_a_rank_that_dies_after_the_agreement_on_a_new_job(
    env: dict[str, str], tmp_path: Path
) -> None:
    """It has not confirmed that it belongs to the job, which the new ranks wait for. All are told
    which rank is lost, and do not wait for the deadline.
    """
    plan = """
from collectives.process import lobby

confirm = lobby.Joining.confirm

def die(place):
    if r == 1 and not place.joins and place.size == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    confirm(place)

lobby.Joining.confirm = die

def plan(state):
    if state.step == 20 and state.comm.size == 2:
        wait(state, "localhost:4", 3)
"""
    env["COLLECTIVES_TIMEOUT"] = str(2 * PATIENCE)
    command = words(tmp_path, "localhost:2", "--min-np", "2", "--max-np", "4", plan=plan)
    done = run(env, command)
    assert done.returncode == 137, done
    told = r"PeerLostError: .*rank 1 of COMM_WORLD \(process \d+\) has died while rank 0 of 4"
    assert re.search(told, done.stderr), done
    left = [int(path.name.removeprefix("process")) for path in tmp_path.glob("process*")]
    assert len(left) == 4
    assert not any(is_alive(each) for each in left)


def test_a_launcher_without_free_files_admits_ranks_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = b"that of the launcher"
    served = lobby.Lobby(1, secret)
    monkeypatch.setenv("COLLECTIVES_RENDEZVOUS", f"lobby:127.0.0.1:{served.port}")
    monkeypatch.setenv("COLLECTIVES_SECRET", secret.decode())
    monkeypatch.setenv("COLLECTIVES_RANK", "0")
    full = [OSError(errno.EMFILE, "Too many open files"), None]

    def serve(*arguments: Any) -> Server:
        error = full.pop(0)
        if error is not None:
            raise error
        return Server(*arguments)

    monkeypatch.setattr(lobby, "Server", serve)
    try:
        served.expect([0])
        with ThreadPoolExecutor() as pool:
            entered = pool.submit(lobby.enter)
            served.begin()
            limit = time.monotonic() + PATIENCE
            while not served.members and time.monotonic() < limit:
                time.sleep(0.01)
                served.begin()
            place = entered.result(PATIENCE)
        assert (place.rank, place.size, served.members) == (0, 1, [0])
        assert served.problems == ["[Errno 24] Too many open files"]
        place.close()
    finally:
        served.close()
