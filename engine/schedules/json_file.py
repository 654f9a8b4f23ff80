"""Small JSON files of other programs: read as data, never quoted.

What stands in them is somebody's instructions and settings. No error of this module repeats any of
it: the place and the kind of fault have to do.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final

from treering.engine.errors import Invalid, LimitExceeded
from treering.engine.json_text import depth_over_limit
from treering.engine.limits import MIB

JSON_FILE_BYTES_MAX: Final = 64 * MIB
"""Largest settings or schedule file that is read: it is held in memory, decoded."""


def decode_json(data: bytes, path: str) -> Any:
    """The value in a file. Numbers stay what they are; lone surrogates in strings are kept.

    Raises:
        Invalid: not UTF-8, not JSON, or nested too deep.
        LimitExceeded: larger than ``JSON_FILE_BYTES_MAX``.
    """
    if len(data) > JSON_FILE_BYTES_MAX:
        raise LimitExceeded(
            "the file is too large", limit=JSON_FILE_BYTES_MAX, need=len(data), path=path
        )
    if depth_over_limit(data) is not None:
        raise Invalid("the file nests too deep", path=path)
    try:
        return json.loads(data.decode(), parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        # The decoder's own words quote the file.
        raise Invalid("the file is not JSON in UTF-8", path=path) from None


def encode_json(value: Any) -> bytes:
    """The value as a file: indented, ASCII, with a line feed at its end."""
    return json.dumps(value, indent=2, allow_nan=False).encode() + b"\n"


def _refuse(text: str) -> Any:
    raise ValueError(text)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(text)
    return number
