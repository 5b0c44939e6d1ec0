"""Errors that are kept while a compiled program passes nothing but a text on.

What is raised in a function that a compiled program calls comes out of the program as an error of
the framework, with the text. `text_of` keeps the error and returns a text with its number, and
`found` returns the error that such a text tells of.
"""

from __future__ import annotations

import itertools
import re
from collections import OrderedDict

from collectives.text.words import error_text

MOST = 64  # errors that are kept; who looks for one does so soon

_errors: OrderedDict[int, BaseException] = OrderedDict()
_numbers = itertools.count(1)
_MARK = re.compile(r"\[collectives: error (\d+)\]")


def text_of(error: BaseException) -> str:
    """Keep an error; return a text that says what it is. Local."""
    number = next(_numbers)
    _errors[number] = error
    while len(_errors) > MOST:
        _errors.popitem(last=False)
    return f"{error_text(error)} [collectives: error {number}]"


def found(text: str) -> BaseException | None:
    """Return the error that a text tells of, if it was kept. Local."""
    mark = _MARK.search(text)
    return None if mark is None else _errors.get(int(mark[1]))
