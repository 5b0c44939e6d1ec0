"""Count the frames a second that Chromium draws while the explorer and the course play.

Run it on a quiet machine that has Chromium::

    python benchmarks/measure_frames.py

The page plays over and over, and frames are counted by ``requestAnimationFrame``, which waits for
those before to be drawn. The first row is a page on which nothing but a square moves: no other can
have more frames. For each page there are the frames a second, the times of the three slowest frames
in ms, and the ms of CPU that a frame takes: of all threads of Chromium, of the page's own thread,
and of that for scripts, for style and for layout. ``--only ring`` selects rows, and ``--slower 3``
has the page's thread take three times as long, as on a small computer. Chromium has no display and
no GPU: other threads draw.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader, RawIOBase
from itertools import pairwise
from pathlib import Path
from typing import Any

from turns import options, row

from collectives import explorer

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
CHAPTERS = ("all-to-all", "master", "tree", "butterfly", "ring")
ALGORITHMS = ("ring", "all_to_all")
SPENT = ("TaskDuration", "ScriptDuration", "RecalcStyleDuration", "LayoutDuration")
SLOWEST = 3
HEADS = ("frames/s", *["slowest"] * SLOWEST, "all", "thread", "script", "style", "layout")

EMPTY = """<!DOCTYPE html><div style="width:20px;height:20px;background:red"></div><script>
const square = document.querySelector("div");
window.again = () => { square.style.transform = `translateX(${performance.now() % 500}px)`; };
</script>"""

# Scripts that have a page play, and go on when it has come to its end: `COUNT` calls `again`.
PAGE = """explorer.page.change({algorithm: "allreduce/ALGORITHM", p: RANKS}).then(() => {
  window.again = () => explorer.page.playing || explorer.page.play();
})"""
CHAPTER = """{
  const course = explorer.course;
  course.go(CHAPTERS.findIndex(({ id }) => id === "ID"));
  const { chapter } = course;
  chapter.asking.replaceChildren();
  chapter.free();
  const slider = document.querySelector(".try input");
  const place = [...Array(Number(slider.max) + 1).keys()].find((each) => ranksAt(each) === RANKS);
  slider.value = place;
  slider.dispatchEvent(new Event("input"));
  const play = () => chapter.figure.playing || chapter.figure.playTo(chapter.run.depth);
  const ready = setInterval(() => { // more than 16 ranks are in a file of their own
    if (chapter.run.p === RANKS) { clearInterval(ready); window.again = play; }
  }, 20);
}"""
COUNT = """new Promise((done) => {
  const times = [];
  const tick = (now) => {
    times.push(now);
    if (now - times[0] > 1000 * SECONDS) done(times);
    else requestAnimationFrame(tick);
    again();
  };
  requestAnimationFrame(tick);
})"""


class Browser:
    """A Chromium that is driven through two pipes, by its DevTools protocol."""

    def __init__(self, asks: RawIOBase, answers: BufferedReader) -> None:
        self.asks = asks
        self.answers = answers
        self.number = 0
        self.page = ""
        [target] = [
            each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page"
        ]
        words = {"targetId": target["targetId"], "flatten": True}
        self.page = self.call("Target.attachToTarget", **words)["sessionId"]
        self.call("Performance.enable", timeDomain="threadTicks")

    def call(self, method: str, **words: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its answer."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": words}
        if self.page and not method.startswith("SystemInfo"):  # which is of the whole browser
            message["sessionId"] = self.page
        self.asks.write(json.dumps(message).encode() + b"\0")
        while (found := self.read()).get("id") != self.number:
            pass  # an event
        if "error" in found:
            raise RuntimeError(f"{method}: {found['error']['message']}")
        return dict(found["result"])

    def read(self) -> dict[str, Any]:
        """Return the next message of the browser."""
        parts = []
        while (byte := self.answers.read(1)) not in (b"\0", b""):
            parts.append(byte)
        if not byte:
            raise RuntimeError("Chromium has ended")
        return dict(json.loads(b"".join(parts)))

    def run(self, script: str) -> Any:
        """Run a script in the page, and return what it comes to."""
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(found["exceptionDetails"]["exception"]["description"])
        return found["result"].get("value")

    def wait(self, script: str) -> None:
        """Wait until a script is true in the page."""
        self.run(
            "new Promise((done) => { const look = () => { let is = false;"
            f"try {{ is = {script}; }} catch {{}} if (is) done(); else setTimeout(look, 20); }};"
            "look(); })"
        )

    def open(self, page: Path, ready: str = "true") -> None:
        """Open a page, and wait until it is ready."""
        self.call("Page.navigate", url=page.as_uri())
        name = json.dumps(page.name)
        loaded = f"location.pathname.endsWith({name}) && document.readyState === 'complete'"
        self.wait(f"{loaded} && {ready}")

    def spent(self) -> list[float]:
        """Return the seconds that all threads, and the page's for `SPENT`, have spent so far."""
        processes = self.call("SystemInfo.getProcessInfo")["processInfo"]
        found = self.call("Performance.getMetrics")["metrics"]
        values = {each["name"]: float(each["value"]) for each in found}
        return [sum(each["cpuTime"] for each in processes), *(values[name] for name in SPENT)]


