"""``python -m treering.fuzz``: the long runs, and reproducing what they found."""

from __future__ import annotations

import sys
from typing import Final

from treering.tools.cli import Lazy, LazyGroup
from treering.tools.entry import main

_COMMANDS: Final[dict[str, Lazy]] = {}

fuzz = LazyGroup(
    "treering.fuzz",
    lazy=_COMMANDS,
    help="Look for the crash, the failing call or the input that breaks a promise.",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 nothing found, 1 a promise is broken, 2 usage, 3 could not run.",
)

if __name__ == "__main__":
    sys.exit(main(command=fuzz))
