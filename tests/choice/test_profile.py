"""The profile of a machine: its file, the entries that are read, and those that count."""

import json
import os
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest

from collectives.algorithms.groups import Groups
from collectives.algorithms.registry import get
from collectives.algorithms.spec import COLLECTIVES
from collectives.choice import profile, select
from collectives.choice.model import DEFAULT, Parameters, fitted
from collectives.choice.profile import Profile, merged, parse
from collectives.choice.sections import Learned, Row, Section, hosts_of
from collectives.errors import ArgumentError, ProfileWarning

ROWS = (Row(1023, "tree", 0, ((8, 1.5e-6), (512, 2e-6))), Row(None, "ring", 4096, ((4096, 0.25),)))
NUMBERS = Parameters(1e-6, 2e-10, 3e-11, "the profile of 2026-11-21, 4 ranks")
SECTION = Section(
    "mpich",
    "MPICH 5.0.2",
    "one",
    "2026-11-21",
    "collectives tune",
    {4: NUMBERS},
    {"allreduce": {4: ROWS, 2: ROWS[1:]}, "barrier": {4: (Row(None, "direct", 0, ((0, 1e-6),)),)}},
)
WHOLE = Profile("a cpu", 2, "0.1.0", (SECTION,))


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    monkeypatch.setattr(profile, "_known", None)
    monkeypatch.delenv("COLLECTIVES_TUNE", raising=False)
    monkeypatch.setenv("COLLECTIVES_PROFILE", "0")


def test_what_is_written_is_read():
    assert parse(WHOLE.text()) == WHOLE
    assert parse(Profile("", 1, "").text()) == Profile("", 1, "")


def test_a_parameter_that_could_not_be_fitted_is_not_in_the_file():
    partial = replace(SECTION, parameters={4: fitted(1e-6, 2e-10, None, NUMBERS.origin)})
    text = Profile("a cpu", 2, "0.1.0", (partial,)).text()
    assert '    "4": {"alpha": 1e-06, "beta": 2e-10}\n' in text
    known = parse(text).sections[0].model(4)
    assert known is not None
    assert (known.assumed, known.gamma) == (("gamma",), DEFAULT.gamma)
    # Older versions wrote 0.
    older = WHOLE.text().replace('"gamma": 3e-11', '"gamma": 0.0')
    assert parse(older).sections[0].model(4) == known


def test_a_gap_is_in_the_file_where_it_was_measured():
    measured = replace(NUMBERS, gap=2.5e-5)
    text = Profile("a cpu", 2, "0.1.0", (replace(SECTION, parameters={4: measured}),)).text()
    assert '"gap": 2.5e-05' in text
    assert parse(text).sections[0].model(4) == measured
    known = parse(text.replace("2.5e-05", "-1e-06")).sections[0].model(4)
    assert known == NUMBERS  # a gap below zero is noise


def test_round_trips_are_kept_for_each_number_of_ranks():
    with_trips = replace(SECTION, round_trips={4: (1e-7, 5e-7)})
    whole = Profile("a cpu", 2, "0.1.0", (with_trips,))
    assert parse(whole.text()) == whole
    again = replace(SECTION, round_trips={2: (2e-7,)})
    assert merged(whole, again).sections[0].round_trips == {4: (1e-7, 5e-7), 2: (2e-7,)}


LEARNED = Learned(17, False, "ring", "tree", 0, 1, True, 1.5e-5, 70_000)


def test_what_programs_learn_is_beside_what_was_measured(monkeypatch, tmp_path):
    file = tmp_path / "p.json"
    monkeypatch.setenv("COLLECTIVES_PROFILE", str(file))
    other = LEARNED._replace(bits=18, seconds=2e-5)
    for found in ([LEARNED, other], [LEARNED._replace(algorithm="ring")], []):
        for each in found:
            profile.remember("allreduce", 4, each)
        profile.write_learned()
    (section,) = profile.read(str(file)).sections
    assert section.learned_of("allreduce", 4, 17, False).algorithm == "ring"
    assert section.learned_of("allreduce", 4, 18, False) == other
    assert section.learned_of("allreduce", 4, 17, True) is None
    assert section.learned_of("allreduce", 2, 17, False) is None
    # A measurement keeps it, and a setting that is learned later keeps the measurement.
    measured = replace(SECTION, transport="shm", library="any")
    profile.add([measured], str(file), mends=False)
    profile.remember("barrier", 2, LEARNED._replace(bits=0))
    profile.write_learned()
    (section,) = profile.read(str(file)).sections
    assert section.rows == SECTION.rows
    assert {*section.learned} == {"allreduce", "barrier"}
    assert (section.library, section.date) == ("any", SECTION.date)


