"""One rank of a page's program: its blocks in order, in one namespace, and their output.

A traceback names the page and its line. The outputs of the ranks are joined in rank order, as they
are on the page; on a terminal the lines of several ranks come as they may.
"""

import contextlib
import io
import json
import sys
import traceback
import types
from pathlib import Path

from mpi4py import MPI
from pages import equal


def run(program):
    """Run the blocks; end all ranks with a message if one of them is not as the page says."""
    comm = MPI.COMM_WORLD.Dup()
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module  # so that what the page defines can be pickled
    for block in program["blocks"]:
        where = f"{program['page']}:{block['line']}"
        code = compile("\n" * (block["line"] - 1) + block["text"], program["page"], "exec")
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(code, vars(module))
        except BaseException:
            fail(f"{where}: rank {comm.rank}\n{printed.getvalue()}{traceback.format_exc()}")
        outputs = "".join(comm.allgather(printed.getvalue()))
        wanted = block["output"]
        if comm.rank == 0 and wanted is not None and not equal(wanted, outputs):
            fail(f"{where}: the page says\n{wanted}\nand it printed\n{outputs}")


def fail(text):
    sys.stderr.write(text)
    sys.stderr.flush()
    MPI.COMM_WORLD.Abort(1)


if __name__ == "__main__":
    run(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
