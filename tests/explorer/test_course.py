"""The course in a headless Chromium: predictions, counted answers, sliders, keys, sizes."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import zipfile
from collections import Counter
from importlib import resources
from threading import Thread

import pytest
from browser import SCREENS, browse, needs_axe, needs_chromium

from collectives import explorer, server
from collectives.algorithms import names, unregister
from collectives.check import check
from collectives.cli import main
from collectives.explorer import catalogue, course
from collectives.explorer.serving import Server
from collectives.server.transport import Push
from collectives.server.update_queue import UpdateQueue
from collectives.simulate import simulate
from collectives.simulation.topology_text import Machine
from collectives.topology import Flat

KIB400 = 400 * 1024
PYODIDE = os.environ.get("COLLECTIVES_TEST_PYODIDE")
ASKED = ("workers", "all-to-all", "master", "tree", "butterfly", "ring", "round-robin")
LATER = ("race", "straggler", "server", "overlap", "hang", "broken", "own")
EVERY = ("workers", "draw", *ASKED[1:], *LATER)


@pytest.fixture(scope="session")
def studied(written, tmp_path_factory):
    """Return what each chapter showed to a reader with a mouse, in a wide window."""
    folder = tmp_path_factory.mktemp("course")
    return browse(written, folder, [{}], name="course", drive="study")


def files_of(page):
    """Return the files that a page loads."""
    text = page.read_text(encoding="utf-8")
    named = re.findall(r'(?:src|href)="([\w/.-]+\.(?:js|css))"', text)
    data = [page.parent / f"data/allreduce-{name}.js" for name in course.ALGORITHMS]
    return [page, *(page.parent / name for name in named), *data]


def test_the_page_is_small_and_loads_only_its_own_files(written):
    files = files_of(written / "course.html")
    assert all(each.is_file() for each in files)
    assert sum(each.stat().st_size for each in files) < KIB400
    for each in files:
        text = each.read_text(encoding="utf-8")
        assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "https://" not in text


def proof(name, p):
    return check("allreduce", name, p=p)


def through(name, p):
    """Return the arrays that go through the busiest rank."""
    found = proof(name, p)
    moved = [0] * p
    for (source, target), arrays in found.links.items():
        moved[source] += arrays
        moved[target] += arrays
    return max(moved)


NAMES = {"all_to_all": "all to all", "master_worker": "master"}  # as the course calls them


def fastest(machine, nbytes):
    """Return the fastest of the algorithms of the course, in simulated time."""
    times = {
        name: simulate("allreduce", name, nbytes=int(nbytes), topology=machine).time
        for name in course.ALGORITHMS
    }
    name = min(times, key=times.get)
    return NAMES.get(name, name)


def folds(name, p):
    """Return the step of the last fold."""
    return max(event.time for event in proof(name, p).events if event.fold)


@needs_chromium
def test_answers_are_those_of_the_proof(studied):
    first = catalogue.numbers()
    truths = {
        key: [answer["truth"] for answer in chapter["answers"]]
        for key, chapter in studied["chapters"].items()
    }
    assert truths["workers"] == [str(sum(row[0] for row in first[:4])), str(3 * 4)]
    assert truths["all-to-all"] == [str(sum(proof("all_to_all", p).messages)) for p in (4, 8)]
    assert truths["master"] == ["0", str(through("master_worker", 8))]
    assert truths["tree"] == [str(folds("tree", 4)), str(proof("tree", 16).depth)]
    assert truths["butterfly"] == [
        str(first[0][0] + first[1][0]),
        str(proof("butterfly", 4).depth),
        str(proof("butterfly", 16).depth),
    ]
    assert truths["ring"] == ["3", str(folds("ring", 4)), str(float(through("ring", 8)))]
    slow = Machine(course.SLOW).make(4)
    with registered(course.text("crowd")):
        crowd = simulate("allreduce", "crowd", nbytes=32, topology=slow).time
    pairs = {frozenset(each) for each in proof("round_robin", 8).links}
    assert truths["round-robin"] == [
        str(float(through("round_robin", 8))),
        f"{1e6 * crowd:g} µs",
        str(len(pairs)),
    ]
    machine = Flat(16, alpha=2e-6, beta=1e-10, gamma=1e-10)
    assert truths["race"] == [
        *(fastest(machine, nbytes) for nbytes in (8, 2**25)),
        "from a smaller size on",
    ]
    ring = simulate("allreduce", "ring", nbytes=32, topology=slow).time
    assert truths["straggler"] == [f"{1e6 * ring + 20:g} µs", "all lose the same"]
    assert truths["server"] == ["4", "36", "7", "backup workers"]
    network = {n: 1e6 * simulate("allreduce", "ring", 8 * n, slow).time for n in (4, 16)}
    assert truths["overlap"] == [
        f"{4 * 16 + network[4]:g} µs",
        f"{16 + 4 * network[16]:g} µs",
        f"{16 + 3 * network[16]:g} µs",
        str(min((1, 2, 4, 8, 16), key=lambda bucket: in_buckets(bucket, slow))),
    ]
    assert truths["hang"] == ["2", "rank 1 is stopped", "rank 3 makes another call"]
    assert truths["broken"] == ["nothing is ever sent", "4"]


@contextlib.contextmanager
def registered(text):
    """Register the algorithms of a text for a while."""
    before = set(names("allreduce"))
    try:
        exec(text, {"__name__": "text"})
        yield
    finally:
        for name in set(names("allreduce")) - before:
            unregister("allreduce", name)


def in_buckets(bucket, machine):
    """Return the time of a backward pass of 16 layers of 7 us with 4 numbers each."""
    free = 0.0
    for known in range(bucket, 17, bucket):
        start = max(free, known * 7e-6)
        free = start + simulate("allreduce", "ring", 32 * bucket, machine).time
    return free


POLICIES = {
    "synchronous": server.Synchronous(),
    "asynchronous": server.Asynchronous(),
    "bounded staleness": server.BoundedStaleness(2),
    "backup workers": server.BackupWorkers(1),
}


def trained(policy, slow):
    """Return the queue of a server after 120 ms, and what came of each gradient.

    The last of four workers needs `slow` milliseconds for a gradient.
    """
    queue = UpdateQueue(policy, 4)
    bases, needs = [0] * 4, (10, 11, 12, slow)
    ends = dict(enumerate(needs))  # when those are ready that compute
    pushes = []
    while ends:
        time, worker = min((time, worker) for worker, time in ends.items())
        if time > 120:
            break
        del ends[worker]
        push = Push(worker, len(pushes), bases[worker], 1.0, None, lambda: None)
        came = queue.arrive(push)
        pushes.append([time, worker, bases[worker], not came])
        while queue.take():
            pass
        for each in set(range(4)) - set(ends):
            # As Worker.pull waits.
            slowest = 0 if policy.bound is None else queue.steps[each] - policy.bound
            if queue.slowest >= slowest and queue.version >= bases[each] + policy.waits_for_update:
                bases[each], ends[each] = queue.version, time + needs[each]
    return queue, pushes


@needs_chromium
def test_the_server_of_the_course_follows_the_policies_of_the_library(studied):
    assert len(studied["worked"]["trainings"]) == 3 * len(POLICIES)
    for each in studied["worked"]["trainings"]:
        queue, pushes = trained(POLICIES[each["name"]], each["slow"])
        assert [push[:4] for push in each["pushes"]] == pushes
        assert each["updates"] == queue.version
        stale = Counter(
            (worker, late) for _, worker, *_, late in each["pushes"] if late is not None
        )
        counts = queue.staleness.items()
        assert stale == {(worker, late): n for worker, row in counts for late, n in row.items()}
        assert each["counted"]["dropped"] == str(sum(queue.dropped.values()))


@needs_chromium
def test_time_and_machines_can_be_dragged(studied):
    chapters = studied["chapters"]
    assert chapters["workers"].pop("scrubbed") is None
    for key, chapter in chapters.items():
        if "scrubbed" in chapter and key not in ("draw", "own", "broken"):
            (first, _), (half, words), (last, _) = chapter["scrubbed"]
            assert (first, half, last) == (0, pytest.approx(0.5), 1), key
            assert re.fullmatch(r"step \d+ of \d+, [\d.]+ \w+", words), key
    for key in ("race", "straggler", "server", "overlap"):
        for each in chapters[key]["tried"]:
            low, high, back = each["texts"]
            assert low != high, (key, each["name"])
            assert "NaN" not in low + high + back
    assert [each["name"].partition(" ")[0] for each in chapters["race"]["tried"]][2:] == [
        "alpha,",
        "1",
    ]


@needs_chromium
def test_a_ring_is_drawn_as_two_phases(studied):
    assert studied["chapters"]["ring"]["phases"] == [[0, 0], [4, 3], [16, 6]]


def test_the_overlap_chapter_has_what_the_simulator_prints(capsys):
    assert main(course.SIMULATE.split()) == 0
    assert capsys.readouterr().out == course.SIMULATED


@needs_chromium
def test_curves_cross_where_the_simulation_says(studied):
    for p, found in studied["crossings"].items():
        machine = Flat(int(p), alpha=2e-6, beta=1e-10, gamma=1e-10)
        assert found
        for each in found:
            for factor, name in ((0.98, each["from"]), (1.02, each["to"])):
                assert fastest(machine, factor * each["nbytes"]) == NAMES.get(name, name)
    assert studied["crossings"]["4"][-1]["nbytes"] < studied["crossings"]["16"][-1]["nbytes"]


@needs_chromium
def test_the_editor_plays_verdicts_and_gives_hints(studied):
    *known, other = studied["chapters"]["own"]["written"]
    assert [each["task"] for each in known] == [name for name in course.TASKS for _ in range(2)]
    for begin, solved in zip(known[::2], known[1::2], strict=True):
        assert solved["said"].startswith("Proven. It is right on ")
        assert solved["words"].endswith("Every rank has its result.")
        assert solved["error"] == ""
        assert solved["hint"] is False
        slow = "steps" in course.TASKS[begin["task"]]
        assert begin["said"].startswith("Proven, and too slow." if slow else "Not proven.")
        assert begin["hint"] is not slow
        assert begin["nameless"] == begin["small"] == []
    assert "folds the contribution of rank 0 twice" in known[0]["error"]
    assert known[0]["stuck"] == 3  # one rank has not begun its last round
    assert "collectives explore --course" in other["said"]
    assert studied["chapters"]["own"]["left"] == {"told": "", "waits": False}


@needs_chromium
def test_what_a_reader_draws_is_judged(studied):
    drawn = studied["chapters"]["draw"]["sketched"]
    first, wrong, half, whole = drawn["texts"]
    assert first == "Not yet. No ranks have the sum of all."
    assert "Not an allreduce. Step 2: rank 3 would count that of rank 0 twice." in wrong
    assert drawn["failed"][0] == "Step 2: rank 3 would count that of rank 0 twice."
    assert drawn["failed"][1].endswith("It stops here.")
    assert drawn["mended"] == ["Not yet. 1 rank has the sum of all.", ""]
    assert half == first
    ring, butterfly = (
        simulate("allreduce", name, nbytes=32, topology=Machine(course.SLOW).make(4)).time
        for name in ("ring", "butterfly")
    )
    assert whole.startswith("Proven. Every rank has the sum, after 8 messages in 2 steps, which ")
    assert f"takes {1e6 * butterfly:g} µs. The fastest of this course takes " in whole
    assert f"course takes {1e6 * min(ring, butterfly):g} µs. 6 messages are enough" in whole
    assert drawn["steps"] == ["0 → 1, 1 → 0, 2 → 3, 3 → 2", "0 → 2, 2 → 0, 1 → 3, 3 → 1"]
    assert drawn["words"].endswith("Every rank has its result.")


@needs_chromium
def test_the_editor_keeps_what_the_reader_types(studied):
    typed = studied["chapters"]["own"]["typed"]
    assert typed.pop("line") == "    "
    assert typed.pop("proven").startswith("Proven. ")
    assert set(typed.values()) == {True}, typed


@needs_chromium
@pytest.mark.parametrize("python", ["local", "pyodide"])
def test_a_reader_proves_a_text(written, tmp_path, python):
    mine = course.text("torus_solved") + "    # as it was\n"
    wrong = course.text("torus_solved").replace("yield", "return")
    texts = [[1, mine], [1, wrong], [1, "x = 1\n1 / 0\n"], [0, course.text("tree")]]
    if python == "pyodide":
        if not PYODIDE:
            pytest.skip("COLLECTIVES_TEST_PYODIDE names no folder of npm's package pyodide")
        written = explorer.write(tmp_path / "written", pyodide=PYODIDE).parent
    with contextlib.ExitStack() as stack:

        def serve(folder):
            server = stack.enter_context(Server(folder))
            thread = Thread(target=server.serve_forever)
            thread.start()
            stack.callback(thread.join, 10)
            stack.callback(server.shutdown)
            # Without the token, the page cannot ask the local process.
            return server.url.partition("#")[0] if python == "pyodide" else server.url

        found = browse(
            written,
            tmp_path / "page",
            [{"chapters": ["own"], "texts": texts, "real": python == "pyodide"}],
            name="course",
            drive="study",
            serve=serve,
        )
    proven, returned, failed, strayed = found["chapters"]["own"]["written"]
    assert strayed["said"] == (
        "Not the task. It registers an algorithm of broadcast, and one of allreduce is wanted."
    )
    assert proven["said"].startswith(
        "Proven. It is right on 4 and 9 ranks, and takes 2 steps on 9."
    )
    assert "must yield its rounds" in returned["said"]
    assert returned["hint"]
    assert failed["said"] == "Line 2. ZeroDivisionError: division by zero."


PROVING = """
const CHAPTERS = [];
const said = [], workers = [];
class Worker {
  constructor() { workers.push(this); setTimeout(() => this.tell("ready"), 10); }
  tell(data) { if (!this.over) this.onmessage({ data }); }
  terminate() { this.over = true; }
  postMessage({ text }) {
    const answer = text === "fails" ? { failed: "no memory" } : { name: text };
    if (text !== "hangs") setTimeout(() => this.tell(answer), 50);
  }
}
const ask = (prover, text) => prover.verdict(text, [4]).then(
  (verdict) => said.push(verdict.name || verdict.error), (error) => said.push(error.message));
