"""Pictures of algorithms: messages in space and time, and who holds what after each step.

In comes a `Proof`; out go its drawing as text (`text`), as SVG (`lanes`, `cells`), and as PNG
(`raster`). An SVG is one file without scripts, and nothing in it is fetched; it is light or dark as
the reader's system is, or as the caller says. Each arrow and cell has a tooltip. `figures` has what
plots of Matplotlib share. Nothing is proven or simulated here.
"""

from __future__ import annotations

from collectives.picture.cells import grids
from collectives.picture.lanes import diagram
from collectives.picture.raster import png
from collectives.picture.sheet import document
from collectives.plans.proof import Proof

__all__ = ["holdings", "picture", "png", "space_time"]


def picture(proof: Proof, *, theme: str | None = None) -> str:
    """Draw an algorithm whole: its messages, and below who holds what. Local.

    Parameters
    ----------
    proof : Proof
        What `check` found.
    theme : str, optional
        ``"light"`` or ``"dark"``; by default the picture has both, and the reader's system chooses.

    Returns
    -------
    str
        The text of an SVG file.

    Examples
    --------
    >>> from collectives.check import check
    >>> from collectives.picture import picture
    >>> picture(check("allreduce", "ring", p=4)).count('class="arrow')
    24
    """
    return document(proof, "messages and holdings", [diagram(proof), grids(proof)], theme)


def space_time(proof: Proof, *, theme: str | None = None) -> str:
    """Draw the messages: a lane for each rank, time to the right, an arrow for each message. Local.

    Parameters
    ----------
    proof : Proof
        What `check` found.
    theme : str, optional
        ``"light"`` or ``"dark"``; by default the picture has both, and the reader's system chooses.

    Returns
    -------
    str
        The text of an SVG file. An arrow has the colour of its first block and, up to 16 ranks, the
        numbers of its blocks where it leaves. A disc with a plus is where it is folded, a tip where
        it is stored.
    """
    return document(proof, "messages", [diagram(proof)], theme)


def holdings(proof: Proof, *, theme: str | None = None) -> str:
    """Draw what each rank holds after each step: a row for each rank, a column per block. Local.

    Parameters
    ----------
    proof : Proof
        What `check` found.
    theme : str, optional
        ``"light"`` or ``"dark"``; by default the picture has both, and the reader's system chooses.

    Returns
    -------
    str
        The text of an SVG file. A cell is filled as far as the block is complete; a tick stands in
        one that is. It names the ranks whose contributions it holds, or counts them, where there
        is room.
    """
    return document(proof, "holdings", [grids(proof)], theme)
