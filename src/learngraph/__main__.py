"""The command line: `python -m learngraph`."""

import sys

from .graphs.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
