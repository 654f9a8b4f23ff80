"""``python -m treering.tools``: the command line without its script."""

import sys

from treering.tools.entry import main

if __name__ == "__main__":
    sys.exit(main())
