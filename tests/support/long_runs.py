"""Tests that a usual run leaves out: they take a minute each, and measure what hardly changes."""

from __future__ import annotations

import os

import pytest

LONG = pytest.mark.skipif(
    "TREERING_LONG" not in os.environ, reason="takes a minute; set TREERING_LONG=1 to run it"
)
