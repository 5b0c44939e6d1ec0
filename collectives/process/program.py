"""A rank of ``collectives run``: a program under mpi4py's runner, whose error is reported once.

Ranks start this file by its path, so that they import nothing from the folder that they start in.
The package is imported only to report an error, and so not in programs that do not use it.
"""

from __future__ import annotations

import contextlib
import os
import sys


def main() -> None:
    """Run the program that the arguments name. Local."""
    home = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    sys.path[0] = os.getcwd()  # as `python -m mpi4py` has it
    from mpi4py import run

    for stream in (sys.stdout, sys.stderr):
        if getattr(stream, "write_through", False):  # python -u: lines of ranks must not mix
            stream.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    try:
        run.main()
    except SystemExit:
        raise
    except BaseException:
        sys.path.append(home)
        with contextlib.suppress(Exception):
            from collectives.process import abort

            abort.watch()
        raise


if __name__ == "__main__":
    main()
