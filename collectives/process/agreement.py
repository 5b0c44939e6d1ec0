"""Agreements of ranks: on each call, on objects they make together, and on terms of a service.

Under ``COLLECTIVES_VALIDATE=1`` ranks agree before each call (`validation`). Before they make an
object together, such as a communicator, they always announce it (`announced`). A compressed
allreduce is announced, too, because the messages of its steps do not contain the codec. A rank also
announces wrong arguments, so that no other rank waits for it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from collectives._core import Engine
from collectives.errors import (
    ArgumentError,
    CollectivesError,
    MismatchError,
    UnsupportedTypeError,
)
from collectives.text.words import differing, error_text, from_record, grouped, ranks, to_record

REFUSED = ArgumentError, UnsupportedTypeError
RECORD = 512  # bytes that each rank sends to the others
HEAD = struct.Struct("=?qq")  # of an announcement: whether it is refused, and two numbers


def compare(said: Iterable[str]) -> None:
    """Raise an error if the texts of ranks differ. Local."""
    groups = grouped(enumerate(said))
    if len(groups) > 1:
        told = "; ".join(f"{ranks(mask)} {each}" for each, mask in groups.items())
        # A rank that refuses its arguments has made the call.
        calls = [each.partition("(")[0] for each in groups if each.startswith("called ")]
        question = differing(calls) if len(calls) == len(groups) else ""
        raise MismatchError(f"the ranks do not agree: {told}{question}")


@contextmanager
def refusing(
    engine: Engine, collective: str, errors: tuple[type[Exception], ...] = REFUSED
) -> Iterator[None]:
    """Tell the other ranks of an error in the arguments that is found outside the engine.
    Collective, if there is such an error.
    """
    try:
        yield
    except errors as error:
        if engine.agree is not None and engine.broken is None:
            with engine:
                engine.agree(collective, error_text(error), False)
        raise


def announced(
    engine: Engine,
    making: str,
    check: Callable[[], tuple[int, int]],
    describe: Callable[[], str] | None = None,
    timeout: float | None = None,
) -> list[tuple[int, int]]:
    """Announce the object that this rank makes next; return the numbers of all ranks for it.
    Collective.
    """
    refusal: Exception | None = None
    numbers = 0, 0
    text = f"{making}()"
    try:
        numbers = check()
        if describe is not None:
            text = f"{making}({describe()})"
    except CollectivesError as error:
        refusal = error
    except Exception as error:  # of an object that the user passed
        refusal = ArgumentError(f"an argument of {making}() raised {error_text(error)}")
        refusal.__cause__ = error
    if refusal is not None:
        text = f"{making}(): {error_text(refusal)}"
    record = HEAD.pack(refusal is not None, *numbers) + to_record(text, RECORD - HEAD.size)
    mine = np.frombuffer(record, np.uint8)
    everybody = np.empty((engine.size, RECORD), np.uint8)
    engine.announce(making, mine, everybody, timeout)
    if refusal is not None:
        raise refusal
    rows = list(map(bytes, everybody))
    heads = list(map(HEAD.unpack_from, rows))
    compare(
        f"{'refused' if refused else 'called'} {from_record(row[HEAD.size :])}"
        for (refused, *_), row in zip(heads, rows, strict=True)
    )
    return [(first, second) for _, first, second in heads]


def agreed_terms(
    gather: Callable[[Any], list[Any]],
    call: str,
    problem: Exception | None,
    terms: Mapping[str, Any],
    own: Any = None,
) -> list[Any]:
    """Return the object `own` of each rank; raise an error on all ranks if one has a problem, or
    they differ in the `terms`. Collective, by a function that gathers objects.
    """
    text = "" if problem is None else error_text(problem)
    every = gather((text, terms, own))
    if problem is not None:
        raise problem
    for rank, (text, _, _) in enumerate(every):
        if text:
            raise ArgumentError(f"{call}: rank {rank}: {text}")
    first = every[0][1]
    for rank, (_, others, _) in enumerate(every):
        for name, value in others.items():
            if value != first[name]:
                raise MismatchError(
                    f"{call}: {name} is {value} on rank {rank}, and {first[name]} on rank 0; all "
                    f"ranks must pass the same"
                )
    return [each for *_, each in every]
