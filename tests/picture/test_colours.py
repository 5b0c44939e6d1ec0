"""The colours of algorithms: one for each everywhere, and told apart in each collective."""

import itertools
import math

import pytest
from eyes import EYES, seen

from collectives import algorithms
from collectives.algorithms.spec import COLLECTIVES
from collectives.check import check
from collectives.explorer import page
from collectives.picture import colours, sheet, space_time


@pytest.mark.parametrize(
    ("palette", "ground", "others"),
    [
        (colours.LIGHT, sheet.LIGHT_SHEET[0], [tint for tint, *_ in colours.PEERS.values()]),
        (colours.DARK, sheet.DARK_SHEET[0], []),
    ],
)
def test_any_two_colours_can_be_told_apart(palette, ground, others):
    for one, other in itertools.combinations([*palette, *sorted(set(others))], 2):
        near, *rest = (math.dist(seen(one, eye), seen(other, eye)) for eye in EYES)
        assert near > 25, (one, other)
        assert min(rest) > 12, (one, other)
    for each in (*palette, *others):
        assert sheet.contrast(each, ground) >= 3


def test_algorithms_of_a_collective_have_colours_of_their_own():
    for collective in COLLECTIVES:
        names = algorithms.names(collective)
        assert len({colours.colour(name) for name in names}) == len(names), collective
        for name in names:
            assert name in colours.NUMBERS


def test_a_parameter_or_a_segment_does_not_change_the_colour():
    assert {colours.colour(each) for each in ("kary", "kary:2", "kary:8", "kary/64K")} == {
        colours.LIGHT[colours.NUMBERS["kary"]]
    }
    assert colours.colour("mine") == colours.colour("mine:3")


def test_no_two_lines_of_a_plot_are_alike():
    names = algorithms.names("allreduce")
    lines = [
        *colours.PEERS,
        "auto/64K",
        *names,
        "kary:2",
        "kary:8",
        "kary:16",
        "mine",
        "yours",
        "my_algorithm",
    ]
    found = colours.styles(lines)
    assert list(found) == lines
    assert len(set(found.values())) == len(lines)
    for name in names:
        assert found[name].color == colours.colour(name)
        assert found[name].linestyle == "-"
    assert len({found[name].marker for name in names}) == len(names)
    assert found["MPI"].linestyle == found["gloo"].linestyle == "--"


def test_pictures_plots_and_the_explorer_use_one_table():
    ring, red = colours.NUMBERS["ring"], colours.NUMBERS["butterfly"]
    for name, number in (("ring", ring), ("butterfly", red)):
        text = space_time(check("allreduce", name, p=4))
        light, dark = text.split("@media (prefers-color-scheme: dark)")
        rule = ".collectives .algorithm { fill: %s; }"
        assert rule % colours.LIGHT[number] in light
        assert rule % colours.DARK[number] in dark
        assert 'class="algorithm"' in dark
    entries = {
        entry["name"]: entry["colour"]
        for entry in page.catalogue([algorithms.get("allreduce", "ring")])["collectives"][0][
            "algorithms"
        ]
    }
    assert entries == {"ring": ring}
    light, dark = page.colours().split("@media")
    assert f"--a{ring}: {colours.LIGHT[ring]};" in light
    assert f"--a{ring}: {colours.DARK[ring]};" in dark
