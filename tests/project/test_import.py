"""The modules that `import collectives` loads, and the names that a prompt shows of it."""

import json
import subprocess
import sys
import textwrap

import pytest

import collectives as cc

# The modules of Python that only some programs need; NumPy and mpi4py load none of them.
RARE = {
    *("argparse", "asyncio", "cloudpickle", "concurrent", "hashlib", "hmac", "json", "logging"),
    *("multiprocessing", "pathlib", "selectors", "socket", "subprocess", "tempfile", "urllib"),
}
# The parts of the library that every program with MPI needs, beside modules of the package itself.
# The first communicator loads the algorithms, `choice` and `plans`.
ROOMS = {"algorithms", "arrays", "calls", "devices", "launch", "process", "text"}


def printed(program):
    """Run a program in a process of its own; return what it prints as JSON."""
    text = textwrap.dedent(program)
    return json.loads(subprocess.check_output([sys.executable, "-c", text], timeout=60, text=True))


@pytest.fixture(scope="module")
def loaded():
    return printed("""
        import json, sys
        import numpy, mpi4py
        before = set(sys.modules)
        import collectives
        print(json.dumps(sorted({*sys.modules} - before)))
        """)


def test_modules_of_python_that_only_some_programs_need_are_not_loaded(loaded):
    assert RARE & {name.partition(".")[0] for name in loaded} == set()
    assert {"mpi4py.MPI", "numpy.typing"}.isdisjoint(loaded)


def test_parts_that_only_some_programs_need_are_not_loaded(loaded):
    deep = {name.split(".")[1] for name in loaded if name.count(".") > 1 and name[:5] == "colle"}
    assert deep == ROOMS
    rare = "rendezvous", "rendezvous_server", "lobby", "channel", "slurm", "ucx", "control_groups"
    assert {f"collectives.process.{name}" for name in rare}.isdisjoint(loaded)
    rare = "compressed", "neighbors", "topologies"
    assert {f"collectives.calls.{name}" for name in rare}.isdisjoint(loaded)
    assert "collectives.devices.requests" not in loaded
    rare = "texts", "flat", "composition", "neighbors"
    assert {f"collectives.algorithms.{name}" for name in rare}.isdisjoint(loaded)


@pytest.mark.parametrize("first", ["algorithms.ring", "plans.schedule", "choice.select"])
def test_the_table_of_algorithms_has_one_order(first):
    listed = printed(f"""
        import json, collectives.{first}
        from collectives import algorithms
        print(json.dumps([algorithms.names(each) for each in algorithms.COLLECTIVES]))
        """)
    assert listed == [cc.algorithms.names(each) for each in cc.algorithms.COLLECTIVES]


def test_threads_may_ask_for_algorithms_first_at_the_same_time():
    lengths = printed("""
        import json, threading, collectives as cc
        from concurrent.futures import ThreadPoolExecutor
        barrier = threading.Barrier(8)
        def ask(_):
            barrier.wait()
            return len(cc.algorithms.names("allreduce"))
        with ThreadPoolExecutor(8) as pool:
            print(json.dumps([*pool.map(ask, range(8))]))
        """)
    assert lengths == [len(cc.algorithms.names("allreduce"))] * 8


def test_a_prompt_lists_what_users_call():
    shown = printed("""
        import json, collectives, collectives.background
        print(json.dumps(dir(collectives)))
        """)
    assert shown == sorted(shown)
    public = {name for name in shown if not name.startswith("__")}
    assert public == {*cc.__all__, "background", "compression"} - {"__version__"}
    assert "__version__" in shown


@pytest.mark.parametrize("name", [name for name in cc.__all__ if name != "__version__"])
def test_what_a_prompt_lists_is_documented(name):
    assert getattr(cc, name).__doc__
