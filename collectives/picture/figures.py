"""Figures of Matplotlib, which is imported only where one is drawn: times over sizes."""

from __future__ import annotations

from typing import Any

from collectives.errors import ArgumentError

__all__ = ["check", "save", "short"]


def check() -> None:
    """Raise ArgumentError if nothing can be plotted here. Local."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ArgumentError("--plot needs matplotlib: pip install matplotlib") from None


def save(figure: Any, path: str) -> None:
    """Write a `figure` of pyplot to `path`, and forget it. Local."""
    from matplotlib import pyplot

    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise ArgumentError(f"--plot {path}: {error}") from error
    finally:
        pyplot.close(figure)


def short(value: float) -> str:
    """Write `value` bytes as on an axis: ``64K``. Local."""
    for unit in ("", "K", "M"):
        if value < 1024:
            return f"{value:.4g}{unit}"
        value /= 1024
    return f"{value:.4g}G"
