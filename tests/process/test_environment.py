"""The environment: a variable that is set but empty counts as not set."""

from __future__ import annotations

import pytest

from collectives.choice import profile, select
from collectives.measuring import doctor
from collectives.process import environment, segment

NAMES = [*environment.VARIABLES, "COLLECTIVES_ABORT", "COLLECTIVES_HOST", "COLLECTIVES_PROFILE"]


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile, "_known", None)
    for name in NAMES:
        monkeypatch.setenv(name, "")


@pytest.mark.usefixtures("empty")
def test_an_empty_variable_is_not_set() -> None:
    assert environment.text("COLLECTIVES_HOST") is None
    assert environment.seconds("COLLECTIVES_TIMEOUT", 7.0) == 7.0
    assert environment.size("COLLECTIVES_SHM_LANE", 64) == 64
    assert environment.flag("COLLECTIVES_ABORT", default=True)
    assert not environment.flag("COLLECTIVES_VALIDATE")
    assert segment.settings()["kind"] == "auto"
    assert profile.offer(1)[1] == ""
    assert select.decide("allreduce", "ring", p=4, nbytes=8).segment > 0


def test_an_empty_profile_is_that_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLLECTIVES_PROFILE", raising=False)
    usual = profile.path()
    assert usual is not None
    monkeypatch.setenv("COLLECTIVES_PROFILE", "")
    assert profile.path() == usual


@pytest.mark.usefixtures("empty")
def test_doctor_says_so() -> None:
    told = list(doctor._variables())
    assert all(finding.remedy is None for finding in told)
    [unset] = [finding for finding in told if finding.name == "not set"]
    assert "COLLECTIVES_TIMEOUT, _VALIDATE, " in unset.text
