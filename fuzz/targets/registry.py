"""The fuzz targets. A further one is one line here, naming its module and its :class:`Target`."""

from __future__ import annotations

import importlib
from typing import Final

from treering.fuzz.targets.target import Target
from treering.tools.cli import Lazy

TARGETS: Final = {
    "frames": Lazy(
        "treering.fuzz.targets.frames:TARGET", "The scanner over a stream of frames, and an oracle."
    ),
    "journal": Lazy("treering.fuzz.targets.journal:TARGET", "The verdict about a whole journal."),
    "header": Lazy("treering.fuzz.targets.header:TARGET", "The file header and the watermark."),
    "payload": Lazy("treering.fuzz.targets.payload:TARGET", "Decompression and splicing."),
    "legacy": Lazy("treering.fuzz.targets.legacy:TARGET", "Plain JSONL to be imported."),
    "native": Lazy("treering.fuzz.targets.native:TARGET", "Journals of JSON frames."),
    "associations": Lazy(
        "treering.fuzz.targets.associations:TARGET", "Which requests outputs came from, by lines."
    ),
    "entry": Lazy("treering.fuzz.targets.entry:TARGET", "Entries that callers hand in."),
    "selectors": Lazy("treering.fuzz.targets.selectors:TARGET", "Selectors, ids, homes, paths."),
    "store": Lazy("treering.fuzz.targets.store:TARGET", "A whole store, under fsck."),
    "index": Lazy("treering.fuzz.targets.index:TARGET", "The opener and the answers of an index."),
}


def load(name: str) -> Target:
    """The target of that name, imported now."""
    return load_from(TARGETS[name].place)


def load_from(place: str) -> Target:
    """The target at a place, ``module:name``, which need not be one of the table."""
    module, _, member = place.partition(":")
    target: Target = getattr(importlib.import_module(module), member)
    return target
