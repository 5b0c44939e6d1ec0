"""The manual's blocks are found, and none escapes."""

import sys
from pathlib import Path

import pytest
from pages import Block, Page, PageError, blocks, commands, equal, pages


def parse(text):
    return blocks(text, "page.md")


def test_blocks_have_their_marks_and_lines():
    ranks, found = parse(
        "<!-- ranks: 3 -->\n\n<!-- needs: torch -->\n```python\nx = 1\n```\n\n"
        "1. a list\n\n   <!-- not run: it costs money -->\n   ```console\n   $ buy\n   ```\n"
        "```{toctree}\nindex\n```\n"
    )
    assert ranks == 3
    assert found == [
        Block("python", "x = 1\n", 5, {"needs": "torch"}),
        Block("console", "$ buy\n", 12, {"not run": "it costs money"}),
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<!-- maybe -->\n", "is none of"),
        ("<!-- fails -->\nwords\n", "stand above no block"),
    ],
)
def test_marks_that_mean_nothing_are_refused(text, problem):
    with pytest.raises(PageError, match=problem):
        parse(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("```\nx = 1\n```\n", "without a language"),
        ("```text\nan output?\n```\n", "a block is 'text'"),
        ("<!-- output -->\n```text\n1\n```\n", "below no python block"),
        ("<!-- not run -->\n```python\nx\n```\n", "say why"),
        ("```console\nno command\n```\n", "begins with"),
    ],
)
def test_blocks_that_would_escape_are_refused(tmp_path, monkeypatch, text, problem):
    monkeypatch.setattr("pages.ROOT", tmp_path)
    file = tmp_path / "page.md"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(PageError, match=problem):
        Page(file, tmp_path / "python")


def test_commands_have_their_output():
    block = Block("console", "$ one\nline\n\nline\n$ two\n> three\n", 1)
    assert list(commands(block, "page.md:1")) == [("one", "line\n\nline\n"), ("two\nthree", "")]


def test_outputs_are_compared():
    assert equal("a ... c\n", "a b c \n")
    assert not equal("a\n", "b\n")
    assert equal("a\n...\n", "a\n")
    assert equal("a\n...\n", "a\nb\n")
    assert not equal("a\n...\n", "b\na\n")
    assert not equal("a\nb\n", "b\na\n")
    assert equal("a\nb\n", "b\na\n", {"any order": ""})
    assert equal("  1.5 us   3 *\n", " 22.25 us 1\n", {"numbers vary": ""})
    assert not equal("1 us\n", "1 ms\n", {"numbers vary": ""})
    assert equal("# MPICH\n", " 50 %  2 ranks, barrier\n# MPICH\n", {"numbers vary": ""})


def test_the_manual_has_pages():
    assert len(pages()) > 15


@pytest.mark.parametrize("file", pages(), ids=lambda file: file.stem)
def test_pages_of_the_manual_can_be_read(monkeypatch, file):
    monkeypatch.setattr(Page, "missing", lambda page, block: None)
    Page(file, Path(sys.executable))  # raises PageError at a block that nothing runs
