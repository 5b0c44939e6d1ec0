"""Hosts on one machine: network namespaces with a cable between two of them, or a switch between
several. Standard library only.

Each host has a name, an address, a ``/dev/shm`` and a boot number of its own. They share processes
and files, as hosts with a common file system do. They need root, and programs of iproute2 and
util-linux. The namespaces have no names: they end with a process that keeps them, and their
processes end, too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jobs

NAMES = ("host1", "host2")
ADDRESSES = ("10.83.0.1", "10.83.0.2")
NEEDED = ("ip", "unshare", "nsenter", "mount", "hostname")
# Open MPI's launcher finds out after three seconds that a host is silent, not after eight minutes.
KEEPALIVES = ("time 1", "intvl 1", "probes 2")
LIFE = 1200  # seconds after which a host ends, even if nobody ends it
PATIENCE = 60.0  # seconds for the start of a host
TORCHRUN_PORT = 29400

KEEPER = """
set -e
hostname {name}
mount --make-rprivate /
mount -t tmpfs -o size=2g,mode=1777 tmpfs /dev/shm
mount --bind {folder}/{name}.boot_id /proc/sys/kernel/random/boot_id
mount --bind {folder}/hosts /etc/hosts
ip link set lo up
touch {folder}/{name}.ready
exec sleep {life}
"""

# A program in place of ssh: options, a host, and the words of a command for its shell.
AGENT = """#!/bin/sh
while [ "${{1#-}}" != "$1" ]; do shift; done
case "$1" in {cases} *) exit 255;; esac
shift
exec nsenter -t "$keeper" -n -m -u -i sh -c "$*"
"""


class Unavailable(Exception):
    """There can be no such hosts here; the text says why."""


class Hosts:
    """The hosts, as long as their keepers run.

    Parameters
    ----------
    folder : Path
        For their files.
    keepers : list of int
        A process of each host, and one of the switch if there is one.
    names : list of str
        Of the hosts.
    """

    def __init__(self, folder: Path, keepers: list[int], names: Sequence[str] = NAMES) -> None:
        self.keepers, self.names = keepers, names
        self.agent = folder / "agent"
        pairs = zip(names, keepers, strict=False)
        cases = " ".join(f"{name}) keeper={keeper};;" for name, keeper in pairs)
        self.agent.write_text(AGENT.format(cases=cases))
        self.agent.chmod(0o755)

    def inside(self, host: int, *words: str) -> list[str]:
        """Return the command that runs another one on a host."""
        return ["nsenter", "-t", str(self.keepers[host]), "-n", "-m", "-u", "-i", *words]

    def command(
        self, python: str | Path, each: int, *arguments: str, first: int | None = None
    ) -> list[str]:
        """Return the command that runs a Python program on so many ranks of each host, or of the
        `first` hosts, under the MPI of an interpreter.
        """
        launcher = jobs.mpiexec(jobs.environment_of(python))
        names = self.names[:first]
        hosts = ",".join(f"{name}:{each}" for name in names)
        if len(launcher) > 1:
            prefix = str(jobs.environment_of(python).parent)
            options = ["--prefix", prefix, "--prtemca", "plm_ssh_agent", str(self.agent)]
            options += ["--host", hosts, "--bind-to", "none", "--mca", "mpi_yield_when_idle", "1"]
            for pair in KEEPALIVES:
                options += f"--prtemca oob_tcp_keepalive_{pair}".split()
        else:
            options = ["-launcher", "ssh", "-launcher-exec", str(self.agent), "-hosts", hosts]
        ranks = str(each * len(names))
        return self.inside(0, *launcher, *options, "-n", ranks, str(python), *arguments)

    def run(self, each: int, *arguments: str, deadline: float = jobs.PATIENCE) -> jobs.Result:
        """Run a Python program on so many ranks of each host, under the MPI of this interpreter."""
        return jobs.launch(self.command(sys.executable, each, *arguments), deadline=deadline)

    def torchrun(
        self, each: int, *arguments: str, folder: Path, **options: Any
    ) -> list[jobs.Result]:
        """Run a program in a folder on so many ranks of each host by torchrun, without MPI; return
        the result of each host. The `options` are those of `jobs.run`.
        """
        words = ["env", "-C", str(folder), sys.executable, "-m", "torch.distributed.run"]
        words += ["--nnodes", str(len(NAMES)), "--nproc-per-node", str(each)]
        words += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{ADDRESSES[0]}:{TORCHRUN_PORT}"]
        with ThreadPoolExecutor() as pool:
            runs = [
                pool.submit(jobs.run, self.inside(host, *words, *arguments), **options)
                for host in range(len(NAMES))
            ]
        return [run.result() for run in runs]

    def rate(self, mbit: int, burst: int = 256 << 10) -> None:
        """Set how fast hosts send; after a pause, a `burst` of so many bytes passes at once. This
        needs the program tc.
        """
        text = f"tc qdisc replace dev eth0 root tbf rate {mbit}mbit burst {burst} latency 20ms"
        for number in range(len(self.names)):
            _checked(self.inside(number, *text.split()))

    def cut(self) -> None:
        """Pull the cable of the second host out."""
        _checked(self.inside(1, "ip", "link", "set", "eth0", "down"))

    def shared(self) -> list[Path]:
        """Return the folders of shared memory, as this process sees them."""
        return [Path("/proc", str(keeper), "root", "dev", "shm") for keeper in self.keepers]


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    """Make two hosts, and end them with all that is in them.

    Parameters
    ----------
    folder : Path
        For their files; only theirs.

    Raises
    ------
    Unavailable
    """
    with several_hosts(folder, 2) as made:
        yield made


@contextlib.contextmanager
def several_hosts(folder: Path, number: int) -> Iterator[Hosts]:
    """Make so many hosts, as `two_hosts` does."""
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        raise Unavailable(f"hosts need {', '.join(missing) or 'root'}")
    names = [f"host{k + 1}" for k in range(number)]
    lines = [f"{_address(k)} {name}\n" for k, name in enumerate(names)]
    (folder / "hosts").write_text("".join(["127.0.0.1 localhost\n", *lines]))
    keepers: list[subprocess.Popen[str]] = []
    try:
        for name in [*names, *(["switch"] if number > 2 else [])]:
            (folder / f"{name}.boot_id").write_text(f"{uuid.uuid4()}\n")
            text = KEEPER.format(name=name, folder=folder, life=LIFE)
            command = ["unshare", "--net", "--mount", "--uts", "--ipc", "sh", "-c", text]
            keepers.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            _wait(keepers[-1], folder / f"{name}.ready")
        made = Hosts(folder, [keeper.pid for keeper in keepers], names)
        _connect(made)
        yield made
    finally:
        for keeper in keepers:
            keeper.kill()
            keeper.communicate()


def _address(number: int) -> str:
    return f"10.83.0.{number + 1}"


def _wait(keeper: subprocess.Popen[str], ready: Path) -> None:
    limit = time.monotonic() + PATIENCE
    while not ready.exists():
        if keeper.poll() is not None:
            assert keeper.stderr is not None
            raise Unavailable(f"no namespaces here: {keeper.stderr.read().strip()}")
        if time.monotonic() > limit:
            raise Unavailable("the namespaces did not come up")
        time.sleep(0.02)


def _connect(made: Hosts) -> None:
    """Lay cables between the hosts; until all ends are up, MPIs see no network."""
    hosts = len(made.names)
    if hosts == 2:
        peer = ["peer", "name", "eth0", "netns", str(made.keepers[1])]
        _checked(made.inside(0, "ip", "link", "add", "eth0", "type", "veth", *peer))
    else:
        _connect_switch(made)
    for number in range(hosts):
        address = f"{_address(number)}/24"
        _checked(made.inside(number, "ip", "addr", "add", address, "dev", "eth0"))
        _checked(made.inside(number, "ip", "link", "set", "eth0", "up"))
    limit = time.monotonic() + PATIENCE
    for number in range(hosts):
        while " UP " not in _checked(made.inside(number, "ip", "-brief", "link", "show", "eth0")):
            if time.monotonic() > limit:
                raise Unavailable("the cable between the namespaces does not come up")
            time.sleep(0.02)


def _connect_switch(made: Hosts) -> None:
    """Lay a cable from each host to the switch."""
    switch = len(made.names)
    _checked(made.inside(switch, "ip", "link", "add", "bridge", "type", "bridge"))
    _checked(made.inside(switch, "ip", "link", "set", "bridge", "up"))
    for number in range(switch):
        port = f"port{number}"
        peer = ["peer", "name", "eth0", "netns", str(made.keepers[number])]
        _checked(made.inside(switch, "ip", "link", "add", port, "type", "veth", *peer))
        _checked(made.inside(switch, "ip", "link", "set", port, "master", "bridge", "up"))


def _checked(command: Sequence[str]) -> str:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE
    )
    if done.returncode:
        raise Unavailable(f"{' '.join(command[8:])}: {done.stderr.strip()}")
    return done.stdout
