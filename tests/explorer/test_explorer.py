"""The explorer: its data are what the proofs found, and its page plays them to the right end.

The page runs in a headless Chromium, driven by ``drive.js``; where there is none, those
tests are skipped. Nothing but files is opened.
"""

import html
import json
import re
import shutil
import subprocess
import tempfile
import textwrap
from collections import defaultdict
from pathlib import Path

import pytest

from collectives import algorithms, explorer
from collectives.algorithms.spec import COLLECTIVES
from collectives.check import check
from collectives.cli import main
from collectives.errors import ArgumentError
from collectives.explorer import page
from collectives.explorer.cases import cases, turned
from collectives.explorer.sources import Sources, coloured
from collectives.picture.sheet import DARK, LIGHT, contrast
from collectives.simulate import simulate
from collectives.topology import FatTree, Flat, Hosts, Torus

EVERY = [(c, name) for c in COLLECTIVES for name in algorithms.names(c)]
STATIC = Path(explorer.__file__).with_name("static")
DRIVE = Path(__file__).with_name("drive.js")

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
DEADLINE = 240  # seconds for a browser; a quiet machine needs 30 for the longest of these tests

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")


# -- the data ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("collective", "name"), EVERY)
@pytest.mark.parametrize("p", [1, 4, 7])
def test_cases_are_what_the_proof_found(collective, name, p):
    row = algorithms.get(collective, name)
    found = cases(row, p, Sources(row.generate))
    for root in range(p) if row.collective.rooted else [0]:
        case = turned(found["roots"][0], p, root, found["turn"]) if root else found["roots"][0]
        proof = check(row, p=p, root=root)
        assert (case["nblocks"], case["depth"]) == (proof.nblocks, proof.depth)
        events = [(m[5], m[0], m[2], tuple(m[6:]), bool(m[4])) for m in case["messages"]]
        assert sorted(events) == sorted(map(tuple, proof.events))
        assert case["wanted"] == [proof.wanted(r) for r in range(p)]
        for r in range(p):
            assert len(case["rounds"][r]) == len(list(row.rounds(r, p, root)))
            due = case["due"][r if len(case["due"]) > 1 else 0]
            cut = proof.nblocks // len(due)
            assert [due[b // cut] for b in range(proof.nblocks)] == [
                proof.due(r, b) for b in range(proof.nblocks)
            ]
            held = dict.fromkeys(case["held"][r], 1 << r)
            assert {b: mask for b, mask in enumerate(proof.held(0)[r]) if mask} == held


@pytest.mark.parametrize(("collective", "name"), EVERY)
def test_rounds_come_from_lines_that_yield(collective, name):
    row = algorithms.get(collective, name)
    sources = Sources(row.generate)
    found = cases(row, 7, sources)
    texts = [dict(each["lines"]) for each in sources.data()]
    used = {spot for rounds in found["roots"][0]["rounds"] for spot in rounds}
    assert used == set(range(len(sources.spots)))
    assert used
    for spot in sources.spots:
        statements = [
            "\n".join(plain(texts[number][line]) for line in range(first, last + 1))
            for number, first, last in spot
        ]
        assert statements[-1].strip().startswith("yield Exchange(")
        for statement in statements[:-1]:
            assert statement.strip().startswith("yield from ")


def plain(line):
    return html.unescape(re.sub(r"<[^>]*>", "", line))


def test_text_is_coloured_and_whole():
    text = textwrap.dedent(
        '''\
        def f(r):
            """Two
            lines."""
            yield "<&>", 1  # and so on
        '''
    )
    lines = coloured(text)
    assert [plain(line) for line in lines] == text.splitlines()
    assert lines[0] == '<span class="k">def</span> <span class="d">f</span>(r):'
    assert lines[1:3] == [
        '    <span class="s">"""Two</span>',
        '<span class="s">    lines."""</span>',
    ]
    assert lines[3] == (
        '    <span class="k">yield</span> <span class="s">"&lt;&amp;&gt;"</span>, '
        '<span class="n">1</span>  <span class="c"># and so on</span>'
    )


def test_docstring_and_decorator_are_left_out():
    [text] = Sources(algorithms.get("broadcast", "tree").generate).data()
    lines = [plain(line) for _, line in text["lines"]]
    assert lines[0] == "def broadcast_tree(r: int, p: int, root: int) -> Iterator[Exchange]:"
    assert lines[1] == "    v = (r - root) % p"
    assert text["file"] == "collectives/algorithms/tree.py"


def of_root(r, p, root):
    """Not written for root 0: every other root has a way of its own."""
    if r == root:
        for q in range(p) if root % 2 else reversed(range(p)):
            if q != root:
                yield algorithms.Exchange(send=(q, 0))
    else:
        yield algorithms.Exchange(recv=(root, 0))


@pytest.fixture
def registered():
    """Register algorithms for a test."""
    added = []

    def register(collective, name, generate, **more):
        algorithms.algorithm(collective, name=name, **more)(generate)
        added.append((collective, name))

    yield register
    for each in added:
        algorithms.unregister(*each)


def test_roots_that_do_not_follow_from_each_other_are_all_there(registered):
    registered("broadcast", "of_root", of_root)
    row = algorithms.get("broadcast", "of_root")
    found = cases(row, 4, Sources(row.generate))
    assert "turn" not in found
    orders = [[m[2] for m in case["messages"]] for case in found["roots"]]
    assert orders == [[3, 2, 1], [0, 2, 3], [3, 1, 0], [0, 1, 2]]


def test_a_wrong_algorithm_is_there_with_its_error(registered):
    def silent(r, p):
        """Say nothing."""
        return iter(())

    def fails(r, p):
        yield algorithms.Exchange(send=((r + 1) % p, 0), recv=((r - 1) % p, 0), fold=[1][p])

    registered("allreduce", "silent", silent)
    registered("allreduce", "fails", fails)
    found = page.data(algorithms.get("allreduce", "silent"))["cases"]
    assert found["1"]["roots"][0]["messages"] == []
    assert found["2"]["error"].startswith("allreduce 'silent' on 2 ranks: rank 0 ends with block 0")
    found = page.data(algorithms.get("allreduce", "fails"))["cases"]
    assert re.fullmatch(
        r"allreduce 'fails' on 4 ranks: rank 0, round 1: raises IndexError: list index out of "
        r"range \(test_explorer.py, line \d+\)",
        found["4"]["error"],
    )


def test_a_number_of_ranks_that_is_refused_says_so(registered):
    registered(
        "allreduce",
        "two",
        algorithms.get("allreduce", "ring").generate,
        blocks=lambda p: p,
        requires=("power_of_two",),
    )
    found = page.data(algorithms.get("allreduce", "two"))["cases"]
    assert "needs a power of two" in found["6"]["error"]
    assert found["8"]["roots"][0]["depth"] == 14


def test_what_has_no_text_is_played_without(registered):
    space = {"Exchange": algorithms.Exchange, "__name__": "typed"}
    exec(
        "def typed(r, p):\n"
        "    others = [(q, 0) for q in range(p) if q != r]\n"
        "    yield Exchange(send=others, recv=others, fold=True)\n",
        space,
    )
    registered("barrier", "typed", space["typed"])
    found = page.data(algorithms.get("barrier", "typed"))
    assert found["functions"] == [{"name": "typed", "file": "<string>", "lines": []}]
    assert len(found["cases"]["3"]["roots"][0]["messages"]) == 6


# -- the files ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return explorer.write(tmp_path_factory.mktemp("explorer")).parent


def test_all_that_the_page_names_is_there(written):
    text = (written / "index.html").read_text(encoding="utf-8")
    named = re.findall(r'(?:src|href)="(?!data:)([^"]+)"', text)
    assert len(named) == 9
    catalogue = read_call(written / "data" / "catalogue.js")
    rows = [row for each in catalogue["collectives"] for row in each["algorithms"]]
    assert [
        (c["name"], row["name"]) for c in catalogue["collectives"] for row in c["algorithms"]
    ] == EVERY
    named += [row["file"] for row in rows]
    assert len(set(named)) == len(named)
    files = {str(each.relative_to(written)) for each in written.rglob("*") if each.is_file()}
    assert files == {*named, "index.html"}
    assert sum((written / each).stat().st_size for each in files) < 2_000_000


def read_call(file):
    text = file.read_text(encoding="utf-8")
    return json.loads(re.fullmatch(r"explorer\.\w+\((?:\"[^\"]*\",)?(.*)\);\n", text, re.DOTALL)[1])


def test_nothing_is_fetched_from_elsewhere(written):
    for file in written.rglob("*"):
        if file.suffix in (".js", ".css", ".html") and file.parent == written:
            text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
            assert not re.search(r"https?:|//[a-z]+\.|@import|fetch\(|XMLHttp|\burl\(", text), file


def test_scripts_are_short_enough_to_read():
    for file in STATIC.iterdir():
        lines = file.read_text(encoding="utf-8").splitlines()
        assert len(lines) < 500
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
    assert [row[:4] for row in page.numbers()[:4]] == lecture
    assert all(len(row) == page.RANKS for row in page.numbers())


@pytest.fixture
def quick(monkeypatch):
    """Leave the data out, which take seconds."""
    monkeypatch.setattr(page, "data", lambda row: {})


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
        (("allreduce/ring", 17), "the page shows 1 to 16 ranks, and p is 17"),
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


@pytest.mark.usefixtures("restored")
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
        (["-n", "17"], "the page shows 1 to 16 ranks, and p is 17"),
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
    assert ("There is no browser here" in out) == (not there)
    opening = read_call(Path(line).parent / "data" / "catalogue.js")["opening"]
    assert opening == {"algorithm": "allreduce/tree", "p": 4}


@pytest.mark.usefixtures("quick")
def test_without_a_screen_no_browser_of_the_terminal_is_started(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(page.webbrowser, "open", lambda url: pytest.fail(f"opened {url}"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert main(["explore"]) == 0
    assert "python -m http.server" in capsys.readouterr().out


# -- the page ----------------------------------------------------------------------------------


# A window is never as narrow as a phone, but a frame in it may be.
FRAME = """<!DOCTYPE html><iframe src="index.html" width="360" height="800"></iframe><script>
window.onmessage = (event) => {
  document.body.innerHTML = '<pre id="report"></pre>';
  document.getElementById("report").textContent = event.data;
};
</script>"""


def browse(written, folder, jobs=(), hash="", keys=False, flags=(), narrow=False):
    """Open the page in a browser, and return what the drive found."""
    shutil.copytree(written, folder, dirs_exist_ok=True)
    index = folder / "index.html"
    text = index.read_text(encoding="utf-8")
    (folder / "jobs.js").write_text(
        "window.errors = [];\n"
        "window.onerror = (...words) => { window.errors.push(words.join(' ')); };\n"
        "window.onunhandledrejection = (event) => { window.errors.push(String(event.reason)); };\n"
        "console.error = (...words) => { window.errors.push(words.join(' ')); };\n"
        f"window.pressKeys = {json.dumps(keys)};\n"
        f"window.jobs = {json.dumps(list(jobs))};\n"
    )
    shutil.copy(DRIVE, folder / "drive.js")
    text = text.replace("<head>", '<head><script src="jobs.js"></script>')
    text = text.replace("</body>", '<script src="drive.js"></script></body>')
    index.write_text(text, encoding="utf-8")
    if narrow:
        index = folder / "frame.html"
        index.write_text(FRAME, encoding="utf-8")
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
            f"--user-data-dir={folder / 'profile'}",
            "--virtual-time-budget=10000000",
            "--window-size=1400,1000",
            *flags,
            "--dump-dom",
            f"{index.as_uri()}{hash}",
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=DEADLINE,
    )
    dom = done.stdout.decode("utf-8")
    report = re.search(r'<pre id="report">(.*?)</pre>', dom, re.DOTALL)
    assert report, f"the page did not come to its end: {done.stderr.decode()[-2000:]}"
    found = json.loads(html.unescape(report[1]))
    assert found["errors"] == []
    return found


def elements(collective, p, panel):
    """Return how many numbers the page draws, and for each its part."""
    contract = COLLECTIVES[collective]
    parts = contract.parts(p)
    n = panel["length"]
    return [e * parts // n for e in range(n)]


def expected(collective, p, root, panel):
    """Return what the collective promises: {(rank, element): text}."""
    contract = COLLECTIVES[collective]
    start = page.numbers()
    found = {}
    for r in range(p):
        for e, part in enumerate(elements(collective, p, panel)):
            if part in contract.outputs(r, p, root):
                due = contract.sources(part, r, p, root)
                givers = [q for q in range(p) if due >> q & 1]
                place = e % p if contract.parts(2) == 4 else e
                total = sum(start[q][place % page.RANKS] for q in givers)
                found[r, e] = str(len(givers) if contract.idempotent else total)
    return found


def hold(collective, p, root, panel):
    """Hold what a panel shows in the end against the collective's promise."""
    wanted = expected(collective, p, root, panel)
    assert wanted
    shown = defaultdict(set)
    for rank, element, text, whole in panel["cells"]:
        shown[rank, element].add((text, whole))
    for key, text in wanted.items():
        assert shown[key] == {(text, True)}, (panel["title"], key)
    assert panel["words"].endswith("✓ Every rank has its result.")
    assert panel["leftover"] == 0


def roots(collective, p):
    return sorted({0, p - 1}) if COLLECTIVES[collective].rooted else [0]


@needs_chromium
def test_every_algorithm_plays_to_the_right_end(written, tmp_path):
    jobs, plan = [], []
    for collective, name in EVERY:
        for p in (4, 7):
            for root in roots(collective, p):
                plan.append((collective, name, p, root))
                settings = {"algorithm": f"{collective}/{name}", "p": p, "root": root}
                jobs.append({"settings": settings, "play": True})
    found = browse(written, tmp_path / "page", jobs)["results"]
    assert len(found) == len(plan)
    for (collective, name, p, root), result in zip(plan, found, strict=True):
        assert result["state"] == "end"
        assert result["lines"] > 0
        assert result["chips"] > 0
        [panel] = result["panels"]
        proof = check(collective, name, p=p, root=root)
        assert panel["title"] == f"{collective}: {name}"
        assert panel["counts"]["step"] == f"{proof.depth} of {proof.depth}"
        messages = sum(proof.messages)
        assert panel["counts"]["messages"] == f"{messages} of {messages}"
        hold(collective, p, root, panel)


RATES = {"alpha": 3.1e-6, "beta": 2.3e-10, "gamma": 0.7e-10}
INSIDE = {"insideAlpha": 0.4e-6, "insideBeta": 0.6e-10}
NEAR = tuple(INSIDE.values())
# What the page is told of a machine beside the rates, and the same machine for the simulation.
MACHINES = [
    ({}, Flat(4, **RATES)),
    ({}, Flat(7, **RATES)),
    ({}, Flat(16, **RATES)),
    ({"delay": 2e-5}, Flat(5, **RATES, delay=2e-5)),
    ({"topology": "hosts", "perHost": 2}, Hosts(3, 2, **RATES, inside=NEAR)),
    (
        {"topology": "hosts", "perHost": 4, "delay": 7e-6},
        Hosts(3, 4, **RATES, inside=NEAR, delay=7e-6),
    ),
    (
        {"topology": "fattree", "perHost": 2, "perSwitch": 3, "oversubscription": 4},
        FatTree(6, 2, 3, 4, **RATES, inside=NEAR),
    ),
    (
        {"topology": "fattree", "perHost": 1, "perSwitch": 2, "oversubscription": 1, "delay": 1e-6},
        FatTree(7, 1, 2, 1, **RATES, inside=NEAR, delay=1e-6),
    ),
    ({"topology": "torus"}, Torus((2, 2, 3), **RATES)),
    (
        {"topology": "torus", "hop": 5e-7, "delay": 3e-6},
        Torus((4, 4), **RATES, hop=5e-7, delay=3e-6),
    ),
    ({"topology": "torus"}, Torus((7,), **RATES)),
]


@needs_chromium
def test_the_clock_is_that_of_the_simulation(written, tmp_path):
    jobs, plan = [], []
    for collective, name in EVERY:
        for told, topology in MACHINES:
            p = topology.p
            root = roots(collective, p)[-1]
            nbytes = 8 if p == 7 else 100_003
            sent = 0 if collective == "barrier" else nbytes
            plan.append((collective, name, p, root, sent, topology))
            settings = {"algorithm": f"{collective}/{name}", "p": p, "root": root, "nbytes": nbytes}
            jobs.append({"settings": {**settings, **RATES, **INSIDE, **told}})
    found = browse(written, tmp_path / "page", jobs)["results"]
    assert len(found) == len(plan)
    for (collective, name, p, root, nbytes, topology), result in zip(plan, found, strict=True):
        [panel] = result["panels"]
        want = simulate(collective, name, nbytes, topology, root=root)
        assert panel["end"] == pytest.approx(want.time, rel=1e-6)
        assert len(panel["messages"]) == len(want.transfers) == want.messages
        got = sorted(tuple(m[:7]) for m in panel["messages"])
        for m, t in zip(got, sorted(order(t) for t in want.transfers), strict=True):
            assert m[:4] == t[:4], (collective, name, p)
            assert m[4:] == pytest.approx(t[4:], rel=1e-6), (collective, name, p)
        hold(collective, p, root, panel)


def order(t):
    return t.source, t.target, t.round, t.nbytes, t.start, t.end, t.folded


@needs_chromium
def test_two_algorithms_share_a_clock_and_the_arrays(written, tmp_path):
    settings = {"algorithm": "allreduce/ring", "beside": "allreduce/master_worker", "p": 4}
    [result] = browse(written, tmp_path / "page", [{"settings": settings, "play": True}])["results"]
    ring, master = result["panels"]
    assert ring["length"] == master["length"] == 4
    for panel in (ring, master):
        hold("allreduce", 4, 0, panel)
        assert [text for r, _, text, _ in panel["cells"] if r == 0] == ["37", "37", "36", "43"]
    assert ring["counts"]["sent"] == master["counts"]["sent"] == "6 MiB of 6 MiB"
    assert ring["end"] < master["end"]


@needs_chromium
def test_keys_and_controls(written, tmp_path):
    found = browse(written, tmp_path / "page", keys=True)
    keys = found["keys"]
    assert keys["moving"] is True
    assert keys["right"] == "1 of 6"
    assert keys["words"].startswith(
        "Rank 0 sends block 0 to 1, which adds it; 1 sends block 1 to 2"
    )
    assert keys["hash"] == "#algorithm=allreduce/ring&p=4&step=1"
    assert keys["three"] == "3 of 6"
    assert keys["left"] == "2 of 6"
    assert keys["end"] == "24 of 24"
    assert keys["home"] == 0
    assert keys["space"] == [True, "⏸ Pause"]
    assert keys["again"] == [False, "▶ Play"]
    assert keys["ranks"] == 5
    assert keys["cells"] == "ranks"
    assert keys["theme"] == "light"
    assert keys["speed"] == "2"
    assert keys["titles"] == ["broadcast: flat", "broadcast: chain"]
    assert keys["chosen"] == (
        "#algorithm=broadcast/flat&beside=broadcast/chain&p=5&root=2&nbytes=1024"
        "&topology=fattree&cells=ranks&theme=light"
    )
    assert keys["half"] == pytest.approx(0.5)
    assert keys["table"] == 6
    assert keys["nameless"] == keys["unreachable"] == []
    assert keys["live"] == 2


@needs_chromium
def test_a_link_leads_to_its_view(written, tmp_path):
    link = (
        "#algorithm=reduce/tree&beside=reduce/flat&p=7&root=5&nbytes=4096&perHost=2&alpha=0.00001"
        "&delay=0.00002&topology=hosts&step=2"
    )
    found = browse(written, tmp_path / "page", hash=link)
    opened = found["opened"]
    assert [panel["title"] for panel in opened["panels"]] == ["reduce: tree", "reduce: flat"]
    tree, flat = opened["panels"]
    marks = sorted({*tree["steps"], *flat["steps"]})
    assert opened["time"] == marks[2]
    words = dict(re.findall(r"(\w+)=([^&]+)", opened["hash"]))
    wanted = dict(re.findall(r"(\w+)=([^&]+)", link))
    assert float(words.pop("alpha")) == float(wanted.pop("alpha"))
    assert words == wanted


@needs_chromium
def test_nonsense_in_a_link_is_left_out(written, tmp_path):
    link = (
        "#algorithm=no/such&p=99&root=x&beta=-1&step=-3&time=abc&theme=<b>&nbytes=1e300&topology=x"
        "&hop=-1&perHost=2.5"
    )
    opened = browse(written, tmp_path / "page", hash=link)["opened"]
    assert opened["hash"] == "#algorithm=allreduce/ring&p=4"
    assert opened["time"] == 0


@needs_chromium
def test_where_motion_is_unwelcome_it_goes_in_steps(written, tmp_path):
    jobs = [{"settings": {"algorithm": "allreduce/ring", "p": 4}, "play": True}]
    flags = ["--force-prefers-reduced-motion"]
    [result] = browse(written, tmp_path / "page", jobs, flags=flags)["results"]
    [panel] = result["panels"]
    assert result["chips"] == 0  # only ends of steps were shown, when nothing is under way
    hold("allreduce", 4, 0, panel)


@needs_chromium
@pytest.mark.parametrize("algorithm", ["allreduce/ring", "alltoall/bruck"])
def test_a_phone_shows_it_all(written, tmp_path, algorithm):
    jobs = [{"settings": {"algorithm": algorithm, "p": 8, "topology": "fattree"}}]
    found = browse(written, tmp_path / "page", jobs, narrow=True)
    assert found["width"] == 360
    assert found["scroll"] <= 360
    [panel] = found["results"][0]["panels"]
    hold(algorithm.split("/")[0], 8, 0, panel)


@needs_chromium
def test_a_wrong_algorithm_is_shown_with_its_error(registered, tmp_path):
    def quiet(r, p):
        """Say nothing."""
        return iter(())

    registered("allreduce", "quiet", quiet)
    folder = explorer.write(tmp_path / "written").parent
    jobs = [{"settings": {"algorithm": "allreduce/quiet", "p": p}} for p in (3, 1)]
    wrong, right = browse(folder, tmp_path / "page", jobs)["results"]
    [panel] = wrong["panels"]
    assert panel["error"].startswith("allreduce 'quiet' on 3 ranks: rank 0 ends with block 0 of")
    hold("allreduce", 1, 0, right["panels"][0])