def test_programs_that_end_at_the_same_time_lose_nothing(tmp_path):
    file = tmp_path / "p.json"
    program = """if True:
        import sys
        from collectives.choice import profile, sections
        me = int(sys.argv[1])
        found = sections.Learned(17, False, "ring", "tree", 0, 1, True, 1e-5)
        sys.stdin.read()  # all end at once
        for p in range(2, 12):
            profile.remember(f"of {me}", p, found)
            profile.write_learned()
    """
    reader, writer = os.pipe()
    programs = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(i)],
            stdin=reader,
            env={**os.environ, "COLLECTIVES_PROFILE": str(file)},
        )
        for i in range(5)
    ]
    os.close(reader)
    os.close(writer)
    assert [each.wait(100) for each in programs] == [0] * 5
    (section,) = profile.read(str(file)).sections
    assert {name: [*sizes] for name, sizes in section.learned.items()} == {
        f"of {i}": [*range(2, 12)] for i in range(5)
    }
    assert os.listdir(tmp_path) == ["p.json"]


def test_a_profile_that_cannot_be_read_is_left_as_it_is(monkeypatch, tmp_path):
    file = tmp_path / "p.json"
    file.write_text("mine")
    monkeypatch.setenv("COLLECTIVES_PROFILE", str(file))
    profile.remember("allreduce", 4, LEARNED)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        profile.write_learned()
    assert file.read_text() == "mine"
    monkeypatch.setenv("COLLECTIVES_PROFILE", "0")
    profile.remember("allreduce", 4, LEARNED)
    profile.write_learned()
    assert [each.name for each in tmp_path.iterdir()] == ["p.json"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"bits": -1},
        {"ordered": 1},
        {"algorithm": 3},
        {"segment": 1 << 70},
        {"ways": 16},
        {"ways": "all"},
        {"is_far": "far"},
        {"seconds": float("inf")},
        {"nbytes": -1},
    ],
    ids=str,
)
def test_what_no_program_has_learned(wrong):
    section = replace(SECTION, learned={"allreduce": {4: (LEARNED,)}})
    assert parse(Profile("", 1, "", (section,)).text()).sections[0] == section
    section = replace(SECTION, learned={"allreduce": {4: (LEARNED._replace(**wrong),)}})
    with pytest.raises(ValueError, match="Error: "):
        parse(Profile("", 1, "", (section,)).text())


def test_each_row_has_a_line_of_its_own():
    lines = WHOLE.text().splitlines()
    assert '      [1023, "tree", 0, [[8, 1.5e-06], [512, 2e-06]]],' in lines
    assert '      [null, "ring", 4096, [[4096, 0.25]]]' in lines
    assert '    "4": {"alpha": 1e-06, "beta": 2e-10, "gamma": 3e-11}' in lines


def test_the_table_that_is_shipped_is_a_profile():
    table = select.measured()
    assert {section.transport for section in table.sections} == {"shm"}
    for section in table.sections:
        assert set(section.rows) == set(COLLECTIVES)
        for name, sizes in section.rows.items():
            for rows in sizes.values():
                limits = [row.limit for row in rows]
                assert limits[-1] is None
                assert limits[:-1] == sorted(limits[:-1])
                assert all(get(name, row.algorithm).included for row in rows)


def test_the_nearest_number_of_ranks_counts():
    assert SECTION.row("allreduce", 4, 8) == (4, ROWS[0])
    assert SECTION.row("allreduce", 3, 8) == (4, ROWS[0])
    assert SECTION.row("allreduce", 1, 8) == (2, ROWS[1])
    assert SECTION.row("allreduce", 8, 1024) == (4, ROWS[1])
    assert SECTION.row("allreduce", 9, 8) is None
    assert SECTION.row("allreduce", 9, 8, within=float("inf")) == (4, ROWS[0])
    assert SECTION.row("gather", 4, 8) is None
    assert SECTION.model(8) == NUMBERS
    assert SECTION.model(9) is None


def test_the_nearest_time_is_told():
    assert ROWS[0].nearest(0) == (8, 1.5e-6)
    assert ROWS[0].nearest(60) == (8, 1.5e-6)
    assert ROWS[0].nearest(70) == (512, 2e-6)
    assert Row(None, "ring", 0).nearest(8) is None


