"""Makes the committed corpora of the fuzz targets: ``python tests/fuzz/make_corpus.py``.

Seeds only: small inputs from which a search starts. What a search finds interesting is added to
the same folders by hand. Nothing here is random, so running it again changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CORPUS = REPOSITORY / "fuzz" / "targets" / "corpus"

if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY / "tests"))

from support import build  # noqa: E402 (the tests' own path comes first)


def frames() -> dict[str, bytes]:
    """Streams of frames, without the file header."""
    made = {"empty": b""}
    maker = build.Maker().started()
    made["fresh"] = maker.body
    maker.open()
    maker.entry("a")
    maker.sync()
    maker.entry("b")
    made["unsynced"] = maker.body
    maker = build.Maker()
    maker.open()
    maker.batch("c", "d")
    maker.close()
    maker.open()
    made["batch"] = maker.body
    maker = build.Maker()
    maker.frame(build.ENTRY, b"")
    made["one"] = maker.body
    maker.frame(build.EPOCH_OPEN, b"", epoch=7)
    maker.frame(build.BLOB, bytes(150))
    maker.frame(0x80, b"x", epoch=7)
    made["epochs"] = maker.body
    maker = build.Maker()
    for number in range(9):
        maker.frame(build.ENTRY, b"%d" % number)
    made["short"] = maker.body
    maker = build.Maker()
    inner = build.Maker(first_sequence=1)
    maker.frame(build.ENTRY, b"a")
    inner.frame(build.ENTRY, b"inner", previous=maker.previous)
    maker.frame(build.ENTRY, inner.body)
    made["nested"] = maker.body
    return made


SEEDS: dict[str, Callable[[], dict[str, bytes]]] = {"frames": frames}


def main() -> None:
    for name, make in SEEDS.items():
        folder = CORPUS / name
        folder.mkdir(parents=True, exist_ok=True)
        for seed, data in make().items():
            (folder / f"seed-{seed}").write_bytes(data)


if __name__ == "__main__":
    main()
