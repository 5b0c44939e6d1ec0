"""Verdicts on texts, in this process and in a child, and the local process that serves them."""

import http.client
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib import resources
from threading import Thread

import pytest
from jobs import line_of

from collectives import algorithms, explorer
from collectives.cli import explore
from collectives.explorer import course, verdict
from collectives.explorer.serving import HOST, Server

WRONG = {
    "x = (": ("SyntaxError: '(' was never closed", 1),
    "y = 1\n1 / 0": ("ZeroDivisionError: division by zero", 2),
    "import sys\nsys.exit(3)": ("SystemExit: 3", 2),
    "raise MemoryError": ("MemoryError", 1),
    "x = 1": ("no algorithm is registered: put @algorithm above a generator", None),
}


@pytest.mark.parametrize("text", WRONG)
def test_a_text_without_an_algorithm_says_why_and_where(text):
    error, line = WRONG[text]
    found = verdict.verdict(text, [2])
    assert found["error"] == error
    assert found.get("line") == line


def test_a_text_with_two_algorithms_is_refused():
    one = course.text("torus_solved")
    found = verdict.verdict(one + one.replace("def mine", "def other"), [4])
    assert found == {"error": "2 algorithms are registered: put @algorithm above one generator"}
    assert not {"mine", "other"} & set(algorithms.names("allreduce"))


def test_a_text_is_judged_and_leaves_nothing_in_the_registry():
    before = {c: list(algorithms.names(c)) for c in ("allreduce", "broadcast")}
    found = verdict.verdict(course.text("twice"), [2, 4])
    assert [found["collective"], found["name"], list(found["cases"])] == [
        "allreduce",
        "mine",
        ["2", "4"],
    ]
    assert found["cases"]["4"]["error"].endswith(
        "rank 0, round 4: folds the contribution of rank 0 twice"
    )
    assert found["cases"]["4"]["roots"][0]["depth"] == 4
    assert found["functions"][0]["name"] == "mine"
    assert before == {c: list(algorithms.names(c)) for c in before}


@pytest.mark.parametrize("name", course.TASKS)
def test_each_task_begins_wrong_and_its_solution_is_proven(name):
    task = course.TASKS[name]
    begin, solved = (
        verdict.verdict(course.text(each), task["ranks"]) for each in (name, f"{name}_solved")
    )
    most = str(max(task["ranks"]))
    errors = [case.get("error") for case in begin["cases"].values()]
    assert all(case.get("error") is None for case in solved["cases"].values())
    depth = solved["cases"][most]["roots"][0]["depth"]
    if "steps" in task:
        assert errors == [None] * len(errors)
        assert begin["cases"][most]["roots"][0]["depth"] > task["steps"] == depth
    else:
        assert all(errors)


def test_the_editor_suggests_a_requirement_that_the_decorator_takes():
    editor = resources.files(explorer).joinpath("static", "editor.js").read_text(encoding="utf-8")
    (suggested,) = re.findall(r"@algorithm\(\.\.\., (.*?)\)\.\"", editor.replace('\\"', "'"))
    text = course.text("torus_solved")
    head = '@algorithm("allreduce"'
    assert head in text
    found = verdict.verdict(text.replace(head, f"{head}, {suggested}"), [4])
    assert found["cases"]["4"].get("error") is None


def test_broken_algorithms_are_broken_as_their_chapter_says():
    found = course.data()["broken"]
    waits, twice = (found[name]["cases"]["4"] for name in ("waits", "twice"))
    assert "deadlock: rank 0 in round 1 waits for rank 3 to send" in waits["error"]
    assert waits["stuck"] == [0, 1, 2, 3]
    assert waits["roots"][0]["messages"] == []
    assert "folds the contribution of rank 0 twice" in twice["error"]
    files = [each["file"].partition(":")[0] for each in found["twice"]["functions"]]
    assert files == ["twice.py"]


def test_a_child_judges_a_text_that_prints_and_ends_one_that_does_not_end():
    text = "print('hello', flush=True)\n" + course.text("torus_solved")
    assert verdict.judged(text, [4])["cases"]["4"].get("error") is None
    found = verdict.judged("while True:\n    pass\n", [2], seconds=3)
    assert found == {"error": "there is no verdict after 3 s: does the generator end?"}
    assert "ended early" in verdict.judged("import os\nos._exit(7)\n", [2])["error"]
    assert "ended early: exit status 0" in verdict.judged("import os\nos._exit(0)\n", [2])["error"]
    assert "may have 20,000" in verdict.judged("#" * 20_001, [2])["error"]


def test_a_text_that_prints_without_end_is_an_error_in_its_line():
    found = verdict.judged("while True:\n    print('x' * 2**20)\n", [2])
    assert found["error"] == "OSError: the text has printed more than 16,777,216 bytes"
    assert found["line"] == 2
    assert len(found["printed"]) == verdict.SHOWN


def test_a_verdict_has_the_end_of_what_the_text_prints():
    text = "print('early ' * 1000)\nprint('late')\n"
    found = verdict.judged(text + course.text("torus_solved"), [4])
    assert found["printed"].endswith("early \nlate\n")
    assert len(found["printed"]) == verdict.SHOWN
    assert "printed" not in verdict.judged(course.text("torus_solved"), [4])


