"""Drawings of algorithms as text: the door to `collectives.picture.text`."""

from collectives.picture.text import drawing, grid, rounds

__all__ = ["drawing", "grid", "rounds"]
