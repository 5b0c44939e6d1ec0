"""The log: what ranks tell `logging`, and how it is printed."""

import logging
import re

import pytest
from programs import alone, program

import collectives as cc
from collectives.errors import ArgumentError
from collectives.text import logs

LINE = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} rank (\d) on \S+: "


def told(result):
    """Return the rank and the text of each line of the log."""
    return sorted(re.findall(f"^{LINE}(.*)$", result.err, re.M))


@pytest.mark.any_mpi
@pytest.mark.parametrize(
    ("shm", "way"),
    [
        ("auto", "shared memory"),
        ("0", r"messages by (MPICH|Open MPI) \S+, because COLLECTIVES_SHM is 0"),
    ],
)
def test_the_variable_prints_the_log_of_all_ranks(shm, way):
    result = program(
        "import collectives as cc\ncc.barrier()\ncc.world().dup().barrier()",
        2,
        env={"COLLECTIVES_LOG": "Info", "COLLECTIVES_SHM": shm},
    )
    assert result.status == 0, result
    assert [rank for rank, _ in told(result)] == ["0", "1"]
    for _, text in told(result):
        assert re.fullmatch(rf"INFO: Communicator\(\): 2 ranks on 1 host, {way}", text)


@pytest.mark.any_mpi
@pytest.mark.parametrize("shm", ["auto", "0"])
def test_a_healthy_run_has_nothing_to_warn_of(shm):
    result = program(
        """
        import asyncio
        import numpy as np
        import collectives as cc
        from collectives import background

        async def awaited(comm):
            await comm.iallreduce(np.ones(3))

        with cc.world().dup() as comm, comm.split(comm.rank) as alone:
            for algorithm in (None, "ring", "tree"):
                comm.allreduce(np.ones(1 << 16), algorithm=algorithm)
            comm.plan("alltoall", np.ones(2))()
            comm.allgather_object({"rank": comm.rank})
            comm.cart((0,), periods=True).neighbor_alltoall(np.ones(2))
            background.submit("allreduce", np.ones(3), name="x", group=comm).wait()
            asyncio.run(awaited(comm))
            alone.barrier()
        """,
        2,
        env={"COLLECTIVES_LOG": "warning", "COLLECTIVES_SHM": shm},
    )
    assert (result.status, result.err) == (0, ""), result


@pytest.mark.any_mpi
def test_a_rank_that_gives_up_logs_why():
    result = program(
        """
        import logging, os
        import numpy as np
        from mpi4py import MPI
        import collectives as cc
        logging.basicConfig(format="%(levelname)s %(name)s %(rank)s %(message)s")
        comm = cc.world()
        comm.timeout = 0.3
        if comm.rank == 0:
            try:
                comm.recv(np.ones(1), 1)
            except cc.errors.StallError:
                pass
        MPI.COMM_WORLD.Barrier()
        os._exit(0)
        """,
        2,
        env={"COLLECTIVES_VALIDATE": "0"},
    )
    assert "ERROR collectives 0 StallError: recv 'direct' on 2 ranks: rank 0 " in result.err


@pytest.mark.any_mpi
def test_a_wrong_level_in_the_variable():
    result = program("import collectives as cc; cc.barrier()", 1, env={"COLLECTIVES_LOG": "loud"})
    assert result.status
    text = "COLLECTIVES_LOG: level is 'loud', and must be one of: DEBUG, INFO, WARNING, ERROR"
    assert text in result.err


@pytest.fixture
def logger():
    logger = logging.getLogger("collectives")
    before = logger.handlers[:], logger.level, logger.propagate
    yield logger
    logger.handlers[:], logger.level, logger.propagate = before


def test_records_have_rank_and_host(logger, caplog, monkeypatch):
    monkeypatch.setattr(logs, "_place", {"rank": 3, "host": "north"})
    logger.propagate = True
    with caplog.at_level("INFO", "collectives"):
        logs.note("INFO", "100 % of it")
        logs.note("DEBUG", "not this")
    assert [each.getMessage() for each in caplog.records] == ["100 % of it"]
    assert (caplog.records[0].rank, caplog.records[0].host) == (3, "north")
    assert caplog.records[0].pathname == __file__


def test_a_second_call_changes_the_level(logger, capsys):
    cc.log_to_stderr("warning")
    assert cc.log_to_stderr("error") is logger
    logs.note("WARNING", "not this")
    logs.note("ERROR", "this")
    assert capsys.readouterr().err.splitlines()[0].endswith(": ERROR: this")
    assert len([each for each in logger.handlers if type(each) is logging.StreamHandler]) == 1


@pytest.mark.parametrize("level", ["loud", 20, None, ""])
def test_a_wrong_level(level):
    with pytest.raises(ArgumentError, match="and must be one of: DEBUG, INFO, WARNING, ERROR"):
        cc.log_to_stderr(level)


@pytest.mark.any_mpi
def test_a_thread_that_loads_logging_is_waited_for():
    """A module is in `sys.modules` before it is complete."""
    done = alone(
        """
        import importlib.machinery, sys, threading, time
        from collectives.text import logs

        assert "logging" not in sys.modules
        has_begun = threading.Event()

        class Slow(importlib.machinery.SourceFileLoader):
            def exec_module(self, module):
                has_begun.set()
                time.sleep(0.3)
                super().exec_module(module)

        class Finder(importlib.machinery.PathFinder):
            @classmethod
            def find_spec(cls, name, path=None, target=None):
                spec = super().find_spec(name, path, target)
                if name == "logging":
                    spec.loader = Slow(name, spec.origin)
                return spec

        sys.meta_path.insert(0, Finder)
        thread = threading.Thread(target=__import__, args=("logging",))
        thread.start()
        has_begun.wait()
        logs.note("INFO", "a text")
        thread.join()
        print("logged")
        """
    )
    assert (done.status, done.out) == (0, "logged\n"), done
