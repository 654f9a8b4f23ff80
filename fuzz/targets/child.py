"""One process of a search: ``python -m treering.fuzz.targets.child PLACE COUNTER [libFuzzer...]``.

The engine takes over the process and ends it, so it always runs in one of its own. How many inputs
were executed is kept in a file that survives any end of the process.
"""

from __future__ import annotations

import importlib
import inspect
import mmap
import sys
import time
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, Final

from treering.fuzz.targets.registry import load_from
from treering.fuzz.targets.target import Broken, Target

COUNTER_DIGITS: Final = 20


def functions_of(module: ModuleType) -> Iterator[FunctionType]:
    """Every function and method that a module defines itself."""
    for member in vars(module).values():
        if inspect.isfunction(member):
            if member.__module__ == module.__name__:
                yield member
        elif inspect.isclass(member) and member.__module__ == module.__name__:
            for inner in vars(member).values():
                one: Any = inner.fget if isinstance(inner, property) else inner
                one = one.__func__ if isinstance(one, (classmethod, staticmethod)) else one
                if inspect.isfunction(one) and one.__module__ == module.__name__:
                    yield one


def counted(target: Target, path: str) -> Callable[[bytes], None]:
    """The target's check within its time, and in the file how many inputs it has taken."""
    with open(path, "w+b") as file:
        file.write(b"0" * COUNTER_DIGITS + b"\n")
        file.flush()
        note = mmap.mmap(file.fileno(), COUNTER_DIGITS + 1)
    check, seconds_max, clock = target.check, target.seconds_max, time.process_time
    done = 0

    def one_input(data: bytes) -> None:
        nonlocal done
        done += 1
        note[:COUNTER_DIGITS] = b"%020d" % done
        started = clock()
        check(data)
        if clock() - started > seconds_max:
            raise Broken(f"it takes more than {seconds_max} s of processor time")

    return one_input


def instrument(atheris: Any, target: Target) -> int:
    """Let the branches of the target's modules guide the search; how many functions that are."""
    count = 0
    for name in target.modules:
        for function in functions_of(importlib.import_module(name)):
            atheris.instrument_func(function)
            count += 1
    return count


def main(place: str, counter: str, arguments: list[str]) -> None:
    """Search until the engine's own limits end the process."""
    atheris = importlib.import_module("atheris")
    target = load_from(place)
    sys.stderr.write(f"{place}: {instrument(atheris, target)} functions are instrumented\n")
    more: dict[str, Any] = {}
    if target.mutate is not None:
        mutate = target.mutate  # the engine puts its own mutator in place when it starts
        more["custom_mutator"] = lambda data, size_max, seed: mutate(
            data, size_max, seed, atheris.Mutate
        )
    atheris.Setup([place, *arguments], counted(target, counter), **more)
    atheris.Fuzz()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
