"""The progress of long work: a bar on the terminal, which tqdm draws if it is installed."""

from __future__ import annotations

import sys
import time
from typing import Any

WIDTH = 30  # characters of a bar
PAUSE = 10.0  # seconds between two lines, if there is no terminal
FORM = "{l_bar}{bar}| {elapsed}<{remaining}{postfix}"


class Bar:
    """A bar on a terminal; elsewhere no output, or with `lines` a line every ten seconds."""

    def __init__(self, terminal: bool, wanted: bool = True, lines: bool = False) -> None:
        self.terminal: bool = terminal and wanted
        self.lines: bool = lines and wanted and not terminal
        self.part: float = 0.0
        self.last: float = time.monotonic()
        self._tqdm: Any = _tqdm() if self.terminal else None

    def show(self, part: float | None, text: str) -> None:
        """Show the `part` of the work that is done, 0 to 1, or None if it has not changed, and a
        `text`. Local.
        """
        if part is not None:
            self.part = min(1.0, max(0.0, part))
        if self._tqdm is not None:
            self._tqdm.n = self.part
            self._tqdm.set_postfix_str(text)
        elif self.terminal:
            full = round(self.part * WIDTH)
            bar = f"[{'#' * full}{'.' * (WIDTH - full)}] {100 * self.part:3.0f} %  {text}"
            print(f"\r\x1b[K{bar}", end="", file=sys.stderr, flush=True)
        elif self.lines and time.monotonic() - self.last >= PAUSE:
            self.last = time.monotonic()
            print(f"{100 * self.part:3.0f} %  {text}", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Clear the line on the terminal. Local."""
        if self._tqdm is not None:
            self._tqdm.clear()
        elif self.terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _tqdm() -> Any:
    """Return a bar of tqdm, or None if it is not installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None

    class Quiet(tqdm):  # type: ignore[type-arg,misc,unused-ignore]  # it may not be installed
        monitor_interval = 0  # no thread of its own beside the measurement

    # With a delay, nothing is drawn before the first call of `show`.
    return Quiet(total=1.0, file=sys.stderr, leave=False, bar_format=FORM, delay=1e-3)