def test_a_section_is_of_one_transport_and_library():
    whole = Profile(
        "", 2, "", (SECTION, Section("shm", "MPICH 5.0.2"), Section("mpich", "MPICH 4"))
    )
    assert whole.section("mpich", "MPICH 5.0.2", "one") is SECTION
    assert whole.section("mpich", "MPICH 5.0.2", "many") is None
    assert whole.section("mpich", "MPICH 5.0.3", "one") is None
    assert whole.section("openmpi", "MPICH 5.0.2", "one") is None
    assert [hosts_of(Groups.sized(each)) for each in ([4], [1, 1], [2, 4])] == [
        "one",
        "many",
        "many of 4",
    ]
    # MPI carries nothing in shared memory.
    assert whole.section("shm", "Open MPI 5.0.11", "one") is whole.sections[1]


def test_new_rows_take_the_place_of_old_ones():
    new = Section(
        "mpich", "MPICH 5.0.2", date="later", parameters={2: NUMBERS}, rows={"allreduce": {2: ROWS}}
    )
    (found,) = merged(WHOLE, new).sections
    assert found.date == "later"
    assert found.rows == {**SECTION.rows, "allreduce": {4: ROWS, 2: ROWS}}
    assert set(found.parameters) == {2, 4}
    other = Section("shm", "MPICH 5.0.2")
    assert merged(WHOLE, other).sections == (SECTION, other)


def test_the_file_is_in_the_cache_of_the_user(monkeypatch, tmp_path):
    monkeypatch.delenv("COLLECTIVES_PROFILE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/c")
    monkeypatch.setattr(profile, "machine", lambda: ("Some CPU (R) @ 2 GHz", 4))
    assert profile.path() == "/c/collectives/profile-some-cpu-r-2-ghz-4.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/h")
    assert profile.path() == "/h/.cache/collectives/profile-some-cpu-r-2-ghz-4.json"
    monkeypatch.setenv("COLLECTIVES_PROFILE", "/p.json")
    assert profile.path() == "/p.json"
    monkeypatch.setenv("COLLECTIVES_PROFILE", "0")
    assert profile.path() is None


def test_a_file_is_written_in_one_piece(tmp_path):
    file = tmp_path / "new" / "p.json"
    profile.add(WHOLE.sections, str(file), mends=False)
    assert profile.read(str(file)).sections == WHOLE.sections
    assert [each.name for each in file.parent.iterdir()] == ["p.json"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "Expecting property name"),
        ("[]", "it has no version"),
        ('{"version": 2}', "it is of version 2, and this library reads version 1"),
        ('{"version": 1}', "KeyError: 'machine'"),
        (WHOLE.text().replace('"tree"', "17"), "17 is not the name of an algorithm"),
        (WHOLE.text().replace("[1023,", '["many",'), "ValueError: invalid literal"),
        (WHOLE.text().replace('"alpha"', '"delta"'), "KeyError: 'alpha'"),
        (WHOLE.text().replace("[[4096, 0.25]]", "7"), "TypeError"),
    ],
)
def test_what_cannot_be_read_is_a_warning_that_says_what_to_do(tmp_path, text, problem):
    file = tmp_path / "p.json"
    file.write_text(text)
    with pytest.warns(ProfileWarning) as caught:
        assert profile.read(str(file)) is None
    (warning,) = caught
    assert warning.filename == __file__  # not in the library
    said = str(warning.message)
    assert said.startswith(f"the profile {file} is not used: ")
    assert problem in said
    assert said.endswith(
        "Delete it, or write it anew with `collectives tune`, or set COLLECTIVES_PROFILE=0"
    )


BAD_NUMBERS = {
    "segment": ('"ring", 4096', f'"ring", {2**70}', "is not a number of bytes"),
    "limit": ("[1023,", "[1e400,", "OverflowError"),
    "seconds": ("[4096, 0.25]", "[4096, 1e400]", "inf is not a number of seconds"),
    "alpha": ('"alpha": 1e-06', '"alpha": NaN', "nan is not a number of seconds"),
}


@pytest.mark.parametrize("case", BAD_NUMBERS)
def test_numbers_that_no_profile_has(case):
    good, bad, problem = BAD_NUMBERS[case]
    assert good in WHOLE.text()
    with pytest.raises(ValueError, match=problem):
        parse(WHOLE.text().replace(good, bad))


