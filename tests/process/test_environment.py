"""The environment: a variable that is set but empty counts as not set."""

from __future__ import annotations

import re

import pytest
from programs import alone

from collectives.choice import profile, select
from collectives.errors import ArgumentError
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


FLAGS = ["COLLECTIVES_ABORT", "COLLECTIVES_VALIDATE"]
FLAGS += [environment.SHARED_ARRAYS, environment.REPORT]


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("default", [False, True])
def test_flags_have_one_rule(monkeypatch: pytest.MonkeyPatch, name: str, default: bool) -> None:
    pattern, wanted = environment.VARIABLES[name]
    for value, answer in [
        *((word, False) for word in ("0", "no", "off", "false", "No", "FALSE")),
        *((word, True) for word in ("1", "yes", "on", "true", "True")),
    ]:
        monkeypatch.setenv(name, value)
        assert environment.flag(name, default) == answer
        assert re.fullmatch(pattern, value)
    for value in ("2", "maybe", "-1", "00", " ", "01", "no\n", "nofalse"):
        monkeypatch.setenv(name, value)
        with pytest.raises(ArgumentError) as caught:
            environment.flag(name, default)
        assert str(caught.value) == (
            f"{name} is {value!r}, and must be 0 (no, off, false) or 1 (yes, on, true)"
        )
        assert wanted == environment.FLAGS
        assert not re.fullmatch(pattern, value)


@pytest.mark.parametrize("name", FLAGS)
def test_an_invalid_flag_is_an_error_of_the_program(name: str) -> None:
    result = alone("import collectives as cc; cc.world()", env={name: "maybe"})
    assert result.status == 1
    assert f"ArgumentError: {name} is 'maybe', and must be 0 (no, off, false) or 1" in result.err


def test_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("0", "no", "OFF", "false"):
        monkeypatch.setenv("COLLECTIVES_PROFILE", value)
        assert profile.path() is None


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
