"""F135: the digests in our files are those of XXH3 and XXH32, whatever major version of the library
makes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import xxhash

ROOT = Path(__file__).resolve().parents[2]

VECTORS = [
    (b"", 0, "02cc5d05", "2d06800538d394c2", "99aa06d3014798d86001c324468d497f"),
    (b"a", 0, "550d7456", "e6c632b61e964e1f", "a96faf705af16834e6c632b61e964e1f"),
    (b"abc", 0, "32d153ff", "78af5f94892f3950", "06b05ab6733a618578af5f94892f3950"),
]
"""Bytes, seed, XXH32, XXH3-64, XXH3-128: as the authors of the algorithm publish them."""


def test_F135_known_answers() -> None:
    """Known-answer vectors, the empty input among them; a seed is what it is; text is never hashed
    by accident."""
    for data, seed, short, middle, long in VECTORS:
        assert xxhash.xxh32(data, seed=seed).hexdigest() == short
        assert xxhash.xxh3_64(data, seed=seed).hexdigest() == middle
        assert xxhash.xxh3_128(data, seed=seed).hexdigest() == long
        assert xxhash.xxh3_128_digest(data, seed=seed).hex() == long
    whole = bytes(range(256)) * 9
    pieces = xxhash.xxh3_128(seed=2**63 + 5)
    for at in range(0, len(whole), 100):
        pieces.update(whole[at : at + 100])
    assert pieces.digest() == xxhash.xxh3_128_digest(whole, seed=2**63 + 5)
    assert pieces.digest() != xxhash.xxh3_128_digest(whole, seed=5)


@pytest.mark.parametrize(
    ("wanted", "major"), [("xxhash<4", "3"), ("xxhash>=4", "4")], ids=["3.x", "4.x"]
)
def test_F135_the_format_tests_with_another_library(
    tmp_path: Path, wanted: str, major: str
) -> None:
    """The tests of the format and of the vectors, and the known answers above, with
    the newest library of each major version: same bytes, same verdicts."""
    environment = os.environ.copy()
    if xxhash.VERSION.split(".")[0] == major:
        test_F135_known_answers()  # all other tests run with it anyway
        return
    folder = tmp_path / "library"
    words = ["install", "-q", "--no-deps", "--only-binary", ":all:", "--target", str(folder)]
    installed = subprocess.run(
        [sys.executable, "-m", "pip", *words, "--disable-pip-version-check", wanted],
        capture_output=True,
        check=False,
        timeout=60,
        env={**environment, "PIP_RETRIES": "0", "PIP_TIMEOUT": "5"},
    )
    if installed.returncode != 0:
        pytest.skip(f"{wanted} cannot be installed here")
    given = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(folder), *([given] if given else [])])
    asked = "import xxhash; print(xxhash.VERSION)"
    version = subprocess.run(
        [sys.executable, "-c", asked], env=environment, capture_output=True, text=True, check=True
    )
    assert version.stdout.startswith(f"{major}."), version.stdout
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"),
            *("--basetemp", str(tmp_path / "pytest")),
            "tests/journal/test_format.py",
            "tests/journal/test_vectors.py",
            "tests/bars/test_hash_library.py::test_F135_known_answers",
        ],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