async function main() {
  const prover = new Prover();
  ask(prover, "left at the start");
  await ask(prover, "first");
  ask(prover, "left");
  await ask(prover, "second");
  await ask(prover, "fails");
  await ask(prover, "third");
  await ask(prover, "hangs");
  await ask(prover, "fourth");
  console.log(JSON.stringify([said, workers.length]));
}
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="there is no node")
def test_each_text_gets_the_verdict_on_itself():
    """A stub stands for the worker; a text that another replaces has none."""
    editor = resources.files("collectives.explorer").joinpath("static", "editor.js")
    script = editor.read_text("utf-8").replace("PATIENCE = 20;", "PATIENCE = 0.2;")
    done = subprocess.run(
        ["node", "-e", f"{PROVING}{script}main();"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    said, workers = json.loads(done.stdout)
    late = "there is no verdict after 0.2 s: does the generator end?"
    assert said == ["first", "second", "no memory", "third", late, "fourth"]
    assert workers == 4


@needs_chromium
def test_a_step_is_shown_after_a_prediction_and_not_before(studied):
    for key in ASKED + LATER:
        for number, answer in enumerate(studied["chapters"][key]["answers"]):
            assert answer["before"]["next"] is True, (key, number)
            assert answer["before"]["step"] == answer["before"]["gate"]
            assert answer["early"] in ("", "Watch the picture.")
            assert answer["truth"] in answer["choices"]
            assert 3 <= len(answer["choices"]) <= 5
            assert answer["before"]["error"] == ""
            begin = {"right": "Right: ", "wrong": "No. The answer: ", "skip": "The answer: "}
            assert answer["verdict"].startswith(begin[answer["kind"]])
            assert "NaN" not in answer["verdict"]
            assert "undefined" not in answer["verdict"]
            assert answer["after"]["leftover"] == 0
            right = answer["choices"].index(answer["truth"])
            assert "right" in answer["marks"][right].split()
            missed = [each for each in answer["marks"] if "missed" in each.split()]
            assert len(missed) == (answer["kind"] == "wrong")
    assert {a["kind"] for k in ASKED for a in studied["chapters"][k]["answers"]} == {
        "right",
        "wrong",
        "skip",
    }


@needs_chromium
def test_every_number_of_ranks_is_played_to_the_right_sum(studied):
    start = catalogue.numbers()
    called = {"workers": "all_to_all", "all-to-all": "all_to_all", "master": "master_worker"}
    called["round-robin"] = "round_robin"
    for key in ASKED:
        drags = studied["chapters"][key]["drags"]
        assert [each["p"] for each in drags] == [2, 3, 7, 16, 64][: 4 + (key != "round-robin")]
        for each in drags:
            p = each["p"]
            assert each["words"].endswith("Every rank has its result.")
            for _, element, text in each["cells"]:
                assert text in ("", str(sum(start[r][element % catalogue.RANKS] for r in range(p))))
            found = proof(called.get(key, key), p)
            assert each["tally"]["step"] == f"{found.depth} of {found.depth}"
            assert each["tally"]["messages"] == str(sum(found.messages))
            most = through(called.get(key, key), p)
            nbytes = 8 * found.nblocks * -(-4 // found.nblocks)
            nbytes = float(most * nbytes)
            size = f"{nbytes:g} B" if nbytes < 1024 else f"{float(f'{nbytes / 1024:.3g}'):g} KiB"
            assert each["tally"]["busy"].endswith(f": {size}")
            if key in ("all-to-all", "ring", "butterfly"):
                assert f"{float(round(most, 2)):g} array" in each["said"]


def hold_apart(chapters):
    """Cards touch each other nowhere, and stand inside of the picture."""
    for key, chapter in chapters.items():
        for each in [chapter["start"], *chapter["drags"]]:
            cards = [(x - w / 2, y - h / 2, x + w / 2, y + h / 2) for x, y, w, h in each["cards"]]
            wide, high = each["room"]
            for number, a in enumerate(cards):
                assert min(a[:2]) >= 0, key
                assert a[2] <= wide, key
                assert a[3] <= high, key
                for b in cards[:number]:
                    apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
                    assert apart, (key, each["p"])


@needs_chromium
def test_cards_stand_apart_and_inside_of_the_picture(studied):
    hold_apart(studied["chapters"])


@needs_chromium
def test_chapters_have_links_keys_and_controls_for_fingers(studied):
    assert tuple(studied["every"]) == EVERY
    assert studied["turned"] == ["#chapter=draw", "Draw your own"]
    for key, chapter in studied["chapters"].items():
        assert chapter["start"]["title"].startswith(chapter["start"]["heading"])
        assert chapter["key"] == 1, key
        assert "done" in chapter["done"].split(), key
        for each in [chapter, *chapter["answers"]]:
            assert each["nameless"] == []
            assert each["small"] == []
            assert each["headings"][:2] == [1, 2]


@needs_chromium
@pytest.mark.parametrize("width", [390, 768])
def test_a_phone_and_a_tablet_show_all_of_it(written, tmp_path, width):
    found = browse(
        written,
        tmp_path / "page",
        [{"way": 1, "drag": width == 390}],
        name="course",
        drive="study",
        narrow=width,
    )
    assert found["width"] == width
    assert found["theme"] == "dark"
    for key, chapter in found["chapters"].items():
        assert chapter["width"] <= width, key
        assert chapter["small"] == [], key
        assert all(answer["verdict"] for answer in chapter["answers"])
    hold_apart(found["chapters"])


@needs_axe
@needs_chromium
@pytest.mark.usual(0, 1, 2)
@pytest.mark.parametrize("part", range(3))  # on a busy machine, all chapters take many minutes
@pytest.mark.parametrize(("width", "theme"), SCREENS)
def test_axe_finds_nothing_in_a_chapter(written, tmp_path, width, theme, part):
    chapters = EVERY[part::3]
    found = browse(
        written,
        tmp_path / "page",
        [{"drag": False, "chapters": chapters}],
        hash=f"#theme={theme}",
        flags=("--force-prefers-reduced-motion",),
        name="course",
        drive="study",
        narrow=width,
        axe=True,
    )
    assert (found["width"], found["theme"]) == (width, theme)
    assert found["axe"]
    assert list(found["chapters"]) == [*chapters]
    for key, chapter in found["chapters"].items():
        assert chapter["findings"] == [], key


@needs_chromium
def test_the_address_opens_a_chapter_and_motion_can_be_left_out(written, tmp_path):
    found = browse(
        written,
        tmp_path / "page",
        [{"chapters": ["ring"], "way": 2}],
        hash="#chapter=ring&theme=light",
        flags=("--force-prefers-reduced-motion",),
        name="course",
        drive="study",
    )
    assert found["opened"] == "The ring, in two phases"
    assert found["theme"] == "light"
    assert list(found["chapters"]) == ["ring"]
    assert found["chapters"]["ring"]["key"] == 1


@pytest.mark.usefixtures("quick")
def test_the_page_gets_a_python_of_its_own(tmp_path, capsys):
    npm = tmp_path / "pyodide"
    npm.mkdir()
    assert main(["explore", "--pyodide", str(npm)]) == 2
    assert "--pyodide needs --course or --out" in capsys.readouterr().err
    command = ["explore", "--course", "--out", str(tmp_path / "out"), "--pyodide", str(npm)]
    assert main(command) == 2
    assert f"{npm} is not npm's package pyodide: " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    names = ["pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip"]
    for name in [*names, "pyodide-lock.json", "README.md"]:
        (npm / name).write_text(name)
    assert main(command) == 0
    made = {each.name: each for each in (tmp_path / "out" / "pyodide").iterdir()}
    assert set(made) == {*names, "pyodide-lock.json", "collectives.zip"}
    packed = zipfile.ZipFile(made["collectives.zip"]).namelist()
    assert "collectives/explorer/verdict.py" in packed
    assert all(each.endswith(".py") for each in packed)
    assert '"pyodide":true' in (tmp_path / "out" / "data" / "course.js").read_text("utf-8")


@pytest.mark.usefixtures("quick")
def test_the_command_opens_the_course(tmp_path, capsys):
    assert main(["explore", "--course", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith(f"The page is {tmp_path / 'course.html'}; open it")


def test_the_course_is_written_beside_the_explorer(quick, tmp_path):
    page = explorer.write(tmp_path)
    assert page.name == "index.html"
    assert "course.html" in page.read_text(encoding="utf-8")
    assert "index.html" in (tmp_path / "course.html").read_text(encoding="utf-8")
