"""Rank 0 finds out about the hosts of a job, on those that the ranks believe to be on."""

from __future__ import annotations

import os

import pytest
from mpi4py import MPI

from collectives.measuring import doctor_hosts, pairs, survey

HOSTS = int(os.environ.get("COLLECTIVES_TEST_HOSTS", "1"))


def test_all_hosts_and_pairs_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "MEASURED", 0.01)
    mpi = MPI.COMM_WORLD.Dup()
    if mpi.rank:
        survey.answer(mpi)
    else:
        found = survey.survey(mpi)
        hosts = min(HOSTS, mpi.size)
        assert not found.lost
        assert [each.ranks for each in found.hosts] == [
            list(range(number, mpi.size, hosts)) for number in range(hosts)
        ]
        assert [each.hosts for each in found.pairs] == [
            (a, b) for b in range(hosts) for a in range(b)
        ]
        for pair in found.pairs:
            assert pair.problem is None
            assert pair.through["here"]
            assert min(pair.measured[name] for name in ("latency", "there", "back")) > 0
        assert found.calls is not None
        assert all(told is not None and told["wrong"] is None for told in found.calls)
        told = list(doctor_hosts.findings(found))
        assert told[0].text.startswith(f"{mpi.size} rank")
        assert sum(finding.name == "pairs" for finding in told) in (0, 1 + len(found.pairs))
        assert told[-1].text.startswith(f"right on {mpi.size} rank")
    mpi.Free()


def test_two_ranks_measure() -> None:
    mpi = MPI.COMM_WORLD.Dup()
    messages = pairs.Messages(mpi).apart(1)
    if mpi.size > 1 and mpi.rank == 1:
        pairs.serve(messages, 0)
    elif mpi.size > 1 and mpi.rank == 0:
        measured = pairs.measure(messages, 1, 0.01)
        assert abs(measured["clock"]) < 60
        assert measured["clock_error"] <= measured["latency"]
    mpi.Barrier()
    mpi.Free()


def test_nobody_is_waited_for_beyond_the_deadline() -> None:
    mpi = MPI.COMM_WORLD.Dup()
    messages = pairs.Messages(mpi)
    with pytest.raises(TimeoutError):
        messages.heard({mpi.rank}, 0.01)
    late = bytearray(8)
    with pytest.raises(TimeoutError):
        messages.recv(late, mpi.rank, 0.01)
    messages.send(b"come now", mpi.rank)  # so that MPI can end
    mpi.Barrier()
    mpi.Free()
