"""Matching by name, for submissions that come in different orders, or differ.

Ranks compare their submissions by place first (`_core.Window`). After a difference, and while a
rank has joined, each describes all its submissions to the others, and all ranks draw the same
conclusion.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from collectives.background.handle import Handle, called
from collectives.text.words import grouped, named, ranks


class Claim(NamedTuple):
    """A rank's description of one of its submissions."""

    key: str
    signature: int
    text: str
    # The data with which a joined rank takes part, or None if it cannot: dtype, elements,
    # operation, factors, priority, bits of its own, and whether NCCL runs it.
    zeros: list[Any] | None


class Said(NamedTuple):
    """The message of a rank: whether it has joined, the error of its device, and its claims."""

    joined: bool
    problem: str | None
    claims: list[Claim]


class Verdict(NamedTuple):
    """The conclusion that all ranks draw from their claims."""

    ready: list[Claim]  # in the order in which they run
    wrong: dict[str, str]  # the keys of different submissions, and the texts of the errors
    missing: dict[str, list[int]]  # the keys that some ranks lack, and these ranks
    joined: list[int]


def packed(handles: Iterable[Handle], joined: bool, problem: str | None) -> NDArray[np.uint8]:
    """Return the message of a rank on its `handles`, as bytes. Local."""
    claims = [(h.key, h.signature, h.describe(), _zeros(h)) for h in handles]
    return np.frombuffer(json.dumps([joined, problem, claims]).encode(), np.uint8)


def unpacked(data: NDArray[np.uint8]) -> Said:
    """Return the message of a rank from its `data`. Local."""
    joined, problem, claims = json.loads(data.tobytes())
    return Said(joined, problem, [Claim(*each) for each in claims])


def _zeros(handle: Handle) -> list[Any] | None:
    if handle.copies is not None and not handle.is_held:  # NCCL's
        call: Any = handle.copies
        claim = call.claim()
        return None if claim is None else [*claim, 1.0, 1.0, handle.priority, None, True]
    if handle.kind != "allreduce" or handle.folds_in_python or handle.takes_steps:
        return None
    count = handle.nbytes // handle.itemsize
    how = *handle.scales, handle.priority, handle.bits
    return [handle.dtype, count, handle.operation, *how, False]


def failures(said: list[Said]) -> str:
    """Return the errors of devices of ranks, or an empty text. Local."""
    found = grouped((rank, each.problem) for rank, each in enumerate(said) if each.problem)
    return "; ".join(f"{ranks(mask)}: {problem}" for problem, mask in found.items())


def conclude(said: list[Said]) -> Verdict:
    """Return the submissions that can run, and those that never will. Local."""
    joined = [rank for rank, each in enumerate(said) if each.joined]
    known = {
        rank: {claim.key: claim for claim in each.claims}
        for rank, each in enumerate(said)
        if not each.joined
    }
    verdict = Verdict([], {}, {}, joined)
    every: dict[str, Claim] = {}
    for claims in known.values():
        every = {**every, **{key: each for key, each in claims.items() if key not in every}}
    for key, claim in every.items():
        missing = [rank for rank, claims in known.items() if key not in claims]
        if missing:
            verdict.missing[key] = missing
            continue
        said_of_it = {rank: claims[key] for rank, claims in known.items()}
        if len({each.signature for each in said_of_it.values()}) > 1:
            verdict.wrong[key] = _difference(key, said_of_it)
        elif joined and claim.zeros is None:
            verdict.wrong[key] = (
                f"{called(key)} is {claim.text}, and {named(joined)} joined: a joined rank takes "
                f"part in allreduce with the library's own operations only, not compressed"
            )
        else:
            verdict.ready.append(claim)
    return verdict


def _difference(key: str, said: dict[int, Claim]) -> str:
    """Return the text of submissions that differ; ranks with the same one are named together."""
    texts = grouped((rank, claim.text) for rank, claim in said.items())
    parts = [f"{ranks(mask)}: {text}" for text, mask in texts.items()]
    if len(parts) == 1:
        parts[0] += ", with other options"
    return f"{called(key)} differs between ranks: {'; '.join(parts)}"
