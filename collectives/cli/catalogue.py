"""``collectives list``: the table of algorithms."""

from __future__ import annotations

import argparse
import re
from typing import Any

from collectives.algorithms import Algorithm, get, names
from collectives.algorithms.composition import candidates
from collectives.algorithms.registry import NOWHERE
from collectives.algorithms.spec import COLLECTIVES, collective
from collectives.cli import arguments
from collectives.text.table import markdown

LEGEND = (
    "Times are for p ranks and an array of n bytes in all: alpha s per message, beta s per byte",
    "sent, gamma s per byte folded. In the formulas:",
)
# The names in formulas, but for functions of Python; those that the listed formulas have are shown.
WORDS = {
    "lg": ("lg", "log2(p), rounded down"),
    "up": ("up", "log2(p), rounded up"),
    "q": ("q", "the largest power of two up to p"),
    "rest": ("rest", "1 if p is not a power of two, else 0"),
    "beyond": ("beyond", "the sum of min(d, p - q) over d = 1, 2, 4, ..., q/2"),
    "even": ("even", "the sum of (p - q)/d, rounded up, over d = 2, 4, ..., q"),
    "levels": ("levels(k)", "the levels of the complete k-ary tree below its root"),
    "hops": ("hops(k)", "the messages, one after the other, from its root to its last node"),
    "digits": ("digits(k)", "the digits of p - 1 to the base k"),
    "steps": ("steps(k)", "how many numbers below p have exactly one nonzero digit to the base k"),
    "moves": ("moves(k)", "the nonzero digits of all numbers below p to the base k"),
    "factors": ("factors(k)", "the factors up to k that p is split into"),
    "peers": ("peers(k)", "the sum of these factors, each less 1"),
    "width": ("width(n)", "the least w with 1 + 2 + ... + w >= n - 1"),
    "stages": ("stages(n)", "the fewest terms of w + (w - 1) + ... whose sum is n - 1 or more"),
}
ENDING = (
    "A number after a colon is the default of a parameter, by its name in the formulas.",
    "To draw an algorithm:         collectives explain ring -n 4",
    "To compute times in seconds:  collectives simulate ring -p 16 -b 1M",
)


NAMED_ONLY = "a call runs one only if it or a profile names it, or with bits='size'"


def add_parser(commands: Any) -> None:
    """Add the subcommand."""
    parser = commands.add_parser(
        "list",
        help="list the collectives and their algorithms",
        description="Print the algorithms with their times, properties and requirements.",
    )
    parser.add_argument(
        "collectives",
        nargs="*",
        metavar="collective",
        help="list the algorithms of these collectives (default: of all)",
    )
    parser.add_argument("--markdown", action="store_true", help="print a table in Markdown")
    arguments.add_load(parser)
    parser.set_defaults(main=main)


def main(options: argparse.Namespace) -> int:
    """Print the table."""
    arguments.load(options.load)
    wanted = [collective(name).name for name in options.collectives] or list(COLLECTIVES)
    rows = [get(each, name) for each in wanted for name in names(each)]
    for row in rows:
        if row.cost is not None and not row.included:
            from collectives.plans.proof import compare_cost  # few calls need this slow import

            compare_cost(row)
    print("\n".join(_markdown(rows) if options.markdown else _text(rows)))
    return 0


def _text(rows: list[Algorithm]) -> list[str]:
    used = set(re.findall(r"[a-z]\w*", " ".join(str(row.cost or "") for row in rows)))
    told = [f"  {shown:12}{text}" for word, (shown, text) in WORDS.items() if word in used]
    lines = [*LEGEND, *told, *ENDING]
    width = max(len(_name(row)) for row in rows)
    last = ""
    for row in sorted(rows, key=_place):
        heading = row.collective.name
        if row.chosen == NOWHERE:
            heading = f"{heading}, literature: {NAMED_ONLY}"
        if heading != last:
            last = heading
            lines += ["", heading]
        lines.append(f"  {_name(row):{width}}  {row.summary}")
        lines.append(f"  {'':{width}}  time: {row.cost or 'not stated'}")
        notes = _promises(row)
        if notes:
            lines.append(f"  {'':{width}}  {'; '.join(notes)}")
    listed = dict.fromkeys(row.collective.name for row in rows)
    composed = ", ".join(each for each in listed if candidates(each))
    if composed:
        title = (
            "hierarchical(inside,between) composes one inside hosts with another between them, for"
        )
        lines += ["", title, composed]
    return lines


def _place(row: Algorithm) -> tuple[int, bool]:
    """Return a sort key: by collective, the literature last."""
    return list(COLLECTIVES).index(row.collective.name), row.chosen == NOWHERE


def _name(row: Algorithm) -> str:
    """Return the name with the default of its parameter: ``kary:4``."""
    return ":".join([row.name, *map(str, row.parameters.values())])


def _promises(row: Algorithm) -> list[str]:
    contract = row.collective
    notes = []
    if row.same_bits and contract.reduces and contract.replicates:
        notes.append("same bits on all ranks")
    if row.keeps_order and contract.reduces:
        notes.append("folds in rank order")
    notes += [f"needs: {text.replace('_', ' ')}" for text in row.requires]
    if row.distribution:
        notes.append(f"of {row.distribution}")
    if not row.included:
        notes.append("not included: proven on first use")
    return notes


def _markdown(rows: list[Algorithm]) -> list[str]:
    literature = [row for row in rows if row.chosen == NOWHERE]
    lines = _table([row for row in rows if row.chosen != NOWHERE])
    if literature:
        lines += ["", f"The literature: {NAMED_ONLY}.", "", *_table(literature)]
    return lines


def _table(rows: list[Algorithm]) -> list[str]:
    cells = []
    for row in rows:
        costs = (f"`{row.cost.rounds}`", f"`{row.cost.sent}`") if row.cost else ("", "")
        source = short_source(row.source)
        cells.append((row.collective.name, f"`{_name(row)}`", row.summary, *costs, source))
    heads = ("collective", "algorithm", "what", "rounds", "sent per rank", "source")
    return markdown(heads, cells)


def short_source(source: str) -> str:
    """Shorten a source to authors and year, linked by its DOI or arXiv number. Local."""
    authors = source.partition(":")[0].strip()
    year = re.search(r"\b(1[89]|20)\d\d\b", source)
    text = f"{authors} {year[0]}" if year and year[0] not in authors else authors
    doi = re.search(r"doi:(\S+[^\s.,;])", source)
    arxiv = re.search(r"arXiv:(\d+\.\d+)", source)
    if doi:
        return f"[{text}](https://doi.org/{doi[1]})"
    return f"[{text}](https://arxiv.org/abs/{arxiv[1]})" if arxiv else text
