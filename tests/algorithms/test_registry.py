"""The registry: algorithms of one's own, parameters, and what it refuses."""

import pytest

from collectives import algorithms
from collectives.algorithms import Exchange
from collectives.check import check
from collectives.errors import ArgumentError


def says_nothing(r, p, root):
    return iter(())


@pytest.fixture
def sequential():
    @algorithms.algorithm("broadcast", blocks=2, source="nobody, 2001")
    def sequential(r, p, root):
        """The root sends to one rank after the other."""
        for q in range(p):
            if r == root and q != root:
                yield Exchange(send=(q, range(2)))
            elif r == q != root:
                yield Exchange(recv=(root, range(2)))

    yield sequential
    if "sequential" in algorithms.names("broadcast"):
        algorithms.unregister("broadcast", "sequential")


def test_an_algorithm_of_ones_own(sequential):
    algorithm = algorithms.get("broadcast", "sequential")
    assert algorithm.generate is sequential
    assert algorithm.summary == "The root sends to one rank after the other."
    assert (algorithm.blocks(7), algorithm.cost, algorithm.included) == (2, None, False)
    assert algorithms.names("broadcast")[-1] == "sequential"
    assert check("broadcast", "sequential", p=5, root=3).depth == 4
    algorithms.unregister("broadcast", "sequential")
    with pytest.raises(ArgumentError, match="no algorithm 'sequential'; it has: flat, "):
        algorithms.get("broadcast", "sequential")
    with pytest.raises(ArgumentError, match="has no algorithm 'sequential'"):
        algorithms.unregister("broadcast", "sequential")


def test_a_name_is_taken_once(sequential):
    with pytest.raises(ArgumentError) as caught:
        algorithms.algorithm("broadcast", name="sequential")(says_nothing)
    assert str(caught.value) == (
        "broadcast already has an algorithm 'sequential'; pass replace=True to take its place"
    )
    assert algorithms.get("broadcast", "sequential").generate is sequential
    algorithms.algorithm("broadcast", name="sequential", replace=True)(says_nothing)
    assert algorithms.get("broadcast", "sequential").generate is says_nothing


def test_registration_refuses_what_it_does_not_know():
    with pytest.raises(ArgumentError, match=r"unknown requirement 'prime'; known: .*power_of_two"):
        algorithms.algorithm("broadcast", requires=("prime",))
    with pytest.raises(ArgumentError, match="no collective 'gossip'; there are: allreduce, "):
        algorithms.algorithm("gossip")
    with pytest.raises(ArgumentError, match="there is no collective None"):
        algorithms.names(None)
    with pytest.raises(ArgumentError, match=r"has no algorithm \[\]"):
        algorithms.get("reduce", [])


def test_an_algorithm_with_a_parameter():
    default, other = (algorithms.get("allreduce", name) for name in ("kary", "kary:08"))
    assert (default.name, default.parameters) == ("kary", {"k": 4})
    assert (other.name, other.parameters) == ("kary:8", {"k": 8})
    assert algorithms.get("allreduce", "kary:8") is other
    assert algorithms.get("broadcast", "kary:8").collective.name == "broadcast"
    assert default.totals(9) == (4.0, 5.0, 4.0)
    assert other.totals(9) == (2.0, 8.0, 8.0)
    assert check("allreduce", "kary:2", p=7).depth == 4


@pytest.mark.parametrize("text", ["", "1", "0", "-3", "2.5", "many", "4:4", " 4"])
def test_a_parameter_is_an_integer_from_2_on(text):
    with pytest.raises(ArgumentError) as caught:
        algorithms.get("allreduce", f"kary:{text}")
    assert str(caught.value) == (
        f"allreduce 'kary' takes an integer from 2 on as k, as in 'kary:4', not {text!r}"
    )


def test_who_takes_no_parameter_is_given_none():
    with pytest.raises(ArgumentError) as caught:
        algorithms.get("allreduce", "ring:2")
    assert str(caught.value) == "allreduce 'ring' takes no parameter, not '2'"
    with pytest.raises(ArgumentError, match="has no algorithm 'star'; it has: "):
        algorithms.get("allreduce", "star:2")


def test_a_changed_row_changes_its_variants():
    def broom(r, p, k):
        """Stand still."""
        return iter(())

    algorithms.algorithm("allreduce", parameters={"k": 3})(broom)
    old = algorithms.get("allreduce", "broom:5")
    algorithms.algorithm("allreduce", name="broom", parameters={"j": 3}, replace=True)(broom)
    assert algorithms.get("allreduce", "broom:5").parameters == {"j": 5} != old.parameters
    algorithms.unregister("allreduce", "broom")
    with pytest.raises(ArgumentError, match="no algorithm 'broom'"):
        algorithms.get("allreduce", "broom:5")


@pytest.mark.parametrize(
    "options", [{"name": "a:b"}, {"name": "ab", "parameters": {"k": 2, "j": 3}}]
)
def test_registration_refuses_names_and_parameters_that_cannot_be_written(options):
    with pytest.raises(ArgumentError) as caught:
        algorithms.algorithm("broadcast", **options)(says_nothing)
    assert str(caught.value) == ("an algorithm has one parameter at most, and no colon in its name")
    assert options["name"] not in algorithms.names("broadcast")
