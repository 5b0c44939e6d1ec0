"""Shared memory by the rules of C11, which processors other than x86 rely on.

``ordering.c`` has threads in place of ranks, and the thread sanitizer reports what one of them
reads or writes without having seen that it may, whatever order this processor keeps. Changed
sources show that it does.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CORE = HERE.parents[1] / "collectives" / "_core"
COMPILER = shutil.which("cc")
OPTIONS = ["-g", "-O1", "-fsanitize=thread", "-w"]

# The file, a text in it, and its replacement: each has one rank run ahead of another.
MUTANTS = {
    "number": ("shared/segment.h", "cc_write(&line->seq, page + 1)", "line->seq = page + 1"),
    "progress": ("shared/segment.h", "cc_write(progress, next)", "*progress = next"),
    "lanes": ("shared/segment.h", "return page <= floor;", "return 1;"),
    "calls": ("shared/segment.h", "__atomic_store_n(&call->what[1], what[1], __ATOMIC_RELAXED)",
              "call->what[1] = what[1]"),
    "sent": ("mail/box.h", "head + whole, __ATOMIC_RELEASE", "head + whole, __ATOMIC_RELAXED"),
}  # fmt: skip


def run(sources, folder, seconds):
    """Return what the program says with the sources of a core, or skip where it cannot run."""
    program = folder / "ordering"
    command = [COMPILER, *OPTIONS, f"-I{sources}", HERE / "ordering.c", "-o", program]
    made = subprocess.run([*command, "-ldl", "-lpthread"], capture_output=True, text=True)
    if made.returncode and "tsan" in made.stderr:
        pytest.skip("the compiler has no thread sanitizer")
    assert made.returncode == 0, made.stderr
    found = subprocess.run([program, seconds], capture_output=True, text=True, timeout=90)
    if "unexpected memory mapping" in found.stderr:
        pytest.skip("the thread sanitizer does not run on this kernel")
    return found


pytestmark = pytest.mark.skipif(
    COMPILER is None or not CORE.is_dir(), reason="it needs a C compiler and the sources"
)


def test_ranks_keep_to_the_order_of_c11(tmp_path):
    found = run(CORE.parent, tmp_path, "60")
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_lost_order_is_found(mutant, tmp_path):
    file, old, new = MUTANTS[mutant]
    shutil.copytree(CORE, tmp_path / "_core")
    path = tmp_path / "_core" / file
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    # Ranks that lose what others have published wait until the time is over.
    assert run(tmp_path, tmp_path, "3").returncode != 0
