"""The log on the standard error stream, for programs that do not configure `logging`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from collectives.errors import ArgumentError
from collectives.text import logs

if TYPE_CHECKING:
    import logging

WORDS = "DEBUG", "INFO", "WARNING", "ERROR"
FORM = "%(asctime)s rank %(rank)s on %(host)s: %(levelname)s: %(message)s"


def log_to_stderr(level: str = "INFO") -> logging.Logger:
    """Print the log of this rank on its standard error stream.
    Local.

    Each line has the time, the rank and its host. ``COLLECTIVES_LOG=info`` does the same without a
    change of the program.

    Parameters
    ----------
    level : str
        ``"DEBUG"``, ``"INFO"``, ``"WARNING"`` or ``"ERROR"``, in any case: the lowest level of
        printed records.

    Returns
    -------
    logging.Logger
        The logger ``collectives``. Its records have the attributes ``rank``, the rank in the job,
        and ``host``.

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
    logger: logging.Logger = logs.logger(logging)
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
