"""The log: what the library tells `logging` of itself, as the logger ``collectives``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from collectives.errors import ArgumentError
from collectives.text.origin import levels

if TYPE_CHECKING:
    import logging

NAME = "collectives"
WORDS = "DEBUG", "INFO", "WARNING", "ERROR"
FORM = "%(asctime)s rank %(rank)s on %(host)s: %(levelname)s: %(message)s"

_place: dict[str, Any] = {"rank": None, "host": None}


def locate(rank: int | str, host: str) -> None:
    """Say in records which rank of the job this process is, and on which host. Local."""
    _place.update(rank=rank, host=host)


def note(level: str, text: str) -> None:
    """Log a text. Local.

    Nobody listens as long as the program has not loaded `logging`, which takes a while to load.
    """
    logging = sys.modules.get("logging")
    if logging is None:
        return
    logger = _logger(logging)
    number = getattr(logging, level)
    if logger.isEnabledFor(number):
        logger.log(number, "%s", text, extra=_place, stacklevel=levels())


def _logger(logging: Any) -> Any:
    logger = logging.getLogger(NAME)
    if not logger.handlers:  # warnings are printed as such: not by the handler of last resort, too
        logger.addHandler(logging.NullHandler())
    return logger


def log_to_stderr(level: str = "INFO") -> logging.Logger:
    """Print the log of this rank on its standard error stream.
    Local.

    Each line has the time, the rank and its host. ``COLLECTIVES_LOG=info`` does the same without a
    change of the program.

    Parameters
    ----------
    level : str
        ``"DEBUG"``, ``"INFO"``, ``"WARNING"`` or ``"ERROR"``, in capitals or not: the least
        important records that are printed.

    Returns
    -------
    logging.Logger
        The logger ``collectives``. Its records have the attributes ``rank``, the number of the rank
        in the job, and ``host``.

    Raises
    ------
    ArgumentError
        If `level` is none of these words.

    Examples
    --------
    >>> import collectives as cc
    >>> cc.log_to_stderr("warning").name
    'collectives'
    """
    import logging

    word = level.upper() if isinstance(level, str) else ""
    if word not in WORDS:
        raise ArgumentError(f"level is {level!r}, and must be one of: {', '.join(WORDS)}")
    logger: logging.Logger = _logger(logging)
    for each in list(logger.handlers):
        if getattr(each, "is_of_collectives", False):
            logger.removeHandler(each)
    handler: Any = logging.StreamHandler()
    handler.is_of_collectives = True
    handler.setFormatter(logging.Formatter(FORM))
    logger.addHandler(handler)
    logger.setLevel(word)
    logger.propagate = False
    return logger
