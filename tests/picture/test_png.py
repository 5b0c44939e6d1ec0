"""Pictures as PNG: the size, the colours and the text of the SVG, or a word why not."""

import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from collectives.check import check
from collectives.cli import main
from collectives.errors import ArgumentError
from collectives.picture import holdings, picture, png, raster, sheet, space_time

RING = check("allreduce", "ring", p=8)


@pytest.fixture
def pixels():
    """Return a function from a PNG to the set of its colours and its corner's, as in SVG."""
    pytest.importorskip("resvg_py")
    image = pytest.importorskip("PIL.Image")

    def read(data):
        array = np.asarray(image.open(io.BytesIO(data)))
        assert array.shape[2] == 3 or (array[..., 3] == 255).all()
        height, width = array.shape[:2]
        flat = array[..., 0].astype(np.uint32) << 16
        flat |= array[..., 1].astype(np.uint32) << 8
        flat |= array[..., 2]
        there = np.zeros(1 << 24, bool)
        there[flat] = True
        return {f"#{c:06x}" for c in np.flatnonzero(there)}, f"#{flat[0, 0]:06x}", width, height

    return read


def without_text(svg):
    return re.sub(r"<text .*?</text>", "", svg)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_png_has_the_colours_of_its_theme(pixels, theme):
    colours, sheet_colours, _ = sheet.THEMES[theme]
    svg = picture(RING, theme=theme)
    found, corner, width, height = pixels(png(svg))
    assert corner == sheet_colours[0]
    assert {*colours, *sheet_colours} <= found
    size = re.search(r'width="(\d+)" height="(\d+)"', svg).groups()
    assert (width, height) == tuple(2 * int(each) for each in size)


def test_of_both_themes_a_png_has_the_light_one(pixels):
    assert pixels(png(space_time(RING)))[:2] == pixels(png(space_time(RING, theme="light")))[:2]


def test_scale_is_in_dots_for_each_pixel(pixels):
    svg = holdings(RING)
    one, two, half = (pixels(png(svg, scale=scale))[2:] for scale in (1, 2, 0.5))
    assert two == pytest.approx((2 * one[0], 2 * one[1]), abs=1)
    assert half == pytest.approx((one[0] / 2, one[1] / 2), abs=1)


def test_text_is_drawn(pixels):
    svg = picture(RING)
    assert without_text(svg) != svg
    assert png(without_text(svg)) != png(svg)


def test_a_theme_is_the_only_one_in_its_file():
    for draw in (picture, space_time, holdings):
        assert "prefers-color-scheme" in draw(RING)
        for theme, (colours, *_) in sheet.THEMES.items():
            text = draw(RING, theme=theme)
            assert "prefers-color-scheme" not in text
            (other,) = set(sheet.THEMES) - {theme}
            assert all(colour in text for colour in colours)
            assert not any(colour in text for colour in sheet.THEMES[other][0])
    with pytest.raises(ArgumentError, match="theme is 'pink', and must be None, 'light' or 'dark'"):
        picture(RING, theme="pink")


# -- missing packages and wrong arguments ------------------------------------------------------


def test_a_missing_renderer_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(ArgumentError, match="a PNG needs resvg-py") as caught:
        png(space_time(RING))
    assert "pip install resvg-py" in str(caught.value)


@pytest.fixture
def machine(monkeypatch):
    """Return a function that sets the fonts of the machine, of Matplotlib's."""
    render = pytest.importorskip("resvg_py").svg_to_bytes
    folder = Path(pytest.importorskip("matplotlib").get_data_path()) / "fonts" / "ttf"

    def has(*names):
        def draw(*, skip_system_fonts=False, font_files=(), serif_family="DejaVu Serif", **options):
            files = [] if skip_system_fonts else [str(folder / f"{each}.ttf") for each in names]
            options |= {"font_files": [*files, *font_files], "serif_family": serif_family}
            return render(skip_system_fonts=True, **options)

        monkeypatch.setattr(raster, "renderer", lambda: draw)
        return draw

    return has


def test_a_font_that_is_there_is_written_with_and_not_its_substitute(machine, monkeypatch):
    monkeypatch.setattr(raster, "FONTS", ("No Such Font", "STIXGeneral"))
    draw = machine("STIXGeneral", "DejaVuSerif")
    svg = space_time(RING)
    assert png(svg) == draw(svg_string=svg, zoom=2.0, sans_serif_family="STIXGeneral")
    assert png(svg) != draw(svg_string=svg, zoom=2.0, sans_serif_family="No Such Font")


def test_without_fonts_matplotlib_has_one(machine):
    svg = space_time(RING)
    machine("DejaVuSans")
    usual = png(svg)
    for fonts in (), ("DejaVuSerif",):
        machine(*fonts)
        assert png(svg) == usual


def test_a_missing_font_is_an_error_and_no_picture_without_text(machine, monkeypatch):
    monkeypatch.setattr(raster, "find_spec", lambda name: None)
    machine("DejaVuSerif")
    with pytest.raises(ArgumentError, match=r"none of Helvetica, .*, FreeSans; .* and Matplotlib"):
        png(space_time(RING))


def test_what_is_no_picture_is_refused():
    pytest.importorskip("resvg_py")
    with pytest.raises(ArgumentError, match="cannot be drawn as a PNG"):
        png("<svg")
    for scale in (0, -1, float("nan")):
        with pytest.raises(ArgumentError, match=r"scale is .*, and must be above 0"):
            png(space_time(RING), scale=scale)


# -- the command -------------------------------------------------------------------------------


def test_the_command_writes_both(tmp_path, capsys):
    pytest.importorskip("resvg_py")
    dots, shapes = tmp_path / "tree.png", tmp_path / "tree.SVG"
    words = ["explain", "broadcast/tree", "-n", "5", "--root", "2", "--theme", "dark"]
    assert main([*words, "--png", str(dots), "--svg", str(shapes)]) == 0
    text = picture(check("broadcast", "tree", p=5, root=2), theme="dark")
    assert shapes.read_text(encoding="utf-8") == text
    assert dots.read_bytes() == png(text)
    out = capsys.readouterr().out
    assert out.endswith(f"\n\nThe picture is in {shapes} and {dots}\n")


def test_without_the_renderer_the_command_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    paths = tmp_path / "ring.svg", tmp_path / "ring.png"
    assert main(["explain", "ring", "--svg", str(paths[0]), "--png", str(paths[1])]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("collectives: a PNG needs resvg-py: pip install ")
    assert captured.out == ""
    assert not list(tmp_path.iterdir())


def test_the_name_says_png(tmp_path, capsys):
    path = tmp_path / "ring.svg"
    assert main(["explain", "ring", "--png", str(path)]) == 2
    assert f"--png {path}: the picture is a PNG, so the name must end in .png" in (
        capsys.readouterr().err
    )
    assert not path.exists()


def test_a_theme_without_a_picture_is_refused(capsys):
    assert main(["explain", "ring", "--theme", "dark"]) == 2
    assert "--theme dark is for --svg and --png" in capsys.readouterr().err
