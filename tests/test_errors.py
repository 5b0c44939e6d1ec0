"""The tree of errors: what each can be caught as, and that it survives a pickle."""

import builtins
import inspect
import pickle
import re

import pytest

from collectives import errors
from collectives.errors import CollectivesError, CollectivesWarning

EVERY = [error for _, error in inspect.getmembers(errors, inspect.isclass)]
BASES = (CollectivesError, CollectivesWarning)

# Each line of the drawing: a name, and in brackets the builtin.
DRAWN = dict(re.findall(r"─ (\w+) \((\w+)\)", errors.__doc__))


def test_the_drawing_shows_the_whole_tree():
    assert set(DRAWN) | {base.__name__ for base in BASES} == {error.__name__ for error in EVERY}


@pytest.mark.parametrize("error", EVERY, ids=lambda error: error.__name__)
def test_every_error_is_one_of_ours_and_a_builtin(error):
    assert issubclass(error, BASES)
    assert error.__doc__
    if error not in BASES:
        assert issubclass(error, getattr(builtins, DRAWN[error.__name__]))


def test_buffer_errors_are_argument_errors():
    assert issubclass(errors.BufferError, errors.ArgumentError)


@pytest.mark.parametrize("error", EVERY, ids=lambda error: error.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.usual(5)
def test_every_error_pickles(error, protocol):
    text = "rank 3, round 2: waits for rank 1"
    again = pickle.loads(pickle.dumps(error(text), protocol))
    assert type(again) is error
    assert str(again) == text
    assert again.args == (text,)
