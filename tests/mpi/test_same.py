"""Values that all ranks compare: the first part that differs is named, on every rank."""

import collections
import dataclasses
import enum
import pathlib
from functools import partial

import numpy as np
import pytest

import collectives as cc
from collectives.errors import ArgumentError, MismatchError


@pytest.fixture
def comm(either):
    return either.comm


Point = collections.namedtuple("Point", "x y")


class Color(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Config:
    rate: float
    layers: list


class Stateful:
    def __init__(self, state):
        self.state = state

    def state_dict(self):
        return self.state


VALUES = {
    "array": lambda: np.arange(12.0).reshape(3, 4),
    "strided": lambda: np.arange(12.0).reshape(3, 4)[:, ::2],
    "fortran": lambda: np.asfortranarray(np.arange(12.0).reshape(3, 4)),
    "empty": lambda: np.zeros((0, 3)),
    "scalar": lambda: np.float32(3),
    "nan": lambda: [float("nan"), np.array([np.nan])],
    "texts": lambda: ["x", b"y", None, True, 3, 2.5, 1j, Color.RED, pathlib.Path("a"), slice(3)],
    "nested": lambda: {"a": [1, (2, {"b": np.ones(3)})], 3: {4, 5}},
    "classes": lambda: [Point(1, np.ones(2)), Config(0.1, [3, 4])],
    "state": lambda: Stateful({"w": np.ones(3)}),
    "strings": lambda: np.array(["ab", "c"]),
    "pairs": lambda: np.zeros(2, [("a", "f8"), ("b", "i4")]),
    "swapped": lambda: np.arange(3, dtype=">i4"),
    "huge int": lambda: 10**30,
}


@pytest.mark.parametrize("name", VALUES)
def test_equal_values_are_the_same(comm, name):
    comm.same(VALUES[name](), name)


def difference(comm, mine, others, **options):
    """Return the error's text for a value of the last rank and one of all others."""
    value = mine if comm.rank == comm.size - 1 else others
    if comm.size == 1:
        comm.same(value, "v", **options)
        pytest.skip("one rank has nothing to compare with")
    with pytest.raises(MismatchError) as caught:
        comm.same(value, "v", **options)
    texts = comm.allgather_object(str(caught.value))
    assert len(set(texts)) == 1
    return texts[0]


CASES = {
    "number": (1.0, 1.5, "of v:", "a float: 1.0", "a float: 1.5"),
    "zero": (0.0, -0.0, "a float: -0.0"),
    "kinds": (1, 1.0, "an int: 1", "a float: 1.0"),
    "bool": (True, 1, "a bool: True", "an int: 1"),
    "text": ("a" * 99 + "b", "a" * 99 + "c", "aaab'", "aaac'"),
    "dtype": (np.ones(3, "f4"), np.ones(3), "an array of float32", "an array of float64"),
    "shape": (np.ones((2, 3)), np.ones((3, 2)), "shape (2, 3)", "shape (3, 2)"),
    "length": ([1, 2], [1, 2, 3], "of v:", "a list of 2", "a list of 3"),
    "keys": ({"a": 1, "b": 2}, {"a": 1, "c": 2}, "'a', 'b'", "'a', 'c'"),
    "order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "'a', 'b'", "'b', 'a'"),
    "deep": ({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}, "of v.a[1].b:", "an int: 2"),
    "odd key": ({"a b": 1}, {"a b": 2}, "of v['a b']:"),
    "field": (Point(1, 2), Point(1, 3), "of v.y:"),
    "state": (Stateful({"w": 1}), Stateful({"w": 2}), "of v.w:"),
    "bytes": (b"xyz", b"xya", "of v, 3 bytes", "v[2] = 122, and 97 on rank 0"),
    "set": ({1, 2}, {1, 3}, "an int: 2", "an int: 3"),
    "none": (None, 0, "a NoneType: None"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_error_names_the_first_part_that_differs(comm, name):
    mine, others, *said = CASES[name]
    text = difference(comm, mine, others)
    assert all(each in text for each in said), text


def test_elements_of_arrays_are_counted(comm):
    mine, others = np.zeros((3, 4), "f4"), np.zeros((3, 4), "f4")
    mine[1, 2:] = 0.5
    text = difference(comm, {"w": mine}, {"w": others})
    assert "of v.w, an array of float32 with shape (3, 4): " in text
    last = f"rank {comm.size - 1} differs from rank 0 in 2 of 12 elements, the first "
    assert f"{last}v.w[1, 2] = 0.5, and 0.0 on rank 0" in text
    assert ("are equal" in text) == (comm.size > 2)


def test_the_first_difference_of_any_rank_is_named(comm):
    value = list(range(10))
    value[9 - comm.rank % 10] = -1
    if comm.size > 1:
        with pytest.raises(MismatchError, match=rf"of v\[{9 - min(comm.size - 1, 9)}\]"):
            comm.same(value, "v")
    comm.barrier()


@pytest.mark.parametrize(
    ("mine", "others", "option"),
    [
        (np.arange(3, dtype="i4"), np.arange(3, dtype="u8"), "dtypes"),
        (np.ones(3, "f4"), np.ones(3), "dtypes"),
        (True, 1, "dtypes"),
        (np.ones((2, 3)), np.ones(6), "shapes"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "order"),
    ],
)
def test_options_disregard_a_property(comm, mine, others, option):
    comm.same(mine if comm.rank else others, **{option: False})


def test_a_value_that_cannot_be_compared_is_refused_everywhere(comm):
    value = {"f": object()} if comm.rank == comm.size - 1 else {"f": 1}
    expected = ArgumentError if comm.rank == comm.size - 1 else MismatchError
    with pytest.raises(expected, match=r"v\.f is an object, which cannot be compared"):
        comm.same(value, "v")
    comm.barrier()


def test_a_value_inside_itself_is_refused(comm):
    value = [1]
    value.append(value)
    with pytest.raises(ArgumentError, match=r"v\[1\] contains itself"):
        comm.same(value, "v")


def test_names_are_compared(comm):
    if comm.size > 1:
        with pytest.raises(MismatchError, match="same"):
            comm.same(1, f"v{comm.rank}")
    with pytest.raises(ArgumentError, match="name is 3"):
        comm.same(1, 3)


def test_another_call_is_a_mismatch(fresh):
    if cc.size() == 1:
        pytest.skip("one rank makes one call")
    other = fresh(validate=True, timeout=20)
    call = partial(other.same, 1) if other.rank else other.barrier
    with pytest.raises(MismatchError, match=r"same"):
        call()


def test_arguments_and_results_of_functions():
    @cc.same
    def double(x, *, by=2):
        return x * by

    assert double(3) == 6
    rank, size = cc.rank(), cc.size()
    if size > 1:
        with pytest.raises(MismatchError, match=r"double\.arguments\.x: "):
            double(rank)
        with pytest.raises(MismatchError, match=r"double\.arguments\.by: "):
            double(1, by=rank)

    @cc.same(every=3)
    def own(step):
        return rank

    if size > 1:
        for step in range(6):
            if step % 3:
                assert own(step) == rank
            else:
                with pytest.raises(MismatchError, match=r"own\.result: "):
                    own(step)


def test_functions_that_have_no_result_yet_are_refused():
    async def later():
        pass

    with pytest.raises(ArgumentError, match="coroutine or a generator"):
        cc.same(later)
    with pytest.raises(ArgumentError, match="every is 0"):
        cc.same(every=0)(len)
