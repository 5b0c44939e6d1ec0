"""Two hosts on one machine, for `faults.py`: network namespaces with a link. Standard library only.

Each has a network, a name, a ``/dev/shm`` and a boot ID of its own. The processes and all other
files are those of this machine. It needs to be root, and the programs ip, tc, nsenter and unshare.
"""

from __future__ import annotations

import contextlib
import subprocess
import time
import uuid
from pathlib import Path

NAMES = "host1", "host2"
RATE = 1000  # Mbit/s
SLOW = 10  # 1 % of it

# A process that keeps the namespaces of a host.
KEEPER = """
mount --make-rprivate /
mount -t tmpfs -o size=2g none /dev/shm
mount --bind {folder}/{name}.boot /proc/sys/kernel/random/boot_id
mount --bind {folder}/hosts /etc/hosts
hostname {name}
touch {folder}/{name}.ready
exec sleep infinity
"""

# What launchers call in the place of ssh: options, a host, and a command.
AGENT = """\
#!/bin/bash
while [[ "$1" == -* ]]; do shift; done
host=$1; shift
exec nsenter -t $(cat {folder}/$host.pid) -n -m -u -i -- bash -c "$*"
"""


class Hosts:
    """Two hosts; used in a ``with`` statement, which removes them.

    Parameters
    ----------
    folder : path
        Where files of them lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.agent = folder / "agent"
        self._keepers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Hosts:
        lines = [f"10.99.0.{number} {name}\n" for number, name in enumerate(NAMES, 1)]
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))
        self.agent.write_text(AGENT.format(folder=self.folder))
        self.agent.chmod(0o755)
        try:
            for name in NAMES:
                (self.folder / f"{name}.boot").write_text(f"{uuid.uuid4()}\n")
                script = KEEPER.format(folder=self.folder, name=name)
                command = ["unshare", "-n", "-m", "-u", "-i", "sh", "-ec", script]
                self._keepers.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
                (self.folder / f"{name}.pid").write_text(str(self._keepers[-1].pid))
                self._await(self.folder / f"{name}.ready")
            second = str(self._keepers[1].pid)
            self.run(
                0, "ip", "link", "add", "eth0", "type", "veth", "peer", "eth0", "netns", second
            )
            for number in range(2):
                self.run(number, "ip", "address", "add", f"10.99.0.{number + 1}/24", "dev", "eth0")
                for each in ("lo", "eth0"):
                    self.run(number, "ip", "link", "set", each, "up")
            self.rate(RATE)
            self._await_link()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._keepers:
            each.kill()
            each.wait()

    def _await(self, path: Path) -> None:
        limit = time.monotonic() + 10
        while not path.exists():
            if time.monotonic() > limit:
                raise SystemExit(f"no namespaces can be made here: there is no {path.name}")
            time.sleep(0.01)

    def _await_link(self) -> None:
        """Wait until both ends are up: until then, MPIs believe that there is no network."""
        for number in range(2):
            command = [*self.words(number), "ip", "-brief", "link", "show", "eth0"]
            limit = time.monotonic() + 10
            while b" UP " not in subprocess.run(command, capture_output=True).stdout:
                if time.monotonic() > limit:
                    raise SystemExit("the link between the hosts does not come up")
                time.sleep(0.05)
        time.sleep(0.5)

    def words(self, number: int) -> list[str]:
        """Return what stands before a command that runs on a host."""
        return ["nsenter", "-t", str(self._keepers[number].pid), "-n", "-m", "-u", "-i", "--"]

    def run(self, number: int, *command: str) -> None:
        subprocess.run([*self.words(number), *command], check=True)

    def rate(self, mbit: int) -> None:
        """Set how fast the link is, in both directions."""
        text = f"tc qdisc replace dev eth0 root tbf rate {mbit}mbit burst 256kb latency 20ms"
        for number in range(2):
            self.run(number, *text.split())

    def cut(self) -> None:
        """Take the link away."""
        self.run(1, "ip", "link", "set", "eth0", "down")

    def join(self) -> None:
        """Put it back."""
        self.run(1, "ip", "link", "set", "eth0", "up")
        self.rate(RATE)

    def shared(self) -> list[Path]:
        """Return the folders of shared memory, as this process sees them."""
        return [Path(f"/proc/{each.pid}/root/dev/shm") for each in self._keepers]

    def command(self, python: Path, mpi: str, ranks: int, program: list[str]) -> list[str]:
        """Return the command that starts a program on both hosts, half of the ranks on each."""
        launcher = str(python.parent / "mpiexec")
        hosts = ",".join(f"{name}:{ranks // 2}" for name in NAMES)
        if mpi == "Open MPI":
            options = ["--prtemca", "plm_ssh_agent", str(self.agent), "--host", hosts]
            options += ["--prefix", str(python.parent.parent), "--bind-to", "none"]
            options += ["--mca", "mpi_yield_when_idle", "1"]
        else:
            options = ["-launcher", "ssh", "-launcher-exec", str(self.agent), "-iface", "eth0"]
            options += ["-hosts", hosts]
        return [*self.words(0), launcher, *options, "-n", str(ranks), str(python), *program]


def able() -> bool:
    """Return whether hosts can be made."""
    with contextlib.suppress(OSError):
        done = subprocess.run(["unshare", "-n", "-m", "-u", "-i", "true"], capture_output=True)
        return done.returncode == 0
    return False
