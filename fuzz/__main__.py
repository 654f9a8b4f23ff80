"""``python -m treering.fuzz``: the long runs, and reproducing what they found."""

from __future__ import annotations

import sys
from typing import Final

from treering.tools.cli import Lazy, LazyGroup
from treering.tools.entry import main

_COMMANDS: Final = {
    "explore": Lazy(
        "treering.fuzz.explore_command:command", "Every state that a power failure can leave."
    ),
    "errors": Lazy("treering.fuzz.errors_command:command", "An error at every call of every flow."),
    "plant": Lazy(
        "treering.fuzz.plant_command:command", "Plant known faults and see the explorer find them."
    ),
    "syscalls": Lazy(
        "treering.fuzz.syscalls.command:command", "Errors and kills at system calls of commands."
    ),
    "kill": Lazy("treering.fuzz.kills.command:command", "Kill real processes, round after round."),
    "index": Lazy(
        "treering.fuzz.adversary.command:command", "Replace, cut and flip the files of an index."
    ),
    "target": Lazy("treering.fuzz.targets.command:command", "Fuzz what takes bytes from outside."),
}

fuzz = LazyGroup(
    "treering.fuzz",
    lazy=_COMMANDS,
    help="Look for the crash, the failing call or the input that breaks a promise.",
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 nothing found, 1 a promise is broken, 2 usage, 3 could not run.",
)

if __name__ == "__main__":
    sys.exit(main(command=fuzz))
