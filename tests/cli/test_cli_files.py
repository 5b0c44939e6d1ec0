"""Files that the commands write where a link has been put before."""

import pytest

from collectives.choice import profile
from collectives.cli import main
from collectives.explorer import page
from collectives.picture import plots


@pytest.fixture
def victim(tmp_path):
    path = tmp_path / "victim"
    path.write_text("mine")
    return path


def explain(path):
    return main(["explain", "ring", "--svg", str(path)])


def simulate(path):
    return main(["simulate", "allreduce", "-p", "4", "-b", "8", "--json", str(path)])


def tune(path):
    profile.add([], str(path), mends=True)
    return 0


def draw(path):
    pytest.importorskip("matplotlib")
    plots.save(__import__("matplotlib.figure").figure.Figure(), str(path))
    return 0


@pytest.mark.parametrize(
    ("write", "name"),
    [(explain, "out.svg"), (simulate, "out.json"), (tune, "out.json"), (draw, "out.png")],
)
def test_a_link_is_replaced(tmp_path, victim, capsys, write, name):
    path = tmp_path / name
    path.symlink_to(victim)
    assert write(path) == 0
    assert path.stat().st_size > 10
    assert not path.is_symlink()
    assert victim.read_text() == "mine"


def test_links_in_the_folder_of_the_explorer(tmp_path, victim, monkeypatch):
    monkeypatch.setattr(page, "names", lambda name: ["ring"] if name == "allreduce" else [])
    for name in ("index.html", "colours.css", "data/catalogue.js"):
        (tmp_path / "page" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "page" / name).symlink_to(victim)
    page.write(tmp_path / "page")
    assert victim.read_text() == "mine"
    assert not (tmp_path / "page" / "index.html").is_symlink()
