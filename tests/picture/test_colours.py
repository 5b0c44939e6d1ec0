"""The colours of algorithms: one for each family everywhere, and lines that are told apart."""

import itertools
import math

import pytest
from eyes import EYES, seen

from collectives import algorithms
from collectives.algorithms.spec import COLLECTIVES
from collectives.check import check
from collectives.explorer import page
from collectives.picture import colours, sheet, space_time
from collectives.simulation import plot


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


def test_every_included_algorithm_has_a_family():
    assert len(colours.FAMILIES) == len(colours.LIGHT) == len(colours.DARK) == len(colours.MARKS)
    named = [name for family in colours.FAMILIES for name in family]
    assert len(set(named)) == len(named)
    known = {name for collective in COLLECTIVES for name in algorithms.names(collective)}
    assert set(named) == known


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_no_two_algorithms_of_a_collective_have_lines_that_are_alike(collective):
    found = colours.styles(algorithms.names(collective))
    assert len(set(found.values())) == len(found)
    assert {style.color for style in found.values()} <= set(colours.LIGHT)


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
    solid = [found[name].color for name in names if found[name].linestyle == "-"]
    assert sorted(solid) == sorted({found[name].color for name in names})
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
        for entry in page.catalogue([algorithms.get("allreduce", "ring")], {})["collectives"][0][
            "algorithms"
        ]
    }
    assert entries == {"ring": ring}
    light, dark = page.colours().split("@media")
    assert f"--a{ring}: {colours.LIGHT[ring]};" in light
    assert f"--a{ring}: {colours.DARK[ring]};" in dark


def test_areas_of_one_colour_are_hatched_differently():
    assert len(set(plot.HATCHES)) == len(colours.DASHES)
