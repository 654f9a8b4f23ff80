"""Comparing decoded JSON."""

from __future__ import annotations

from typing import Any


def same_json(left: Any, right: Any) -> bool:
    """Whether two decoded values are the same JSON, types included.

    1, 1.0 and true differ; the order of keys does not count; NaN is the same as nothing.
    """
    stack = [(left, right)]
    while stack:
        one, other = stack.pop()
        if type(one) is not type(other):
            return False
        if isinstance(one, dict):
            if one.keys() != other.keys():
                return False
            stack += [(value, other[name]) for name, value in one.items()]
        elif isinstance(one, list):
            if len(one) != len(other):
                return False
            stack += zip(one, other, strict=True)
        elif one != other:
            return False
    return True