@contextmanager
def chromium(folder: Path, *flags: str) -> Iterator[Browser]:
    """Start a Chromium, and end it at the end of the block."""
    command = next(filter(None, map(shutil.which, NAMES)), None)
    if command is None:
        raise SystemExit("there is no Chromium; Debian's package is called chromium")
    # Chromium reads from descriptor 3 and writes to 4; ours are higher, so none is overwritten.
    low = (*os.pipe(), *os.pipe())
    reads, asks, answers, writes = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in low)
    for end in low:
        os.close(end)
    script = f'exec "$@" 3<&{reads} 4>&{writes}'
    process = subprocess.Popen(
        [
            *("bash", "-c", script, "bash", command, *FLAGS, *flags),
            *("--remote-debugging-pipe", f"--user-data-dir={folder / 'profile'}", "about:blank"),
        ],
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        pass_fds=(reads, writes),
    )
    os.close(reads)
    os.close(writes)
    try:
        with open(asks, "wb", buffering=0) as one, open(answers, "rb") as other:
            yield Browser(one, other)
    finally:
        process.terminate()
        process.wait(30)


def views(ranks: list[int]) -> Iterator[tuple[str, str, str, str]]:
    """Yield what plays: its name, its page, when this is ready, and a script that has it play."""
    yield "empty page", "empty.html", "true", "true"
    for p in ranks:
        for name in ALGORITHMS:
            script = PAGE.replace("ALGORITHM", name).replace("RANKS", str(p))
            yield f"explorer, {name}, {p}", "index.html", "explorer.page.shown", script
        for name in CHAPTERS:
            script = CHAPTER.replace("ID", name).replace("RANKS", str(p))
            yield f"course, {name}, {p}", "course.html", "explorer.course.chapter", script


def count(browser: Browser, seconds: float) -> list[float]:
    """Return the times of frames in ms, while the page plays."""
    times = browser.run(COUNT.replace("SECONDS", str(seconds)))
    return [float(each) for each in times]


def measured(browser: Browser, seconds: float) -> list[float]:
    """Return a row of the table, while the page plays."""
    count(browser, 0.5)  # warms up
    before = browser.spent()
    times = count(browser, seconds)
    frames = len(times) - 1
    spent = [1e3 * (new - old) / frames for old, new in zip(before, browser.spent(), strict=True)]
    gaps = sorted((new - old for old, new in pairwise(times)), reverse=True)
    return [1e3 * frames / (times[-1] - times[0]), *gaps[:SLOWEST], *spent]


def main() -> None:
    """Print a row for each page and number of ranks."""
    told = options(__doc__, seconds=5.0, width=1280, height=900, ranks="16,64", only="", slower=1.0)
    size = f"--window-size={told.width},{told.height}"
    with tempfile.TemporaryDirectory() as name, chromium(Path(name), size) as browser:
        written = explorer.write(Path(name, "page")).parent
        (written / "empty.html").write_text(EMPTY, encoding="utf-8")
        print(browser.call("Browser.getVersion")["product"], size)
        print(row("", HEADS, width=9))
        for title, page, ready, script in views([int(each) for each in told.ranks.split(",")]):
            if told.only not in title:
                continue
            browser.open(written / page, ready)
            browser.run(script)
            browser.wait("again")
            browser.call("Emulation.setCPUThrottlingRate", rate=told.slower)
            print(row(title, measured(browser, told.seconds), width=9), flush=True)


if __name__ == "__main__":
    main()
