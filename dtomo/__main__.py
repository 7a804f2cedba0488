"""``python -m dtomo``: the command line."""

import sys

from dtomo.cli import main

if __name__ == "__main__":
    sys.exit(main())
