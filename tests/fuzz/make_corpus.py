"""Makes the committed corpora of the fuzz targets: ``python tests/fuzz/make_corpus.py``.

Seeds only: small inputs from which a search starts. What a search finds interesting is added to
the same folders by hand. Nothing here is random, so running it again changes nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
CORPUS = REPOSITORY / "fuzz" / "targets" / "corpus"
GOLDEN = REPOSITORY / "tests" / "data"

if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY / "tests"))

import zstandard  # noqa: E402 (the tests' own path comes first)
from associations import helpers as links  # noqa: E402
from support import build, native_writer  # noqa: E402

from treering.engine.journal.payload import encode_splice  # noqa: E402
from treering.fuzz.targets import index, payload, store  # noqa: E402


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


def journals() -> dict[str, bytes]:
    """Whole files, of every case that one file can be."""
    made = {path.stem: path.read_bytes() for path in sorted(GOLDEN.glob("*.jsonl"))}
    maker = build.Maker().started()
    maker.open()
    maker.entry("a")
    maker.batch("b", "c")
    maker.frame(build.LEAF, b'{"leaf":"a"}')
    maker.sync()
    maker.entry("d")
    made["clean"] = whole = maker.whole()
    offsets = [frame.offset for frame in maker.frames]
    made["torn"] = whole[:-9]
    made["interior"] = whole[: offsets[1] + 50] + b"?" + whole[offsets[1] + 51 :]
    made["proven"] = whole[: offsets[4] + 50] + b"?" + whole[offsets[4] + 51 :]
    made["no-header"] = bytes(128) + whole[128:]
    made["staged"] = whole[: offsets[5]]
    made["magic-only"] = b"\x89TRNG\r\n\x1a"
    maker = build.Maker().started()
    maker.open(requires=["unknown"])
    maker.frame(99, b"?")
    maker.frame(build.ENTRY, b"{}", flags=0x8000)
    maker.frame(build.BLOB, b"shared")
    maker.frame(build.GAP, b'{"offset":1,"bytes":2,"first":3,"last":null}')
    made["unknown"] = maker.whole()
    return made


def headers() -> dict[str, bytes]:
    """File headers, and watermarks."""
    return {
        "plain": build.file_header(published=128),
        "unpublished": build.file_header(),
        "newer": build.file_header(published=128, version=2),
        "required": build.file_header(published=128, required=5),
        "optional": build.file_header(published=128, optional=7),
        "reserved": build.file_header(published=128, reserved=b"r" * 60),
        "watermark": build.watermark(build.ID, 3, 777, bytes(range(16))),
        "short": build.file_header(published=1)[:127],
    }


def payloads() -> dict[str, bytes]:
    """Stored payloads of every codec."""
    text = b'{"type":"message","id":"a","text":"' + b"again and " * 9 + b'"}'
    trained = zstandard.ZstdCompressionDict(payload.dictionary())
    plain = zstandard.ZstdCompressor().compress(text)
    with_dictionary = zstandard.ZstdCompressor(dict_data=trained, write_checksum=True)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(text)
    spliced = encode_splice(text, [(4, 2, 9, 3), (4, 3, 300, 1), (len(text), 2, 2, 0)])
    packed = zstandard.ZstdCompressor().compress(spliced)

    def one(codec: int, raw: int, stored: bytes, kind: int = build.ENTRY) -> bytes:
        return payload.HEAD.pack(codec, kind, raw, 9) + stored

    return {
        "raw": one(0, len(text), text),
        "zstd": one(1, len(text), plain),
        "unsized": one(1, len(text), unsized),
        "dictionary": one(2, len(text), with_dictionary.compress(text)),
        "spliced": one(0x80, len(text) + 311, spliced),
        "spliced-zstd": one(0x81, len(text) + 311, packed),
        "two-frames": one(1, len(text) * 2, plain + plain),
        "bomb": one(1, 5, zstandard.ZstdCompressor().compress(bytes(1 << 20))),
        "bomb-unsized": one(
            1, 200, zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 20))
        ),
        "blob": one(1, len(text), plain, build.BLOB),
    }


HEADER = (
    b'{"type":"session","version":3,"id":"s","timestamp":"2026-01-01T00:00:00.000Z","cwd":"/"}\n'
)
MESSAGE = (
    b'{"type":"message","id":"%s","parentId":%s,"timestamp":"2026-01-01T00:00:01.000Z",'
    b'"message":{"role":"user","content":"hi"}}\n'
)


def legacy() -> dict[str, bytes]:
    """Legacy files of every version, whole and not."""
    first, second = MESSAGE % (b"a", b"null"), MESSAGE % (b"b", b'"a"')
    version_1 = (
        b'{"type":"session","id":"s","branchedFrom":"/x"}\n'
        b'{"type":"message","timestamp":"t","message":{"role":"hookMessage"}}\n'
        b'{"type":"compaction","summary":"x","firstKeptEntryIndex":1}\n'
        b'{"type":"label","targetId":"e","label":"l"}\n'
    )
    return {
        "v3": HEADER + first + second,
        "v2": HEADER.replace(b":3,", b":2,") + first + second,
        "v1": version_1,
        "blank": b"\xef\xbb\xbf" + b"\n \n" + HEADER + b"\r\n" + first + b"  ",
        "torn": HEADER + first + second[:50],
        "fused": HEADER + first[:40] + second + first.strip() + second,
        "array": b"[" + HEADER.strip() + b"," + first.strip() + b",\n" + second.strip() + b"]\n",
        "array-torn": b"[" + HEADER.strip() + b"," + first[:30],
        "no-header": first + second,
        "two-headers": HEADER + first + HEADER + second,
        "duplicates": HEADER + first + first + MESSAGE % (b"c", b'"c"'),
        "surrogate": HEADER + first.replace(b"hi", b"\\ud800 \\ud83d\\ude00"),
        "nul": HEADER + bytes(20) + first + b"NaN\n",
        "native": b'{"journalFrame":1,"type":"x"}\n',
        "empty": b"",
    }


def native() -> dict[str, bytes]:
    """Journals of JSON frames, whole and not."""
    first, second = native_writer.message("a", None), native_writer.message("b", "a")
    rows = [
        native_writer.HEADER,
        native_writer.Row(first, None, "native-admission"),
        native_writer.Row(second, "retained-import", "native-recovery"),
        native_writer.request("q", "b"),
    ]
    whole = native_writer.journal(rows)
    lines = whole.splitlines(keepends=True)
    odd = native_writer.Row(' {"type":"custom","n":1e+03,"n":-0,"s":"\\ud800\u2028"} ')
    unknown = native_writer.Row(first, None, "native-future")
    return {
        "whole": whole,
        "header": lines[0],
        "v1": native_writer.journal([native_writer.header(version=...), first]),
        "torn": whole[:-9],
        "no-newline": whole[:-1],
        "flipped": whole.replace(b'"hi"', b'"ho"', 1),
        "cut": lines[0] + lines[2] + lines[3],
        "twice": lines[0] + lines[1] + lines[1],
        "odd": native_writer.journal([native_writer.HEADER, odd, "{}"]),
        "array": native_writer.journal([native_writer.HEADER, "[]", first]),
        "unknown": native_writer.journal([native_writer.HEADER, unknown]),
        "mixed": lines[0] + first.encode() + b"\n",
        "blank": lines[0] + b"\n" + lines[1],
    }


def associations() -> dict[str, bytes]:
    """Sessions with links, one kind of output each, and lines that are none."""
    own = links.source(sessionId="s", sessionFile=...)

    def events(purpose: str, detail: Any = ...) -> list[Any]:
        return links.both(source=own, purpose=purpose, purposeDetail=detail)

    link = links.link(source=own)
    part = links.part("history", source=own)
    head = links.header("s")
    outputs = {
        "assistant": [*events("main"), links.assistant(link)],
        "branch": [*events("summary", "branch"), links.branch_summary(link, fromHook=False)],
        "compaction": [*events("summary", "compaction"), links.compaction([part, part])],
        "planner": [*events("refine", "plan"), links.refinement(link)],
        "rollback": [*events("refine", "plan"), links.refinement(link, data={"rollbackOf": "r"})],
        "disagreeing": [*events("main"), *events("other"), links.assistant(link)],
        "epoch": [
            *events("summary", "compaction"),
            links.Piece(links.compaction([part]), qualification=links.EPOCH),
        ],
        "retained": [
            links.Piece(one, retained=True) for one in [*events("main"), links.assistant(link)]
        ],
    }
    made = {name: links.json_frames([head, *pieces]) for name, pieces in outputs.items()}
    made["plain"] = links.plain_lines([head, *outputs["assistant"]])
    made["torn"] = made["assistant"][:-40]
    made["headless"] = links.json_frames(outputs["assistant"])
    made["interior"] = made["assistant"].replace(b"\n", b"\n{\n", 1)
    return made


def entries() -> dict[str, bytes]:
    """Entries as bytes."""
    message = (MESSAGE % (b"a", b"null")).strip()
    return {
        "message": message,
        "label": b'{"type":"label","id":"b","parentId":"a","targetId":"a","label":"x"}',
        "compaction": b'{"type":"compaction","id":"c","firstKeptEntryId":"a","summary":""}',
        "usage": b'{"type":"message","id":"d","message":{"role":"assistant",'
        b'"usage":{"input":1,"output":2,"cost":{"total":0.5}}}}',
        "plain": b'{"type":"note","id":"e","text":"t"}',
        "numbers": b'{"type":"n","id":"f","v":[1.0,-0,1e300,18446744073709551616]}',
        "escapes": b'{"type":"n","id":"g\\u00e9","v":"\\ud83d\\ude00\\ud800"}',
        "deep": b'{"type":"n","id":"h","v":' + b"[" * 127 + b"]" * 127 + b"}",
        "deeper": b'{"type":"n","id":"h","v":' + b"[" * 128 + b"]" * 128 + b"}",
        "twice": b'{"type":"n","id":"i","id":"j","type":"m"}',
        "forged": b'{"type":"n","id":"k","details":{"baseContextEpoch":1}}',
        "spaced": b' { "type" : "n" , "id" : "l" , "a" : { } , "b" : [ ] } ',
    }


def selectors() -> dict[str, bytes]:
    """What a person could type."""
    typed = ("a", "ab", "abc", "2026", "Z.z", "outside.jsonl", "../outside.jsonl", "abd.jsonl")
    typed += ("~/x.jsonl", "/dev/null", "e1", "e10", "con.x", "a..b", "", ".hidden", "-n", "ä")
    typed += ("x" * 129, "/home/../etc", "sessions/a.jsonl", "a\0b", "a\n", "./a.jsonl")
    return {f"{number:02}": text.encode() for number, text in enumerate(typed)}


def stores() -> dict[str, bytes]:
    """Stores with one or several files."""
    files = journals()
    note = b'{"pid":%d,"host":"h","boot":"b","since":1700000000000}' % 2**22
    temporary, database, wal, owner, quarantine = 3, 4, 5, 7, 8
    made = {name: [(0, data)] for name, data in files.items() if not name.startswith("golden")}
    made["noted"] = [(0, files["clean"]), (owner, note)]
    made["indexed"] = [(0, files["torn"]), (database, b"SQLite format 3\0" + bytes(84))]
    made["index-and-wal"] = [(1, files["clean"]), (0, b""), (database, b""), (wal, b"?" * 33)]
    made["leftover"] = [(0, b'{"type":"session"}\n'), (temporary, b""), (quarantine, b"tail")]
    made["name"] = [(2, files["interior"])]
    return {name: store.joined(parts) for name, parts in made.items()}


def indexes() -> dict[str, bytes]:
    """Files instead of an index, patches of one, and what may lie beside it."""

    def patch(kind: int, *places: tuple[int, int, bytes]) -> bytes:
        pieces = (index.PATCH.pack(page, at, len(piece)) + piece for page, at, piece in places)
        return bytes((kind,)) + b"".join(pieces)

    wrong, right = index.PATCHES, index.PATCHES_REPAIRED
    return {
        "empty": b"",
        "no-database": b"\0nothing of a database",
        "header-only": b"\0SQLite format 3\0" + bytes(84),
        "whole": patch(wrong),
        "whole-to-write": patch(wrong | index.TO_WRITE),
        "flipped": patch(wrong, (3, 4000, b"?")),
        "flipped-right": patch(right, (3, 4000, b"?")),
        "to-write-right": patch(right | index.TO_WRITE, (3, 4000, b"?")),
        "user-version": patch(right, (0, 60, b"\0\0\0\2")),
        "page-size": patch(right, (0, 16, b"\2\0")),
        "two": patch(right, (1, 4020, b"\xff\xff"), (2, 4020, b"\0\0")),
        "wal": bytes((index.WAL,)) + b"\x37\x7f\x06\x82" + bytes(60),
    }


SEEDS: dict[str, Callable[[], dict[str, bytes]]] = {
    "frames": frames,
    "journal": journals,
    "header": headers,
    "payload": payloads,
    "legacy": legacy,
    "native": native,
    "associations": associations,
    "entry": entries,
    "selectors": selectors,
    "store": stores,
    "index": indexes,
}


def main() -> None:
    for name, make in SEEDS.items():
        folder = CORPUS / name
        folder.mkdir(parents=True, exist_ok=True)
        for seed, data in make().items():
            (folder / f"seed-{seed}").write_bytes(data)


if __name__ == "__main__":
    main()
