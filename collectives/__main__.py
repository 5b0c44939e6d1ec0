"""``python -m collectives`` is the command ``collectives``."""

import sys

from collectives.cli import main

if __name__ == "__main__":
    sys.exit(main())
