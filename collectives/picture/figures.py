"""Matplotlib figures of times over sizes; Matplotlib is imported only when one is drawn."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from collectives.errors import ArgumentError
from collectives.text import files

__all__ = ["check", "save", "short"]


def check() -> None:
    """Raise an ArgumentError if Matplotlib is missing. Local."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ArgumentError("--plot needs matplotlib: pip install matplotlib") from None


def save(figure: Any, path: str) -> None:
    """Write a `figure` of pyplot to `path`, and close it. Local."""
    from matplotlib import pyplot

    path = path if Path(path).suffix else f"{path}.png"
    picture = io.BytesIO()
    try:
        figure.savefig(picture, dpi=130, format=Path(path).suffix[1:])
        files.write(path, picture.getvalue())
    except (OSError, ValueError) as error:
        raise ArgumentError(f"--plot {path}: {error}") from error
    finally:
        pyplot.close(figure)


def short(value: float) -> str:
    """Format `value` bytes for an axis: ``64K``. Local."""
    for unit in ("", "K", "M"):
        if value < 1024:
            return f"{value:.4g}{unit}"
        value /= 1024
    return f"{value:.4g}G"
