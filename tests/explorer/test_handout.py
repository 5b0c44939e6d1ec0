"""The handout of the course and the pictures of the lecture, and what Chromium prints of them."""

import re
import sys
from pathlib import Path

import pytest
from browser import needs_chromium

from collectives.explorer.course import ALGORITHMS

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs"))

import handout
import lecture_pictures


def test_the_drawing_has_all_algorithms_and_what_is_counted():
    text = handout.handout()
    names = re.findall(r"allreduce '(\w+)' on 4 ranks", text)
    assert list(dict.fromkeys(names)) == list(ALGORITHMS)
    counted = re.findall(r'class="handout number" [^>]*>([\d.]+)<', text)
    assert counted[-6:] == ["6", "24", "3", "30", "480", "3.75"]  # the ring on 4 and 16 ranks


@needs_chromium
def test_it_is_one_page_of_paper(tmp_path):
    handout.write(tmp_path)
    printed = (tmp_path / "handout.pdf").read_bytes()
    assert printed.startswith(b"%PDF-")
    assert len(re.findall(rb"/Type /Page\b", printed)) == 1
    [box] = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", printed)
    assert [float(each) for each in box] == pytest.approx([842, 595], abs=1)  # A4, in points


def test_without_chromium_there_is_only_the_drawing(tmp_path, monkeypatch):
    monkeypatch.setattr(handout, "CHROMIUM", None)
    handout.write(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["handout.svg"]


def test_the_lecture_has_the_pictures_that_a_command_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(handout, "CHROMIUM", None)
    *names, last = lecture_pictures.write(tmp_path)
    assert last == "no PDF files: Chromium, which prints them, is not installed"
    made = {each.name for each in tmp_path.iterdir()}
    assert {each.partition(":")[0].removeprefix("no ") for each in names} >= made
    page = lecture_pictures.ROOT / "docs" / "learn" / "lecture.md"
    shown = set(re.findall(r"`(\w+\.svg)`", page.read_text(encoding="utf-8")))
    assert shown == made | set(lecture_pictures.COMPUTED)


@needs_chromium
def test_the_pictures_are_printed_on_a_page_each(tmp_path, monkeypatch):
    monkeypatch.setattr(lecture_pictures, "COMPUTED", {})
    monkeypatch.setattr(lecture_pictures, "DRAWN", [("allreduce", "ring", "ring")])
    monkeypatch.setattr(lecture_pictures, "MEASURED", {"layers.svg": "learn/rnn.svg"})
    *names, last = lecture_pictures.write(tmp_path)
    assert last == "pictures.pdf"
    assert len(re.findall(rb"/Type /Page\b", (tmp_path / last).read_bytes())) == len(names)
    for name, unit in ("ring", 0.75), ("layers", 1.0):  # of pixels and points, in points
        drawn = (tmp_path / f"{name}.svg").read_text(encoding="utf-8")
        size = re.search(r"<svg[^>]*>", drawn)[0]
        wide, high = (
            float(re.search(rf'{side}="([\d.]+)', size)[1]) for side in ("width", "height")
        )
        printed = (tmp_path / f"{name}.pdf").read_bytes()
        [box] = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", printed)  # one page
        assert [float(each) for each in box] == pytest.approx([unit * wide, unit * high], abs=1)
