"""Every limit of the engine, with its unit and its reason.

A limit refuses with :class:`~treering.engine.errors.LimitExceeded` (or a typed error of the
format); it never clips silently. Those that callers may change are defaults of arguments.
"""

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

PAYLOAD_BYTES_MAX: Final = 64 * MIB
"""Largest payload of a frame, stored and decoded (the format's own limit)."""

BLOB_BYTES_PER_PAYLOAD_MAX: Final = 16 * PAYLOAD_BYTES_MAX
"""BLOB bytes that the decoding of one payload may fetch: bounds the time a hostile table costs."""

CONTROL_PAYLOAD_BYTES_MAX: Final = 64 * KIB
"""Largest EPOCH_OPEN, EPOCH_ACTIVATE, EPOCH_CLOSE, LEAF or GAP payload that we write or parse."""

ZSTD_WINDOW_BYTES_MAX: Final = 64 * MIB
"""Largest zstd window that a decoder allocates (the format's own limit)."""

SEARCH_HASH_FACTOR: Final = 8
"""A search for frames hashes at most this many times the file (hostile headers), then refuses."""

SCAN_CHUNK_BYTES: Final = 1 * MIB
"""Bytes per ``pread`` of a sequential scan."""

REQUEST_RECORD_BYTES_MAX: Final = MIB - 1
"""Of one request record: the limit that is documented for them."""

CONTEXT_EPOCH_BYTES_MAX: Final = 16 * MIB
"""JSON of one recipe of a context epoch: the largest number of views fits, with long ids."""

CONTEXT_EPOCH_VIEWS_MAX: Final = 16_384
"""Views of one recipe: as many entries as one complete read gives."""

BATCH_BYTES_MAX: Final = 256 * MIB
"""Payload bytes of one atomic ``batch()``: its frames are held in memory until it is activated."""

WRITE_BYTES_MAX: Final = 8 * MIB
"""Bytes of one ``pwrite``; a larger batch takes several writes and still one sync."""

JSON_DEPTH_MAX: Final = 128
"""Nesting of an entry. Deeper values decode or fail depending on the caller's stack; this never."""

ENTRY_ID_CHARS_MAX: Final = 512
"""Characters of an entry id that we give or accept; longer ones in imports stay data."""

SESSION_ID_CHARS_MAX: Final = 128
"""Characters of a session id: it is a file name, with room for suffixes."""

COMPLETE_READ_ENTRIES: Final = 16_384
COMPLETE_READ_BYTES: Final = 64 * MIB
"""Defaults of complete reads, and of copies and imports (``None`` lifts them)."""

QUEUE_BYTES_MAX: Final = 64 * MIB
"""Encoded bytes that wait in the writer queue of a SessionManager; further appends wait outside."""

PAGE_ENTRIES: Final = 256
"""Default entries per page of a paged read."""

INDEX_LAG_FRAMES: Final = 32_768
INDEX_LAG_S: Final = 1.0
INDEX_IDLE_S: Final = 0.05
"""The background pass (index catch-up, and the sync of ``durability="os"``) comes this long after
the first append; its index part waits for a pause in appending, or for so many frames."""

INDEX_SLICE_ROWS: Final = 64
INDEX_SLICE_PAUSE_S: Final = 0.0002
"""The background catch-up rests this long after so many rows (about 1 ms of work): a thread that
gets the interpreter lock back only by force waits 5 ms for it at every system call."""

INDEX_TRANSACTION_ROWS: Final = 4_096
"""Rows per index transaction: bounds what a kill repeats, and how long a reader can wait."""

INDEX_CACHE_KIB: Final = 32 * KIB
"""Page cache of the index connection that writes."""
