"""The files of the explorer: whole and legible; and the command that writes them."""

import json
import re
import tempfile
from pathlib import Path

import pytest

from collectives import algorithms, explorer
from collectives.algorithms.spec import COLLECTIVES
from collectives.cli import main
from collectives.errors import ArgumentError
from collectives.explorer import catalogue, course, page
from collectives.picture.sheet import DARK, LIGHT, contrast

COMPOSED = [name for _, name in page.COMPOSED]  # of allreduce
EVERY = [
    (c, name)
    for c in COLLECTIVES
    for name in (*algorithms.names(c), *(COMPOSED if c == "allreduce" else ()))
]
STATIC = Path(explorer.__file__).with_name("static")


def test_all_that_the_page_names_is_there(written):
    pages = ["index.html", "course.html"]
    text = "".join((written / each).read_text(encoding="utf-8") for each in pages)
    named = sorted(set(re.findall(r'(?:src|href)="(?!data:)([^"]+)"', text)))
    assert len(named) == 28
    data = read_call(written / "data" / "catalogue.js")
    rows = [row for each in data["collectives"] for row in each["algorithms"]]
    assert [
        (c["name"], row["name"]) for c in data["collectives"] for row in c["algorithms"]
    ] == EVERY
    named += [row["file"] for row in rows]
    large = [file for row in rows for file in row["large"].values()]
    assert len(large) == len(catalogue.LARGE) * len(course.ALGORITHMS)
    named += [*large, "prover.js"]  # a worker, which the editor starts
    assert len(set(named)) == len(named)
    files = {str(each.relative_to(written)) for each in written.rglob("*") if each.is_file()}
    assert files == {*named, *pages}
    size = sum((written / each).stat().st_size for each in files - {*large})
    assert size < 30_000 * len(rows)
    assert sum((written / each).stat().st_size for each in large) < 500_000


def read_call(file):
    text = file.read_text(encoding="utf-8")
    return json.loads(re.fullmatch(r"explorer\.\w+\((?:\"[^\"]*\",)?(.*)\);\n", text, re.DOTALL)[1])


def test_nothing_is_fetched_from_elsewhere(written):
    for file in written.rglob("*"):
        if file.suffix in (".js", ".css", ".html") and file.parent == written:
            text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
            text = text.replace('fetch("check"', "")  # of the local process
            text = text.replace('self.fetch("pyodide/collectives.zip")', "")
            assert not re.search(r"https?:|//[a-z]+\.|@import|fetch\(|XMLHttp|\burl\(", text), file


def test_scripts_are_short_enough_to_read():
    for file in STATIC.iterdir():
        lines = file.read_text(encoding="utf-8").splitlines()
        assert max(map(len, lines)) <= 120


def test_colours_are_those_of_pictures():
    text = page.colours()
    light, dark, chosen = re.split(r"@media|:root\[data-theme=dark\]", text)
    for part, colours in ((light, LIGHT), (dark, DARK), (chosen, DARK)):
        assert re.findall(r"--c\d: (#\w+);", part) == list(colours)


def test_words_can_be_read_on_every_ground():
    text = (STATIC / "explorer.css").read_text(encoding="utf-8")
    themes = re.findall(r"\{\n\s*color-scheme: (light|dark);(.*?)\}", text, re.DOTALL)
    assert [name for name, _ in themes] == ["light", "dark", "dark"]
    assert themes[1][1].split() == themes[2][1].split()
    for name, body in themes:
        colours = dict(re.findall(r"--([\w-]+): (#\w{6});", body))
        for ground in ("ground", "sheet", "at", "via"):
            for word in ("ink", "soft", "word", "text"):
                assert contrast(colours[word], colours[ground]) >= 4.5, (name, word, ground)
        assert contrast(colours["wrong"], colours["ground"]) >= 4.5
        assert contrast(colours["on-accent"], colours["accent"]) >= 4.5
        for edge in ("edge", "accent"):
            assert contrast(colours[edge], colours["ground"]) >= 3


def test_the_lecture_is_what_begins():
    example = Path(__file__).parents[2] / "examples" / "lecture.py"
    text = re.search(r"^WORKERS = np\.array\((.*)\)$", example.read_text("utf-8"), re.MULTILINE)[1]
    lecture = json.loads(text)
    assert [row[:4] for row in catalogue.numbers()[:4]] == lecture
    assert all(len(row) == page.RANKS for row in catalogue.numbers())


@pytest.mark.usefixtures("quick")
def test_names_that_a_file_cannot_have(registered, tmp_path):
    registered("barrier", "mine/Ünd </script>", algorithms.get("barrier", "direct").generate)
    folder = explorer.write(tmp_path / "new" / "folder").parent
    assert (folder / "data" / "barrier-mine-2f--dc-nd-20--3c--2f-script-3e-.js").is_file()
    assert "</script>" not in (folder / "data" / "catalogue.js").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("allreduce/rong", 4), "allreduce has no algorithm 'rong'"),
        (("ring", 4), "there is no collective 'ring'"),
        (("allreduce/ring", 65), "the page shows 1 to 64 ranks, and p is 65"),
    ],
)
def test_what_cannot_be_opened_is_refused(tmp_path, words, message):
    with pytest.raises(ArgumentError, match=message):
        explorer.write(tmp_path / "out", *words)
    assert not (tmp_path / "out").exists()


