"""Whole programs for the tests: under the launcher of this interpreter's environment, or alone."""

import sys
import textwrap
from pathlib import Path

import pytest
from jobs import DEADLINE_PASSED, environment_of, mpiexec, on_ranks, run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
BIN = environment_of(sys.executable)
if not (BIN / "mpiexec").exists():
    pytest.skip(f"no mpiexec in {BIN}", allow_module_level=True)

OPEN_MPI = len(mpiexec(BIN)) > 1
CLEAN = {"COLLECTIVES_VALIDATE": "0", "COLLECTIVES_TIMEOUT": "20", "COLLECTIVES_ABORT": "1"}
CLEAN["COLLECTIVES_PROFILE"] = "0"  # that of this machine is not under test


def program(text, ranks=2, env=None, options=(), head="", **launch):
    """Run a program on some ranks, in a folder from which nothing is imported.

    `launch` are other arguments of `jobs.on_ranks`.
    """
    source = textwrap.dedent(head) + textwrap.dedent(text)
    return on_ranks(
        sys.executable,
        ranks,
        *options,
        "-c",
        source,
        env={**CLEAN, **(env or {})},
        **launch,
    )


def passes(text, ranks=2, **options):
    """Run a program that must end well; return what it left."""
    result = program(text, ranks, **options)
    assert result.status == 0, result
    return result


def fails(text, ranks=2, **options):
    """Run a program that must end with an error of its own; return what it left."""
    result = program(text, ranks, **options)
    assert result.status not in (0, DEADLINE_PASSED), result
    return result


def example(name, ranks, *options):
    """Run an example that must end well; return what it prints."""
    result = on_ranks(sys.executable, ranks, EXAMPLES / name, *options)
    assert result.status == 0, result
    return result.out


def alone(text, env=None, options=()):
    """Run a program without a launcher."""
    return run(
        [sys.executable, *options, "-c", textwrap.dedent(text)],
        env={**CLEAN, **(env or {})},
    )
