"""The registry: a user's algorithms, parameters, and refusals."""

import pytest

from collectives import algorithms
from collectives.algorithms import Cost, Exchange
from collectives.check import check
from collectives.choice.select import decide
from collectives.errors import ArgumentError, ProofError


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
    with pytest.raises(ArgumentError, match="chosen is 'often', and must be one of: anywhere"):
        algorithms.algorithm("broadcast", chosen="often")
    with pytest.raises(ArgumentError, match="no collective 'gossip'; there are: allreduce, "):
        algorithms.algorithm("gossip")
    with pytest.raises(ArgumentError, match=r"'reduc'; did you mean 'reduce'\? There are: allr"):
        algorithms.algorithm("reduc")
    with pytest.raises(ArgumentError) as caught:
        algorithms.algorithm(says_nothing)
    assert str(caught.value) == (
        "@algorithm needs the name of a collective: write @algorithm('allreduce') above "
        "says_nothing"
    )
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
    with pytest.raises(ArgumentError, match="has no algorithm 'heap'; it has: "):
        algorithms.get("allreduce", "heap:2")


def test_a_changed_row_changes_its_variants():
    def broom(r, p, k):
        """Stand still."""
        return iter(())

    algorithms.algorithm("allreduce", parameters={"k": 3})(broom)
    old = algorithms.get("allreduce", "broom:5")
    algorithms.algorithm("allreduce", name="broom", parameters={"j": 3}, replace=True)(
        lambda r, p, j: iter(())
    )
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


def test_the_name_of_nccl_is_taken():
    with pytest.raises(ArgumentError, match="'nccl' stands for the collectives of NCCL"):
        algorithms.algorithm("broadcast", name="nccl")(says_nothing)
    with pytest.raises(ArgumentError, match="'nccl' is for arrays in GPU memory; on arrays in"):
        algorithms.get("allreduce", "nccl")


def round_trip(r, p, root):
    """The root sends to one rank after the other, and each answers."""
    for q in range(p):
        if q != root and r in (q, root):
            yield Exchange(send=(q, 0)) if r == root else Exchange(recv=(root, 0))


@pytest.fixture
def registered():
    """Register an algorithm called "costly" for a test."""

    def register(collective, generate, **options):
        algorithms.algorithm(collective, name="costly", **options)(generate)
        return algorithms.get(collective, "costly")

    yield register
    for collective in algorithms.COLLECTIVES:
        if "costly" in algorithms.names(collective):
            algorithms.unregister(collective, "costly")


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (Cost("2*P", "1"), "the cost has rounds='2*P', and 'P' is not one of: p, lg, up, q, rest"),
        (Cost("1", "k"), "the cost has sent='k', and 'k' is not one of: p, lg, "),
        (Cost("1", "1", "__import__('os')"), "and '__import__' is not one of: p, lg, "),
        (Cost("p -", "1"), "the cost has rounds='p -', which is not a formula: invalid syntax"),
        (Cost("1", 2), "the cost has sent=2, and must have a formula as text, such as 'p - 1'"),
        ("p - 1", "cost is 'p - 1', and must be a Cost, such as Cost(rounds='p - 1', sent='1')"),
    ],
)
def test_registration_refuses_a_cost_that_cannot_be_read(registered, cost, text):
    with pytest.raises(ArgumentError) as caught:
        registered("broadcast", round_trip, cost=cost)
    assert str(caught.value).startswith("broadcast 'costly': ")
    assert text in str(caught.value)
    assert "costly" not in algorithms.names("broadcast")


@pytest.mark.parametrize(
    ("cost", "text"),
    [
        (Cost("p", "p - 1"), "rounds='p', which is 2, and the proof counts 1"),
        (Cost("p - 1", "p/2"), "sent='p/2', which is 1.5, and the proof counts 2"),
        (Cost("p - 1", "p - 1", "1"), "folded='1', which is 1, and the proof counts 0"),
    ],
)
def test_a_wrong_cost_is_refused_when_it_is_shown_or_run(registered, cost, text):
    row = registered("broadcast", round_trip, cost=cost)
    for use in (
        lambda: check(row, p=8),
        lambda: check(row, p=9),
        lambda: decide("broadcast", "costly", p=1000, nbytes=8, family="mpich"),
    ):
        with pytest.raises(ProofError) as caught:
            use()
        assert str(caught.value).startswith("broadcast 'costly' on ")
        assert text.partition(",")[0] in str(caught.value)
    with pytest.raises(ProofError) as caught:
        decide("broadcast", "costly", p=1000, nbytes=8)
    assert text in str(caught.value)


