"""Time an allreduce beside peers that ``collectives bench`` does not know, on a quiet machine.

Run it in an environment of each MPI; it measures the peers of this MPI that it finds there::

    python benchmarks/measure_peers.py benchmarks/results/peers/zen4/mpich.json

- MPICH: its own choice, as mpi4py starts it and without `MPI_THREAD_MULTIPLE`, which lets ranks
  of a host use shared memory; recursive multiplying, and a reduce-scatter and allgather by powers
  of k; DeepSpeed's allreduce in shared memory, after ``pip install --no-deps deepspeed`` beside
  torch. It is compiled with DeepSpeed's options, and works in place.
- Intel MPI: its own choice; oneCCL over this MPI, after ``pip install --no-deps oneccl`` and then
  ``pip install --no-deps oneccl-cpu oneccl-devel``, of the same version: the first has a library
  that the second needs. Python calls it by ctypes. It has no threads of its own if there are as
  many ranks as cores.
- Open MPI: its own choice; XHC and acoll, if this Open MPI has them. XHC copies through shared
  memory at all sizes: without XPMEM, it ends with a segmentation fault above 4 KiB otherwise.

A peer takes the place of the MPI's own collective: blocks of it and of the library are timed in
turns in the same processes. A time is that of the slower rank. The state of the machine is that of
`measure_states.py`: a turn in which it changes is dropped. Compilers put their files in
``build/peers``.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import measure_states
import numpy as np
from turns import options, row

import collectives as cc
from collectives.choice import profile
from collectives.cli.arguments import nbytes
from collectives.launch import launcher
from collectives.measuring import state
from collectives.measuring.bench import MPI_LABEL, Bench, mpi_of
from collectives.measuring.contest import Entry, Settings
from collectives.measuring.gloo import Prepared
from collectives.measuring.measure import measure
from collectives.measuring.operations import Arrays
from collectives.text import files

HERE = Path(__file__).resolve().parent
BUILT = HERE.parent / "build" / "peers"
BLOCKS = 3  # of each in a turn
TURNS = 3  # at least
DEADLINE = 120  # seconds of a job beyond the time that it has to measure
NOTHING: Mapping[str, str] = MappingProxyType({})
Preparation = Callable[[Arrays], Prepared]


class Peer(NamedTuple):
    """A peer, which ranks of one MPI run.

    Attributes
    ----------
    family : str
        The MPI, as the launcher calls it.
    manner : str
        How the MPI differs from its defaults, for the table.
    variables : mapping
        The environment of the ranks.
    package : str
        The distribution that it comes in, if that is not the MPI.
    component : str
        The component of Open MPI that it is, if any.
    build : callable or None
        Compiles the peer once, before ranks start.
    join : callable or None
        Prepares the peer on all ranks; None is the allreduce of the MPI. Collective.
    """

    family: str
    manner: str = ""
    variables: Mapping[str, str] = NOTHING
    package: str = ""
    component: str = ""
    build: Callable[[], Path] | None = None
    join: Callable[[cc.Communicator], Preparation] | None = None


def compiled(name: str, sources: Sequence[Path], words: Sequence[str]) -> Path:
    """Return the library of some sources, which is compiled if it is older than they. Local."""
    path = BUILT / f"{name}.so"
    if not path.exists() or path.stat().st_mtime < max(each.stat().st_mtime for each in sources):
        BUILT.mkdir(parents=True, exist_ok=True)
        command = ["c++", "-O2", "-std=c++20", "-fPIC", "-shared", "-o", str(path)]
        subprocess.run([*command, *map(str, sources), *words], check=True)
    return path


def oneccl_library() -> Path:
    """Return the driver of oneCCL. Local."""
    prefix = Path(sys.prefix)
    words = [f"-I{prefix}/include", f"-L{prefix}/lib", "-lccl", f"-Wl,-rpath,{prefix}/lib"]
    return compiled("oneccl", [HERE / "peers" / "oneccl.cpp"], words)


def oneccl(comm: cc.Communicator) -> Preparation:
    """Prepare the allreduce of oneCCL. Collective."""
    mpi = comm.mpi
    if comm._hosts.is_crowded:
        # Else each wait would last for time slices.
        os.environ.setdefault("CCL_YIELD", "sched_yield")
    library = ctypes.CDLL(str(oneccl_library()))
    library.address_bytes.restype = ctypes.c_size_t
    address = ctypes.create_string_buffer(library.address_bytes())
    if mpi.rank == 0:
        library.open_store(address)
    library.join(mpi.size, mpi.rank, mpi.bcast(address.raw))

    def prepare(arrays: Arrays) -> Prepared:
        x, out = (ctypes.c_void_p(each.ctypes.data) for each in (arrays.x, arrays.out))
        return Prepared(partial(library.allreduce, x, out, ctypes.c_size_t(arrays.n)))

    return prepare


def deepspeed_module() -> Path:
    """Return the module of DeepSpeed for allreduce in shared memory. Local."""
    import sysconfig

    from torch.utils import cpp_extension

    found = importlib.util.find_spec("deepspeed")
    assert found is not None, "its package is installed"
    folder = Path(str(found.origin)).parent / "ops" / "csrc" / "cpu" / "comm"
    words = ["-fopenmp", "-DTORCH_EXTENSION_NAME=deepspeed_shm_comm"]
    includes = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    words += [word for each in includes for word in ("-isystem", each)]
    for each in cpp_extension.library_paths():
        words += [f"-L{each}", f"-Wl,-rpath,{each}"]
    words += ["-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python"]
    sources = [folder / "shm_interface.cpp", folder / "shm.cpp"]
    return compiled("deepspeed_shm_comm", sources, words)


def deepspeed(comm: cc.Communicator) -> Preparation:
    """Prepare the allreduce of DeepSpeed. Collective."""
    import torch

    mpi = comm.mpi
    # The names of its files are made of these.
    job = mpi.bcast(os.getpid())
    os.environ.update(LOCAL_SIZE=str(mpi.size), MASTER_ADDR="peers", MASTER_PORT=str(job))
    sys.path.append(str(deepspeed_module().parent))
    module: Any = importlib.import_module("deepspeed_shm_comm")
    module.initialize(mpi.size, mpi.rank)
    mpi.Barrier()
    # DeepSpeed leaves them there.
    for path in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_peers_{job}_{mpi.rank}"):
        path.unlink()
    call = torch.ops.deepspeed.inference_all_reduce_

    def prepare(arrays: Arrays) -> Prepared:
        out = torch.from_numpy(arrays.out)
        return Prepared(partial(call, out), partial(np.copyto, arrays.out, arrays.x))

    return prepare


def recursive(algorithm: str) -> dict[str, str]:
    """Return the variables with which MPICH uses an algorithm of its own in any allreduce."""
    return {
        "MPIR_CVAR_DEVICE_COLLECTIVES": "none",
        "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": algorithm,
        "MPIR_CVAR_ALLREDUCE_RECURSIVE_MULTIPLYING_KVAL": "4",
        "MPIR_CVAR_ALLREDUCE_RECEXCH_KVAL": "4",
    }


SERIALIZED = {"MPI4PY_RC_THREAD_LEVEL": "serialized"}
PEERS = {
    "mpich": Peer("mpich"),
    "mpich-serialized": Peer("mpich", "`MPI_THREAD_SERIALIZED`", SERIALIZED),
    "mpich-multiplying": Peer(
        "mpich", "recursive multiplying, k = 4", recursive("recursive_multiplying")
    ),
    "mpich-scattering": Peer(
        "mpich", "reduce-scatter and allgather", recursive("k_reduce_scatter_allgather")
    ),
    "deepspeed": Peer(
        "mpich",
        "DeepSpeed",
        {"OMP_NUM_THREADS": "1"},
        package="deepspeed",
        build=deepspeed_module,
        join=deepspeed,
    ),
    "impi": Peer("intel"),
    "oneccl": Peer(
        "intel",
        "oneCCL",
        {"CCL_ATL_TRANSPORT": "mpi", "CCL_LOG_LEVEL": "error"},
        package="oneccl-cpu",
        build=oneccl_library,
        join=oneccl,
    ),
    "openmpi": Peer("openmpi"),
    "openmpi-xhc": Peer(
        "openmpi",
        "XHC",
        {
            "OMPI_MCA_coll_xhc_priority": "100",
            "OMPI_MCA_coll_xhc_allreduce_cico_max": str(64 << 20),
        },
        component="xhc",
    ),
    "openmpi-acoll": Peer(
        "openmpi", "acoll", {"OMPI_MCA_coll_acoll_priority": "100"}, component="acoll"
    ),
}


def title(peer: Peer, library: str) -> str | None:
    """Return the name and version of a peer, or None if it is not installed. Local."""
    if peer.package:
        try:
            return f"{peer.manner} {metadata.version(peer.package)}"
        except metadata.PackageNotFoundError:
            return None
    if peer.component:
        command = ["ompi_info", "--parsable"]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        if f"mca:coll:{peer.component}:" not in found:
            return None
    return f"{library}, {peer.manner}" if peer.manner else library


class Beside(Bench):
    """The ranks, with one peer in the place of the MPI's own collective. Collective."""

    def __init__(self, comm: cc.Communicator, prepare: Preparation) -> None:
        super().__init__(comm, mpi_of(comm))
        self._prepare = prepare

    def peers(self, arrays: Arrays) -> dict[str, Prepared]:
        """Return the call of the peer. Collective."""
        return {MPI_LABEL: self._prepare(arrays)}


