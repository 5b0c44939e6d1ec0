"""Matching by name: all ranks conclude the same from the submissions of each; without ranks."""

from collectives.background.matching import Claim, Said, conclude, failures, packed, unpacked


def claim(key, signature=1, text="allreduce", zeros=("float32",)):
    return Claim(key, signature, text, None if zeros is None else list(zeros))


def said(*ranks, joined=()):
    return [Said(number in joined, None, list(claims)) for number, claims in enumerate(ranks)]


def test_orders_that_differ():
    """Calls that all ranks have made are ready, in the order of the first rank."""
    verdict = conclude(said([claim("a"), claim("b")], [claim("b"), claim("c"), claim("a")]))
    assert [each.key for each in verdict.ready] == ["a", "b"]
    assert verdict.missing == {"c": [0]}
    assert verdict.wrong == {}
    assert verdict.joined == []


def test_what_differs():
    """Ranks with the same text are named together."""
    verdict = conclude(
        said([claim("a", 1, "of 3")], [claim("a", 2, "of 4")], [claim("a", 2, "of 4")])
    )
    assert verdict.wrong == {"a": "'a' differs between ranks: rank 0: of 3; ranks 1-2: of 4"}
    assert verdict.ready == []


def test_what_differs_only_in_what_no_text_says():
    verdict = conclude(said([claim("a", 1)], [claim("a", 2)]))
    assert verdict.wrong == {
        "a": "'a' differs between ranks: ranks 0-1: allreduce, with other options"
    }


def test_who_has_joined_need_not_have_it():
    verdict = conclude(said([claim("a")], [], [claim("a")], joined={1}))
    assert [each.key for each in verdict.ready] == ["a"]
    assert verdict.joined == [1]


def test_what_who_has_joined_cannot_take_part_in():
    verdict = conclude(said([claim("a", text="allgather", zeros=None)], [], joined={1}))
    assert verdict.wrong["a"] == (
        "'a' is allgather, and rank 1 joined: a joined rank takes part in allreduce with the "
        "library's own operations only, not compressed"
    )


def test_all_have_joined():
    verdict = conclude(said([], [], joined={0, 1}))
    assert verdict.joined == [0, 1]
    assert not verdict.ready


def test_a_device_that_has_failed():
    text = "the device has failed: RuntimeError: an illegal access"
    every = [unpacked(packed([], False, problem)) for problem in (None, text, text, "no memory")]
    assert failures(every) == f"ranks 1-2: {text}; rank 3: no memory"
    assert failures(every[:1]) == ""