def test_a_cost_that_is_right_for_few_ranks_only_is_refused_on_more(registered):
    row = registered("broadcast", round_trip, cost=Cost("min(p - 1, 9)", "p - 1"))
    assert check(row, p=10).depth == 9
    with pytest.raises(ProofError) as caught:
        check(row, p=11, root=3)
    assert str(caught.value) == (
        "broadcast 'costly' on 11 ranks: the cost has rounds='min(p - 1, 9)', which is 9, and the "
        "proof counts 10"
    )


def test_a_formula_that_fails_is_refused(registered):
    row = registered("broadcast", round_trip, cost=Cost("p - 1", "(p - 1)/(p - 3)*(p - 3)"))
    with pytest.raises(ProofError) as caught:
        check(row, p=4)
    assert str(caught.value).startswith("broadcast 'costly' on 3 ranks: Cost(rounds='p - 1', ")
    assert str(caught.value).endswith(" cannot be evaluated: ZeroDivisionError: division by zero")


def test_a_cost_is_that_of_the_worst_root(registered):
    def along_the_line(r, p, root):
        """The array walks to both ends of a line."""
        if r > root:
            yield Exchange(recv=(r - 1, 0))
        if r < root:
            yield Exchange(recv=(r + 1, 0))
        if root <= r < p - 1:
            yield Exchange(send=(r + 1, 0))
        if 0 < r <= root:
            yield Exchange(send=(r - 1, 0))

    row = registered("broadcast", along_the_line, cost=Cost("p - 1", "min(2, p - 1)"))
    assert [check(row, p=5, root=root).depth for root in range(5)] == [4, 3, 3, 4, 4]


def test_only_ranks_on_which_it_is_right_count(registered):
    def for_even_numbers(r, p, root):
        """Wrong on an odd number of ranks."""
        if p % 2 == 0:
            yield from round_trip(r, p, root)

    row = registered("broadcast", for_even_numbers, cost=Cost("p - 1", "p - 1"))
    assert check(row, p=4).depth == 3
    with pytest.raises(ProofError, match="on 3 ranks, root 0: rank 1 ends without block 0"):
        check(row, p=3)


@pytest.mark.parametrize(
    ("collective", "generate", "options", "text"),
    [
        (
            "broadcast",
            lambda r, p: iter(()),
            {},
            "<lambda>(r, p): too many positional arguments. broadcast has a root; write "
            "<lambda>(r, p, root)",
        ),
        (
            "allreduce",
            round_trip,
            {},
            "round_trip(r, p, root): missing a required argument: 'root'. allreduce has no root; "
            "write round_trip(r, p)",
        ),
        (
            "allreduce",
            lambda r, p: iter(()),
            {"parameters": {"k": 4}},
            "<lambda>(r, p): got an unexpected keyword argument 'k'. allreduce has no root; write "
            "<lambda>(r, p, k)",
        ),
    ],
)
def test_registration_refuses_a_generator_that_takes_other_arguments(
    registered, collective, generate, options, text
):
    with pytest.raises(ArgumentError) as caught:
        registered(collective, generate, **options)
    assert str(caught.value) == f"{collective} 'costly': {text}"


def test_an_algorithm_of_ones_own_learns_how_to_take_a_parameter():
    @algorithms.algorithm("allreduce", name="own")
    def own(r, p, k=4):
        yield from ()

    try:
        with pytest.raises(ArgumentError) as caught:
            algorithms.get("allreduce", "own:8")
    finally:
        algorithms.unregister("allreduce", "own")
    assert str(caught.value) == (
        "allreduce 'own' takes no parameter, not '8'; register it with parameters={'k': 4} of "
        "@algorithm"
    )