# -- the command -------------------------------------------------------------------------------

MINE = """\
from collectives.algorithms import Exchange, algorithm


@algorithm("allreduce", blocks=2)
def there_and_back(r, p):
    \"\"\"The sum walks to the last rank, and walks back.\"\"\"
    if r > 0:
        yield Exchange(recv=(r - 1, range(2)), fold=True)
    yield from back(r, p)


@algorithm("broadcast")
def first(r, p, root):
    \"\"\"Not the last one.\"\"\"
    if r == root:
        yield Exchange(send=[(q, 0) for q in range(p) if q != root])
    else:
        yield Exchange(recv=(root, 0))


def back(r, p):
    if r < p - 1:
        yield Exchange(send=(r + 1, range(2)))
        yield Exchange(recv=(r + 1, range(2)))
    if r > 0:
        yield Exchange(send=(r - 1, range(2)))
"""


@pytest.fixture
def restored():
    """Take out of the registry what a test has loaded into it."""
    before = set(EVERY)
    yield
    for c in COLLECTIVES:
        for name in algorithms.names(c):
            if (c, name) not in before:
                algorithms.unregister(c, name)


@pytest.mark.usefixtures("restored", "quick")
def test_the_command_takes_a_file_of_ones_own(tmp_path, capsys):
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    out = tmp_path / "out"
    assert main(["explore", str(file), "-n", "3", "--out", str(out)]) == 0
    assert capsys.readouterr().out.startswith(f"The page is {out / 'index.html'}; open it")
    opening = read_call(out / "data" / "catalogue.js")["opening"]
    assert opening == {"algorithm": "broadcast/first", "p": 3}
    found = read_call(out / "data" / "allreduce-there_and_back.js")
    assert [each["name"] for each in found["functions"]] == ["there_and_back", "back"]
    assert found["functions"][0]["file"] == "mine.py"
    assert found["cases"]["3"]["roots"][0]["depth"] == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nosuch"], "there is no algorithm 'nosuch'"),
        (["nosuch.py"], "nosuch.py: there is no such file"),
        (["-n", "65"], "the page shows 1 to 64 ranks, and p is 65"),
        (["--out", "/dev/null/x"], "the explorer cannot be written: "),
    ],
)
def test_the_command_says_what_is_wrong(words, message, capsys, monkeypatch):
    monkeypatch.setattr(page.webbrowser, "open", lambda url: pytest.fail(f"opened {url}"))
    assert main(["explore", *words]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"collectives: {message}")
    assert captured.out == ""


def test_a_file_without_an_algorithm_is_refused(tmp_path, capsys):
    file = tmp_path / "empty.py"
    file.write_text("x = 1\n")
    assert main(["explore", str(file)]) == 2
    assert f"collectives: {file}: it registers no algorithm" in capsys.readouterr().err


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("there", [True, False])
def test_the_command_opens_a_browser_or_says_what_to_do(there, tmp_path, capsys, monkeypatch):
    opened = []

    def browser(url):
        opened.append(url)
        return there

    monkeypatch.setattr(page.webbrowser, "open", browser)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("BROWSER", "some")
    assert main(["explore", "tree"]) == 0
    [url] = opened
    out = capsys.readouterr().out
    [line] = re.findall(r"^The page is (.*)$", out, re.MULTILINE)
    assert url == Path(line).as_uri()
    assert Path(line).is_relative_to(tmp_path)
    assert ("No browser was found" in out) == (not there)
    opening = read_call(Path(line).parent / "data" / "catalogue.js")["opening"]
    assert opening == {"algorithm": "allreduce/tree", "p": 4}


@pytest.mark.usefixtures("quick")
def test_an_opened_algorithm_is_there_on_many_ranks(tmp_path):
    explorer.write(tmp_path, "broadcast/tree", p=48)
    data = read_call(tmp_path / "data" / "catalogue.js")
    assert data["counts"] == [*range(1, 17), 32, 48, 64]
    [row] = [r for c in data["collectives"] for r in c["algorithms"] if "48" in r["large"]]
    assert row["large"] == {"48": "data/broadcast-tree.48.js"}
    assert (tmp_path / "data" / "broadcast-tree.48.js").is_file()


@pytest.mark.usefixtures("quick")
def test_two_algorithms_are_opened_side_by_side(tmp_path, capsys):
    assert main(["explore", "ring,butterfly", "--out", str(tmp_path)]) == 0
    opening = read_call(tmp_path / "data" / "catalogue.js")["opening"]
    assert opening == {"algorithm": "allreduce/ring", "p": 4, "beside": "allreduce/butterfly"}
    for names, text in (
        ("ring,tree,kary", "ring,tree,kary has 3 names, and the page shows two"),
        ("ring,broadcast/tree", "broadcast/tree is not of allreduce, as ring is"),
    ):
        assert main(["explore", names, "--out", str(tmp_path)]) == 2
        assert text in capsys.readouterr().err


@pytest.mark.usefixtures("quick")
def test_without_a_screen_no_browser_of_the_terminal_is_started(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(page.webbrowser, "open", lambda url: pytest.fail(f"opened {url}"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert main(["explore"]) == 0
    assert "python -m http.server" in capsys.readouterr().out
