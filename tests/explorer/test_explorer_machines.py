"""The machines of the pages: their data say what the networks of the simulation say."""

import json
from math import prod

import pytest

from collectives.explorer import machines
from collectives.simulation.topology_text import KINDS, Machine
from collectives.topology import FatTree, Hosts, Torus

RANKS = (1, 2, 7, 12, 16, 64)


@pytest.fixture(scope="module")
def data():
    """Return the data as a page reads them."""
    return json.loads(json.dumps(machines.data(RANKS)))


@pytest.mark.parametrize("p", RANKS)
def test_routes_of_a_torus_are_those_of_the_simulation(data, p):
    torus = Machine("torus").make(p)
    assert isinstance(torus, Torus)
    found = data["tori"][str(p)]
    assert prod(found["shape"]) == p
    for source in range(p):
        for target in range(p):
            here, links = source, []
            while here != target:
                links.append(int(found["ways"][here * p + target]) * p + here)
                here = found["ends"][links[-1]]
            (row,) = torus.route(*([each] for each in (source, target)))
            assert links == [link for link in row.tolist() if link >= 0]


@pytest.mark.parametrize(
    ("kind", "network"),
    [("hosts", Hosts(6, 2, beta=3e-10)), ("fattree", FatTree(6, 2, 3, 4, beta=3e-10))],
)
def test_groups_share_the_links_of_the_simulation(data, kind, network):
    settings = {"perHost": 2, "perSwitch": 3, "oversubscription": 4, "beta": 3e-10}

    def product(words):
        return prod(1 / settings[w[1:]] if w[0] == "/" else settings[w] for w in words)

    groups = data["kinds"][kind]["groups"]
    assert groups
    rates = [product(rate) for ranks, rate in groups for _ in range(2 * 12 // product(ranks))]
    assert network.capacities == pytest.approx(rates)
    assert data["kinds"]["flat"]["groups"] == data["kinds"]["torus"]["groups"] == []


def test_options_are_those_of_the_command(data):
    assert list(data["kinds"]) == list(KINDS)
    assert set(machines.OPTIONS) - {"per_host", "shape"} == set().union(*KINDS.values()) - {
        "memory"  # for which the page has no control
    }
    of = {name: set(each["options"]) & set(data["options"]) for name, each in data["kinds"].items()}
    flat = {"alpha", "beta", "gamma", "delay"}
    hosts = flat | {"perHost", "insideAlpha", "insideBeta"}
    assert of == {
        "flat": flat,
        "hosts": hosts,
        "fattree": hosts | {"perSwitch", "oversubscription"},
        "torus": flat | {"hop", "shape"},
    }
    assert set(data["line"]) <= set(data["options"])


def test_links_of_before_lead_to_the_same_machine(data):
    """A link leaves out the numbers that the page begins with."""
    rates = {"alpha": 2e-6, "beta": 1e-10, "gamma": 1e-10, "delay": 0, "hop": 0}
    hosts = {"perHost": 4, "perSwitch": 2, "oversubscription": 2}
    inside = {"insideAlpha": 5e-7, "insideBeta": 5e-11}
    assert data["usual"] == {"topology": "flat", **rates, **hosts, **inside}
