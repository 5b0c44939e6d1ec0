"""Tables of text, in columns as wide as their widest cell, and tables in Markdown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence


def aligned(rows: Sequence[Sequence[str]], left: Collection[int] = ()) -> list[str]:
    """Return the lines of a table, without blanks at their ends. Local."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return lines


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table in Markdown. Local."""
    return [markdown_row(heads), "|---" * len(heads) + "|", *map(markdown_row, rows)]


def markdown_row(cells: Iterable[str]) -> str:
    """Return a line of a table in Markdown. Local."""
    return f"| {' | '.join(cells)} |"
