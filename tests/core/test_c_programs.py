"""Parts of the core as C: programs in this folder call them, built with the compiler's sanitizers.

The address sanitizer and that of undefined behaviour watch each of them, and so does the thread
sanitizer, with threads in place of ranks: it reports each read or write that the rules of C11 do
not allow, whatever order this processor keeps. Changed sources show that it does.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CORE = HERE.parents[1] / "collectives" / "_core"
COMPILER = shutil.which("cc")
OPTIONS = ["-g", "-O1", "-w", "-fno-sanitize-recover=all"]
ROUNDS = {"copies": 300, "cores": 20, "doubts": 20, "heap": 200, "mail": 50, "ordering": 100}
ROUNDS |= {"timeline": 3000, "wire": 300}
UNUSED = "kernels.c", "pairs.c"  # the programs call nothing of these, which take long to compile
ALONE = "copies", "cores", "doubts", "wire"  # which have one thread
CASES = [(program, "address,undefined") for program in ROUNDS]
CASES += [(program, "thread") for program in ROUNDS if program not in ALONE]

# The file, a text in it, and its replacement: each has one rank run ahead of another.
MUTANTS = {
    "number": ("shared/segment.h", "cc_write(&line->seq, page + 1)", "line->seq = page + 1"),
    "progress": ("shared/segment.h", "cc_write(progress, next)", "*progress = next"),
    "lanes": ("shared/segment.h", "return page <= floor;", "return 1;"),
    "calls": ("shared/segment.h", "__atomic_store_n(&call->what[1], what[1], __ATOMIC_RELAXED)",
              "call->what[1] = what[1]"),
    "sent": ("mail/box.h", "head + whole, __ATOMIC_RELEASE", "head + whole, __ATOMIC_RELAXED"),
}  # fmt: skip

pytestmark = pytest.mark.skipif(
    COMPILER is None or not CORE.is_dir(), reason="it needs a C compiler and the sources"
)


def compile_(folder, sanitizer, *words):
    """Run the compiler in a folder, or skip if it has no such sanitizer."""
    command = [COMPILER, *OPTIONS, f"-fsanitize={sanitizer}", *words]
    made = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if made.returncode and any(name in made.stderr for name in ("asan", "ubsan", "tsan")):
        pytest.skip(f"the compiler has no runtime for -fsanitize={sanitizer}")
    assert made.returncode == 0, made.stderr


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """Return a function that returns the objects of the core, compiled once with a sanitizer."""
    made = {}

    def of(sanitizer):
        if sanitizer not in made:
            folder = tmp_path_factory.mktemp("objects")
            files = [each for each in CORE.glob("*/*.c") if each.name not in UNUSED]
            compile_(folder, sanitizer, "-c", *files)
            made[sanitizer] = sorted(folder.glob("*.o"))
        return made[sanitizer]

    return of


def run(program, sanitizer, files, folder, rounds, sources=CORE.parent, seconds=60):
    """Return what a program says, or skip where a sanitizer cannot run."""
    compile_(
        folder, sanitizer, f"-I{sources}", HERE / f"{program}.c", *files, "-o", program,
        "-ldl", "-lpthread",
    )  # fmt: skip
    words = [folder / program, str(seconds), str(rounds)]
    found = subprocess.run(words, capture_output=True, text=True, timeout=seconds + 30)
    if "unexpected memory mapping" in found.stderr:
        pytest.skip("the thread sanitizer does not run on this kernel")
    return found


@pytest.mark.parametrize("times", [1, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("program", "sanitizer"), CASES)
def test_program(program, sanitizer, times, objects, tmp_path):
    rounds = times * ROUNDS[program]
    found = run(program, sanitizer, objects(sanitizer), tmp_path, rounds, seconds=240)
    assert found.returncode == 0, found.stdout + found.stderr


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_lost_order_is_found(mutant, objects, tmp_path):
    file, old, new = MUTANTS[mutant]
    shutil.copytree(CORE, tmp_path / "_core")
    path = tmp_path / "_core" / file
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    mail = tmp_path / "_core" / "mail" / "mail.c"
    files = [mail, *(each for each in objects("thread") if each.stem != mail.stem)]
    # Ranks that lose what others have published wait until the time is over.
    found = run("ordering", "thread", files, tmp_path, ROUNDS["ordering"], tmp_path, seconds=3)
    assert found.returncode != 0
