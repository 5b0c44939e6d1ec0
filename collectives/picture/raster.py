"""Pictures as PNG, through the renderer resvg, which is an optional dependency.

resvg is one small wheel without further requirements, but it has no fonts. If a font is missing, it
uses a serif font instead, or leaves the text out, without a warning. So a letter is first drawn in
each of the usual fonts, without a fallback, to find one that exists. Machines without a screen
often have none of them; then Matplotlib's font is used, if that is installed.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from collectives.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

FONTS = (
    "Helvetica",
    "Arial",
    "DejaVu Sans",
    "Liberation Sans",
    "Noto Sans",
    "Open Sans",
    "FreeSans",
)
LETTER = (
    '<svg xmlns="http://www.w3.org/2000/svg" width="20" height="20">'
    '<text x="2" y="18" font-family="{}">W</text></svg>'
)


def renderer() -> Callable[..., bytes]:
    """Return resvg's function from SVG to PNG. Local."""
    try:
        from resvg_py import svg_to_bytes
    except ImportError as error:
        raise ArgumentError(f"a PNG needs resvg-py: pip install resvg-py ({error})") from None
    render: Callable[..., bytes] = svg_to_bytes
    return render


def png(svg: str, *, scale: float = 2.0) -> bytes:
    """Convert a picture to PNG. Local.

    Parameters
    ----------
    svg : str
        The text of an SVG file, as `picture` returns it. If it has both light and dark colours, the
        light ones are used.
    scale : float
        Pixels of the PNG for each pixel of the SVG.

    Returns
    -------
    bytes
        A PNG file.

    Raises
    ------
    ArgumentError
        If resvg-py or a font is missing, or `svg` is not an SVG.
    """
    if not scale > 0:
        raise ArgumentError(f"scale is {scale!r}, and must be above 0")
    render = renderer()
    font, files = _font(render)
    try:
        return render(svg_string=svg, zoom=scale, sans_serif_family=font, font_files=files)
    except ValueError as error:
        raise ArgumentError(f"this picture cannot be drawn as a PNG: {error}") from error


@cache
def _font(render: Callable[..., bytes]) -> tuple[str, list[str]]:
    """Return the first of the usual fonts that exists, and its file if it is Matplotlib's."""
    blank = render(svg_string=LETTER.format(FONTS[0]), skip_system_fonts=True)
    for files in [], _matplotlib():
        for font in FONTS:
            letter = LETTER.format(font)
            if render(svg_string=letter, serif_family=font, font_files=files) != blank:
                return font, files
    raise ArgumentError(
        f"a PNG needs a font to write with, and there is none of {', '.join(FONTS)}; "
        "Debian and Ubuntu have one in the package fonts-dejavu-core, and Matplotlib brings one"
    )


def _matplotlib() -> list[str]:
    """Return the file of Matplotlib's own font, or an empty list, without importing Matplotlib."""
    package = find_spec("matplotlib")
    if package is None or package.origin is None:
        return []
    return [str(Path(package.origin).with_name("mpl-data") / "fonts" / "ttf" / "DejaVuSans.ttf")]