def test_files_that_are_no_profiles(tmp_path):
    deep, pipe, huge = (tmp_path / name for name in ("deep", "pipe", "huge"))
    deep.write_text("[" * 100_000)
    os.mkfifo(pipe)
    huge.touch()
    os.truncate(huge, 3 << 30)
    for file, problem in ((deep, "nested"), (pipe, "regular"), (huge, "it has 3 GiB")):
        with pytest.warns(ProfileWarning, match=problem):
            assert profile.read(str(file)) is None


def test_a_file_that_was_named_and_cannot_be_made_is_a_warning(monkeypatch, tmp_path):
    file = str(tmp_path / "p.json")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert profile.read(file) is None
        monkeypatch.setenv("COLLECTIVES_PROFILE", file)
        assert profile.read(file) is None  # what programs learn makes it
    profile.remember("allreduce", 4, LEARNED)
    profile.write_learned()
    assert profile.read(file).sections[0].learned["allreduce"] == {4: (LEARNED,)}
    file = str(tmp_path / "no" / "p.json")
    monkeypatch.setenv("COLLECTIVES_PROFILE", file)
    wanted = "there is no such file, and it cannot be made. Name another with COLL"
    with pytest.warns(ProfileWarning, match=wanted):
        assert profile.read(file) is None
    profile.remember("allreduce", 4, LEARNED)
    profile.write_learned()
    assert os.listdir(tmp_path) == ["p.json"]


def test_rank_0_reads_once_and_the_others_never(monkeypatch, tmp_path):
    file = tmp_path / "p.json"
    monkeypatch.setenv("COLLECTIVES_PROFILE", str(file))
    file.write_text("broken")
    assert profile.offer(1) == (0, "")
    with pytest.warns(ProfileWarning):
        assert profile.offer(0) == (0, "")
    file.write_text(WHOLE.text())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert profile.offer(0) == (0, "")  # the first answer holds


class Fake:
    """An MPI communicator that has one message."""

    def __init__(self, text=None):
        self.text = text
        self.sent = []

    def bcast(self, text):
        self.sent.append(text)
        return text if self.text is None else self.text


def test_all_ranks_have_what_rank_0_has(monkeypatch, tmp_path):
    file = tmp_path / "p.json"
    file.write_text(WHOLE.text())
    monkeypatch.setenv("COLLECTIVES_PROFILE", str(file))
    mine = profile.offer(0)
    assert mine[0] != 0
    # Rank 0 tells those that have none; where all have it, nothing is sent.
    mpi = Fake()
    assert profile.agreed(mpi, [mine, (0, "online")]) == (WHOLE, "")
    assert mpi.sent == [WHOLE.text()]
    assert profile.agreed(None, [mine, mine]) == (WHOLE, "")
    # A rank with another one, or with none, takes that of rank 0 ...
    other = Profile("another", 2, "0.1.0")
    assert profile.agreed(Fake(other.text()), [(7, ""), mine]) == (other, "")
    assert profile.agreed(Fake(), [(0, ""), mine]) == (None, "")
    # ... and keeps its own for communicators that it is rank 0 of.
    assert profile.offer(0) == mine


def test_who_was_told_of_none_reads_none(monkeypatch, tmp_path):
    file = tmp_path / "p.json"
    file.write_text(WHOLE.text())
    monkeypatch.setenv("COLLECTIVES_PROFILE", str(file))
    assert profile.agreed(None, [(0, ""), (0, "")]) == (None, "")
    assert profile.offer(0) == (0, "")


@pytest.mark.parametrize("word", ["", "0", "probe", "online", "probe,online"])
def test_the_words_of_tune(monkeypatch, word):
    monkeypatch.setenv("COLLECTIVES_TUNE", word)
    assert profile.offer(1) == (0, word)


def test_other_words_of_tune_are_refused(monkeypatch):
    monkeypatch.setenv("COLLECTIVES_TUNE", "off")
    with pytest.raises(ArgumentError) as caught:
        profile.offer(1)
    assert str(caught.value) == (
        "COLLECTIVES_TUNE is 'off', and must be 0, probe, online, or both with a comma"
    )


def test_the_format_is_what_the_docstring_shows():
    document = json.loads(WHOLE.text())
    assert set(document) == {"version", "collectives", "machine", "sections"}
    (section,) = document["sections"]
    assert set(section) == {
        "transport",
        "library",
        "hosts",
        "date",
        "command",
        "parameters",
        "rows",
    }