def once(bench: Bench, size: int) -> measure_states.Times:
    """Return the seconds of the peer and of the library, of one size. Collective."""
    settings = Settings("allreduce", (Entry(),), np.dtype(np.float32), repeat=BLOCKS)
    rows = measure(bench, settings, size // 4)
    assert not any(each.wrong for each in rows), [(each.algorithm, each.wrong) for each in rows]
    return {measure_states.NAMES[each.algorithm]: 1e-6 * each.max_us for each in rows}


def rank(arguments: argparse.Namespace) -> None:
    """Measure one peer; rank 0 writes the rows. Collective."""
    comm = cc.world()
    join = PEERS[arguments.rank].join
    bench = Bench(comm, mpi_of(comm)) if join is None else Beside(comm, join(comm))
    found: dict[tuple[str, str, int], list[measure_states.Times]] = {}
    end = time.monotonic() + arguments.seconds
    turns = 0
    while turns < TURNS or bench.mpi.bcast(time.monotonic() < end):
        turns += 1
        for size in map(nbytes, arguments.sizes.split(",")):
            before = state.name(state.round_trip(comm, bench.mpi))
            times = once(bench, size)
            if state.name(state.round_trip(comm, bench.mpi)) == before:
                found.setdefault((str(before), "allreduce", size), []).append(times)
    if comm.rank == 0:
        files.write_json(arguments.file, {"rows": list(measure_states.rows(found))})


def measured(name: str, ranks: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Start the ranks of one peer; return their rows."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.json")
        command = [sys.executable, "-m", "collectives", "run", "-n", str(ranks), __file__]
        command += [str(path), "--rank", name, "--sizes", arguments.sizes]
        command += ["--seconds", str(arguments.seconds)]
        subprocess.run(
            command,
            check=True,
            env={**os.environ, **PEERS[name].variables},
            stdin=subprocess.DEVNULL,
            timeout=arguments.seconds + DEADLINE,
        )
        rows = json.loads(path.read_text())["rows"]
    for each in rows:
        each["peer_us"] = each.pop("mpi_us")
    return rows


def main() -> None:
    arguments = options(
        __doc__,
        file=Path,
        ranks="2,4",
        sizes="8,1K,16K,256K,1M,16M",
        seconds=8.0,
        peers=",".join(PEERS),
        rank="",
    )
    if arguments.rank:
        rank(arguments)
        return
    library = launcher.library()
    made, failed = [], []
    for name in arguments.peers.split(","):
        peer = PEERS[name]
        named = title(peer, library.name) if peer.family == library.family else None
        if named is None:
            continue
        if peer.build is not None:
            peer.build()
        for ranks in map(int, arguments.ranks.split(",")):
            print(f"\n{named}, {ranks} ranks")
            print(row("", ["turns", "us", "ours, us", "ours / it"]), flush=True)
            try:
                rows = measured(name, ranks, arguments)
            except subprocess.SubprocessError as error:
                failed.append(f"{named}, {ranks} ranks: {error}")
                continue
            for each in rows:
                cells = [str(each["turns"]), each["peer_us"], each["ours_us"], each["ratio"]]
                print(row(f"  {each['bytes']} bytes, {each['state']}", cells, ".2f"), flush=True)
                made.append({"peer": named, "ranks": ranks, **each})
    document = {
        "command": shlex.join(["python", *sys.argv]),
        "mpi": library.name,
        "cpu": profile.machine()[0],
        "cores": profile.machine()[1],
        "date": time.strftime("%Y-%m-%d"),
        "rows": made,
    }
    arguments.file.parent.mkdir(parents=True, exist_ok=True)
    files.write_json(arguments.file, document)
    if failed:
        sys.exit("\n".join(failed))


if __name__ == "__main__":
    main()
