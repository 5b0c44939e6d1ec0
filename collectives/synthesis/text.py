"""A found algorithm as a file: a generator of an ordinary kind, with its rounds spelled out."""

from __future__ import annotations

from collections.abc import Sequence
from keyword import iskeyword

from collectives.algorithms.exchange import Exchange
from collectives.algorithms.spec import Collective

HEAD = '''"""{about}

Written by `collectives synthesize`. Check it, simulate it, look at it, or run it:

{uses}
"""

from collectives.algorithms import Exchange, algorithm

'''

UNROOTED = '''

@algorithm("{collective}", name="{name}", blocks={blocks}, requires=("ranks={p}",), replace=True)
def {function}(r, p):
    """{summary}"""
    yield from ROUNDS[r]
'''

ROOTED = '''

@algorithm("{collective}", name="{name}", blocks={blocks}, requires=("ranks={p}",), replace=True)
def {function}(r, p, root):
    """{summary}"""
    turn = root - {root}  # the search was for rank {root} as the root
    for each in ROUNDS[(r - turn) % p]:
        sides = each.send, each.recv
        send, recv = ([((peer + turn) % p, b) for peer, b in side] for side in sides)
        yield Exchange(send, recv, each.fold)
'''


def program(
    contract: Collective,
    name: str,
    rounds: Sequence[Sequence[Exchange]],
    blocks: int,
    root: int,
    about: str,
    summary: str,
    uses: Sequence[str],
) -> str:
    """Return the text of the file. Local."""
    lines = [
        "# The rounds of each rank: what it sends and receives, as (rank, blocks), and whether it",
        "# folds what it receives.",
        "ROUNDS = [",
    ]
    for rank, own in enumerate(rounds):
        lines.append(f"    [  # rank {rank}")
        lines += [f"        {_line(each)}," for each in own]
        lines.append("    ],")
    lines.append("]")
    form = ROOTED if contract.rooted else UNROOTED
    tail = form.format(
        collective=contract.name,
        name=name,
        function=name if name.isidentifier() and not iskeyword(name) else "synthesized",
        blocks=blocks,
        p=len(rounds),
        summary=summary,
        root=root,
    )
    head = HEAD.format(about=about, uses="\n".join(f"    {each}" for each in uses))
    return head + "\n".join(lines) + "\n" + tail


def _line(each: Exchange) -> str:
    parts = []
    if each.send:
        parts.append(f"send={each.send!r}")
    if each.recv:
        parts.append(f"recv={each.recv!r}")
    if each.fold:
        parts.append("fold=True")
    return f"Exchange({', '.join(parts)})"
