"""From slots to rounds of each rank."""

from __future__ import annotations

from collections.abc import Sequence

from collectives.algorithms.exchange import Exchange
from collectives.synthesis.transfers import Transfer

Slots = Sequence[Sequence[Transfer]]


def reversed_in_time(slots: Slots) -> list[list[Transfer]]:
    """Return slots that gather sums, where `slots` spread blocks: the last first, and backward."""
    return [
        [Transfer(each.target, each.source, each.block, True) for each in slot]
        for slot in reversed(slots)
    ]


def rounds(p: int, slots: Slots) -> list[list[Exchange]]:
    """Return the rounds of each rank.

    A slot is one round, in which all that a rank receives is folded, or nothing of it. Blocks that
    are folded go one by one, others for one rank in one message.
    """
    found: list[list[Exchange]] = [[] for _ in range(p)]
    for slot in slots:
        sends: dict[int, Side] = {}
        receives: dict[int, Side] = {}
        folds = {each.target: each.fold for each in slot}
        for each in slot:
            alone = each.block if each.fold else -1
            sends.setdefault(each.source, {}).setdefault((each.target, alone), []).append(
                each.block
            )
            takes = receives.setdefault(each.target, {})
            takes.setdefault((each.source, alone), []).append(each.block)
        for rank in sends.keys() | receives.keys():
            give, take = (_messages(side.get(rank, {})) for side in (sends, receives))
            found[rank].append(Exchange(give, take, folds.get(rank, False)))
    return found


Side = dict[tuple[int, int], list[int]]


def _messages(side: Side) -> list[tuple[int, int | list[int]]]:
    return [(peer, b[0] if len(b) == 1 else b) for (peer, _), b in side.items()]
