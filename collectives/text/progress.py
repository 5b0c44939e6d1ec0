"""The progress of a measurement: one line of a terminal, or a new line at intervals."""

from __future__ import annotations

import sys
import time

WIDTH = 30  # characters of a bar
PAUSE = 10.0  # seconds between two lines, if there is no terminal


class StatusLine:
    """One line on the terminal that is overwritten again and again."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted

    def show(self, text: str) -> None:
        """Replace the line by `text`. Local."""
        if self.wanted:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Clear the line. Local."""
        self.show("")


class Bar:
    """A bar that fills, on a terminal; elsewhere a line every ten seconds."""

    def __init__(self, terminal: bool, wanted: bool = True) -> None:
        self.line = StatusLine(terminal and wanted)
        self.plain = wanted and not terminal
        self.last = time.monotonic()

    def show(self, part: float, text: str) -> None:
        """Show the `part` of the work that is done, 0 to 1, and a `text`. Local."""
        part = min(1.0, max(0.0, part))
        full = round(part * WIDTH)
        self.line.show(f"[{'#' * full}{'.' * (WIDTH - full)}] {100 * part:3.0f} %  {text}")
        if self.plain and time.monotonic() - self.last >= PAUSE:
            self.last = time.monotonic()
            print(f"{100 * part:3.0f} %  {text}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Clear the line on the terminal. Local."""
        self.line.clear()