def test_a_text_cannot_ask():
    found = verdict.judged("p = input('how many? ')\n", [2])
    assert found["error"].startswith("RuntimeError: input() cannot ask anybody here")
    assert found["line"] == 1


def test_a_wrong_argument_of_a_round_is_named():
    text = course.text("torus").replace("fold=", "flod=", 1)
    found = verdict.judged(text, [4])
    reason = found["cases"]["4"]["error"]
    assert "(your text, line 9); did you mean 'fold'? A round has: send, recv, fold" in reason


def test_processes_and_threads_of_a_text_end_with_its_verdict(tmp_path):
    """The copy of the process would write a file after a second, and the thread never ends."""
    late = tmp_path / "late"
    text = (
        "import os, threading, time\n"
        "if os.fork() == 0:\n"
        f"    time.sleep(1)\n    open({str(late)!r}, 'w').close()\n    os._exit(0)\n"
        "threading.Thread(target=time.sleep, args=[600]).start()\n"
    )
    found = verdict.judged(text + course.text("torus_solved"), [4])
    assert found["cases"]["4"].get("error") is None
    time.sleep(1.5)
    assert not late.exists()


@pytest.fixture
def server(tmp_path):
    (tmp_path / "course.html").write_text("<p>the course</p>")
    with Server(tmp_path) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join(10)


def ask(server, method="POST", path="/check", body=None, **headers):
    """Return the status and the body of an answer."""
    words = {
        "Host": server.origin.removeprefix("http://"),
        "Origin": server.origin,
        "X-Token": server.token,
        **{name.replace("_", "-"): text for name, text in headers.items()},
    }
    line = http.client.HTTPConnection(HOST, server.server_address[1], timeout=60)
    try:
        line.putrequest(method, path, skip_host=True)
        for name, text in words.items():
            if text is not None:
                line.putheader(name, text)
        if body is not None and "Content-Length" not in words:
            line.putheader("Content-Length", str(len(body)))
        line.endheaders()
        if body is not None:
            line.send(body)
        answer = line.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        line.close()


def asked(text, ranks=(2,)):
    return json.dumps({"text": text, "ranks": list(ranks)}).encode()


def test_the_local_process_serves_the_page_and_checks_for_it_alone(server):
    status, body, headers = ask(server, "GET", "/course.html")
    assert (status, body) == (200, "<p>the course</p>")
    assert headers["Content-Security-Policy"].startswith("default-src 'self'")
    assert server.url == f"{server.origin}/course.html#token={server.token}"
    assert server.server_address[0] == "127.0.0.1"
    status, body, _ = ask(server, body=asked(course.text("torus_solved"), [4]))
    assert status == 200
    assert json.loads(body)["cases"]["4"]["roots"]


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (403, {"X_Token": "guess"}),
        (403, {"X_Token": None}),
        (403, {"Origin": "http://elsewhere.example"}),
        (403, {"Origin": None}),
        (403, {"Host": "elsewhere.example"}),
        (403, {"Host": None}),
        (403, {"path": "/other"}),
        (403, {"method": "GET", "path": "/course.html", "Host": "elsewhere.example"}),
        (404, {"method": "GET", "path": "/../../etc/passwd"}),
        (400, {"body": b"{}"}),
        (400, {"body": b"no json"}),
        (400, {"body": b'{"text": "", "ranks": [1e999]}'}),
        (400, {"body": b"[" * 100_000}),
        (413, {"body": b"", "Content_Length": "99999999"}),
        (413, {"body": b"", "Content_Length": "-1"}),
        (413, {"body": b"", "Content_Length": "9" * 5000}),
    ],
)
def test_the_local_process_refuses_all_others(server, status, words, monkeypatch):
    ran = []
    monkeypatch.setattr("collectives.explorer.serving.judged", lambda *words: ran.append(words))
    words = {"body": asked("x = 1") if words.get("method") != "GET" else None, **words}
    assert ask(server, **words)[0] == status
    assert ran == []


def test_the_words_of_the_browser_have_no_token(monkeypatch, tmp_path):
    opened = []
    monkeypatch.setattr(explore, "has_screen", lambda: True)
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    monkeypatch.setattr(Server, "serve_forever", lambda server: tokens.append(server.token))
    tokens = []
    (tmp_path / "pages").mkdir()
    explore.serve(tmp_path / "pages")
    [address], [token] = opened, tokens
    assert address == (tmp_path / "open.html").as_uri()
    assert f"/course.html#token={token}" in (tmp_path / "open.html").read_text()


def test_the_command_serves_until_it_is_interrupted():
    process = subprocess.Popen(
        [sys.executable, "-m", "collectives", "explore", "--course"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "DISPLAY": "", "WAYLAND_DISPLAY": "", "BROWSER": ""},
    )
    try:
        line = line_of(process)
        found = re.fullmatch(
            r"The course is at http://127\.0\.0\.1:(\d+)/course\.html#token=\S+\n", line
        )
        page = http.client.HTTPConnection(HOST, int(found[1]), timeout=60)
        page.request("GET", "/data/course.js")
        assert page.getresponse().read().startswith(b"explorer.course(")
        page.close()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert f"ssh -L {found[1]}:127.0.0.1:{found[1]} THIS_MACHINE" in out
    assert err == ""
