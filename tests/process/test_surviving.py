"""Ranks that go on when others are lost: agreements, smaller communicators, states."""

from __future__ import annotations

import importlib.util
import re
import textwrap
from pathlib import Path

import pytest
from commands import command
from programs import OPEN_MPI, passes

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "elastic_sgd.py"

WAYS = [(), ("--no-mpi",)] if OPEN_MPI else [("--no-mpi",)]


@pytest.mark.each_mpi("mpich")
@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_the_ranks_that_are_left_come_to_the_same_result(way: tuple[str, ...]) -> None:
    done = command(
        "run", *way, "--elastic", "-n", "4", str(EXAMPLE), "--lose", "1:120", "3:120", "0:310"
    )
    assert done.returncode == 0, done.stderr
    begun = set(re.findall(r"rank (\d) is rank (\d) of (\d) from step (\d+)", done.stdout))
    assert {each for each in begun if each[3] == "0"} == {(r, r, "4", "0") for r in "0123"}
    assert ("0", "0", "2", "100") in begun
    assert ("2", "0", "1", "300") in begun
    assert re.search(r"1 ranks are left; distance [0-9.]+e-1\d", done.stdout)


@pytest.mark.any_mpi
def test_agreements_and_communicators_of_who_is_left(tmp_path: Path) -> None:
    text = textwrap.dedent("""
            import os, signal
            import numpy as np, collectives as cc
            comm = cc.Communicator(timeout=30)
            rank = comm.rank
            flags = [7, 6, 12, 14]
            assert comm.agree(flags[rank]) == 4
            assert comm.agree() == 1
            same = comm.dup().shrink()
            assert (same.rank, same.size) == (rank, 4)
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if rank == 2:
                comm.agree(flags[rank])  # what it has said counts
                os.kill(os.getpid(), signal.SIGKILL)
            assert comm.agree(flags[rank]) == 4
            left = comm.shrink()
            while left.size > 2:  # rank 2 may have been there still
                left = left.shrink()
            assert left.allgather_object(rank) == [0, 3]
            assert repr(comm) == "<collectives.Communicator, freed>"
            for call in (comm.shrink, comm.agree):
                try:
                    call()
                except cc.errors.CommunicatorError as error:
                    assert "was freed" in str(error)
            for flag in (-1, 1 << 31, "x"):
                try:
                    left.agree(flag)
                except cc.errors.ArgumentError as error:
                    assert "flag is" in str(error)
            print("well", flush=True)
            """)
    done = command("run", "--no-mpi", "--elastic", "-n", "4", "-c", text)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("well") == 2


WORLD = """
import os, signal
import numpy as np, collectives as cc
from collectives import elastic

def count(state):
    while state.step < 20:
        if state.step == 10 and cc.size() == 3 and cc.rank() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        state.total += cc.allreduce(np.ones(1))[0] / cc.size()
        state.step += 1
        state.commit()

state = elastic.State(step=0, total=0.0)
elastic.run(state, count)
assert cc.world() is state.comm
os.write(1, f"{cc.rank()} of {cc.size()}: {state.total}\\n".encode())
"""


@pytest.mark.each_mpi("mpich")
@pytest.mark.parametrize("way", WAYS, ids=" ".join)
def test_the_functions_on_the_default_communicator_have_who_is_left(
    tmp_path: Path, way: tuple[str, ...]
) -> None:
    program = tmp_path / "program.py"
    program.write_text(WORLD)
    done = command("run", *way, "--elastic", "-n", "3", str(program))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 of 2: 20.0", "1 of 2: 20.0"]


@pytest.mark.any_mpi
@pytest.mark.parametrize("way", [(), ("--no-mpi",)], ids=" ".join)
def test_a_job_that_is_started_again_goes_on_from_a_file(
    tmp_path: Path, way: tuple[str, ...]
) -> None:
    text = textwrap.dedent("""
            import os, signal, sys
            import numpy as np, collectives as cc
            from collectives import elastic
            state = elastic.State(total=np.zeros(2), step=0)
            total, (file, attempt) = state.total, (sys.argv[1], os.environ["COLLECTIVES_RESTART"])
            assert state.load(file) == (attempt != "0")
            sys.stdout.write(f"from {state.step}\\n")
            sys.stdout.flush()
            while state.step < 100:
                state.total += state.comm.allreduce(np.ones(2)) / state.comm.size
                state.step += 1
                if state.step % 10 == 0:
                    state.save(file)
                if state.comm.rank == 1 and (attempt, state.step) in (("0", 42), ("1", 77)):
                    os.kill(os.getpid(), signal.SIGKILL)
            assert state.total is total
            assert total.tolist() == [100, 100]
            """)
    words = "run", *way, "--restarts", "2", "-n", "2", "-c", text
    done = command(*words, str(tmp_path / "state"))
    assert done.returncode == 0, done.stderr
    begun = [line for line in done.stdout.splitlines() if line.startswith("from ")]
    assert sorted(begun) == sorted(["from 0", "from 40", "from 70"] * 2)
    assert "restart 2 of 2" in done.stderr
    (tmp_path / "other").write_bytes(b"no pickle")
    done = command(*words, str(tmp_path / "other"))
    assert done.returncode != 0
    assert "is no file of a State" in done.stderr


@pytest.mark.slow
@pytest.mark.any_mpi
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
def test_a_program_for_horovod_goes_on(tmp_path: Path) -> None:
    text = textwrap.dedent("""
            import os, signal, sys
            import torch
            import collectives.torch as hvd
            hvd.init()
            first = hvd.rank()
            model = torch.nn.Linear(8, 1)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
            state = hvd.elastic.TorchState(model=model, optimizer=optimizer, step=0)
            x = torch.randn(60, 8, generator=torch.Generator().manual_seed(1))

            @hvd.elastic.run
            def train(state):
                sys.stdout.write(f"{first} is {hvd.rank()} of {hvd.size()} from {state.step}\\n")
                sys.stdout.flush()
                while state.step < 30:
                    if (first, state.step) == (1, 17):
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
            """)
    done = command("run", "--no-mpi", "--elastic", "-n", "3", "-c", text, OMP_NUM_THREADS="1")
    assert done.returncode == 0, done.stderr
    begun = [f"{rank} is {rank} of 3 from 0" for rank in range(3)]
    assert sorted(done.stdout.splitlines()) == sorted(
        [*begun, "0 is 0 of 2 from 15", "2 is 1 of 2 from 15"]
    )


@pytest.mark.any_mpi
def test_a_job_that_does_not_survive_says_so() -> None:
    result = passes(
        """
        import collectives as cc
        from collectives import elastic
        try:
            cc.world().shrink()
        except cc.errors.CommunicatorError as error:
            print(error)
        def function(state):
            raise cc.errors.PeerLostError("a test")
        try:
            elastic.run(elastic.State(), function)
        except cc.errors.PeerLostError as error:
            print(error)
        try:
            elastic.State(commit=1)
        except cc.errors.ArgumentError as error:
            print(error)
        try:
            elastic.run(7, function)
        except cc.errors.ArgumentError as error:
            print(error)
        """,
        ranks=1,
    )
    assert "shrink() needs ranks that continue when one is lost" in result.out
    assert "a test" in result.out
    assert "cannot be called 'commit'" in result.out
    assert "state is 7, and must be an elastic.State" in result.out
    if not OPEN_MPI:
        done = command("run", "--elastic", "-n", "2", "-c", "pass")
        assert done.returncode == 2
        assert "--elastic needs Open MPI, or --no-mpi" in done.stderr
