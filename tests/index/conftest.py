"""Lets the tests here import their helpers: `tests/index` is no package, `index` is the product."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
