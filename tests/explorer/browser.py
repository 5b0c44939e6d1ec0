"""Pages in a headless Chromium, driven by ``drive.js`` or ``study.js``. Only files are opened."""

import html
import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from usual import FULL

HERE = Path(__file__).parent

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
# Seconds for a browser: fewer than `tests/run.py` waits. A quiet machine needs 30 at most.
DEADLINE = 570


def _axe():
    """Return the script that checks the page for accessibility, or None."""
    named = os.environ.get("COLLECTIVES_TEST_AXE")
    package = importlib.util.find_spec("axe_core_python")
    folders = package.submodule_search_locations if package else []
    return Path(named) if named else next((Path(each, "axe.min.js") for each in folders), None)


AXE = _axe()
needs_axe = pytest.mark.skipif(AXE is None, reason="axe-core-python is not installed")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")

# Widths and themes that axe-core looks at: the two most different ones, or all.
SCREENS = [(390, "dark"), (1280, "light")]
if FULL:
    SCREENS = [(width, theme) for width in (390, 768, 1280) for theme in ("light", "dark")]

# A window is never as narrow as a phone, but a frame in it may be.
FRAME = """<!DOCTYPE html><iframe src="PAGE" width="360" height="800"></iframe><script>
const frame = document.querySelector("iframe");
frame.onload = () => frame.contentWindow.postMessage({ theme: "dark" }, "*");
window.onmessage = (event) => {
  document.body.innerHTML = '<pre id="report"></pre>';
  document.getElementById("report").textContent = event.data;
};
</script>"""


def browse(
    written,
    folder,
    jobs=(),
    hash="",
    keys=False,
    flags=(),
    narrow=0,
    name="index",
    drive="drive",
    serve=None,
    axe=False,
):
    """Open a page in a browser, and return what the drive found.

    The page is in a frame if it is `narrow`, and comes from where `serve` says, by default a file.
    With `axe`, the script of axe-core is loaded, and the drive runs it.
    """
    shutil.copytree(written, folder, dirs_exist_ok=True)
    index = folder / f"{name}.html"
    text = index.read_text(encoding="utf-8")
    (folder / "jobs.js").write_text(
        "window.errors = [];\n"
        "window.onerror = (...words) => { window.errors.push(words.join(' ')); };\n"
        "window.onunhandledrejection = (event) => { window.errors.push(String(event.reason)); };\n"
        "console.error = (...words) => { window.errors.push(words.join(' ')); };\n"
        f"window.pressKeys = {json.dumps(keys)};\n"
        f"window.jobs = {json.dumps(list(jobs))};\n"
    )
    shutil.copy(HERE / f"{drive}.js", folder / "drive.js")
    scripts = '<script src="jobs.js"></script>'
    if axe:
        shutil.copy(AXE, folder / "axe.js")
        scripts += '<script src="axe.js"></script>'
    text = text.replace("<head>", f"<head>{scripts}")
    text = text.replace("</body>", '<script src="drive.js"></script></body>')
    index.write_text(text, encoding="utf-8")
    if narrow:
        index = folder / "frame.html"
        frame = FRAME.replace("PAGE", f"{name}.html{hash}").replace("360", str(narrow))
        index.write_text(frame, encoding="utf-8")
    done = subprocess.run(
        [
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            *("--disable-dev-shm-usage", "--no-first-run"),
            f"--user-data-dir={folder / 'profile'}",
            "--virtual-time-budget=10000000",
            "--window-size=1400,1000",
            *flags,
            "--dump-dom",
            serve(folder) if serve else f"{index.as_uri()}{hash}",
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=DEADLINE,
    )
    dom = done.stdout.decode("utf-8")
    report = re.search(r'<pre id="report">(.*?)</pre>', dom, re.DOTALL)
    assert report, f"the page did not come to its end: {done.stderr.decode()[-2000:]}"
    found = json.loads(html.unescape(report[1]))
    assert found["errors"] == [], found["errors"]
    return found
