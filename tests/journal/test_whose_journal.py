"""Whose journal it is when the header does not tell: ids in EPOCH frames and ids that are known."""

from __future__ import annotations

import pytest
from support import build, damage
from support.build import ID, OTHER_ID, Maker, look

from treering.engine.errors import LimitExceeded
from treering.engine.limits import CONTROL_PAYLOAD_BYTES_MAX


def test_one_frame_behind_a_shifted_start_is_still_of_this_journal() -> None:
    """Frame 0 alone, one byte too late: the header is believed, and this is interior damage."""
    made = Maker()
    made.open()
    found = look(damage.insert(made.publish().whole(), 128, b"?"))
    assert (found.case, found.beyond_count) == ("B", 1)


def test_without_a_header_a_frame_within_a_good_payload_is_no_frame_beyond() -> None:
    inner = Maker(first_sequence=90)
    inner.entry("hidden")
    made = Maker().started()
    made.open()
    made.frame(build.BLOB, inner.body)
    found = look(damage.zero(made.whole(), 0, 128) + b"torn")
    assert (found.case, found.place.sequence, found.beyond_count) == ("F", 5, 0)


def epochs(journal_id: bytes, count: int, blob_bytes: int = 0) -> bytes:
    """Frames of a journal that name it ``count`` times."""
    made = Maker(journal_id)
    for _ in range(count):
        made.open()
    if blob_bytes:
        made.frame(build.BLOB, bytes(blob_bytes))
    return made.body


def named(number: int) -> bytes:
    return bytes([number]) * 16


def test_the_only_frame_at_the_very_start_names_the_journal() -> None:
    """Its end is the end of the file as well."""
    found = look(epochs(ID, 1))
    assert (found.case, found.journal_id, found.beyond_count) == ("F", ID, 1)


def test_ids_that_are_named_most_often_are_tried() -> None:
    """Sixteen are; one that is named twice is among them wherever it stands."""
    once = b"".join(epochs(named(number), 1) for number in range(1, 17))
    assert look(once + epochs(named(17), 2)).journal_id == named(17)


def test_of_ids_named_as_often_the_first_sixteen_are_tried() -> None:
    """The seventeenth is not, however much it covers; of those that cover as much, the first."""
    once = b"".join(epochs(named(number), 1) for number in range(40, 24, -1))
    assert look(once + epochs(named(17), 1, 1000)).journal_id == named(40)


def test_covered_bytes_decide_and_not_how_often_an_id_is_named() -> None:
    assert look(epochs(ID, 2) + epochs(OTHER_ID, 1, 2000)).journal_id == OTHER_ID


def test_frame_0_at_the_very_start_counts_as_covered() -> None:
    other = Maker(OTHER_ID, first_sequence=5, epoch=1)
    other.close()
    first = epochs(ID, 1)
    assert len(first) > len(other.body)
    assert look(first + other.body).journal_id == ID


def padded(size: int) -> bytes:
    """A payload of that size which names the journal."""
    start = b'{"journal":"%s","more":"' % ID.hex().encode()
    return start + b"x" * (size - len(start) - 2) + b'"}'


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        pytest.param({"kind": build.EPOCH_OPEN}, True, id="EPOCH_OPEN"),
        pytest.param({"kind": build.EPOCH_CLOSE}, True, id="EPOCH_CLOSE"),
        pytest.param({"kind": build.EPOCH_OPEN, "raw": 7}, True, id="another raw length"),
        pytest.param({"kind": build.EPOCH_OPEN, "flags": 1}, True, id="flags"),
        pytest.param({"kind": build.EPOCH_OPEN, "codec": 1}, False, id="a codec"),
        pytest.param({"kind": build.ENTRY}, False, id="ENTRY"),
    ],
)
def test_which_frames_name_their_journal(fields: dict[str, int], names: bool) -> None:
    made = Maker()
    made.frame(payload=padded(100), **fields)  # type: ignore[arg-type]
    assert look(made.body).journal_id == (ID if names else None)


@pytest.mark.parametrize(("more", "names"), [(0, True), (1, False)])
def test_how_long_the_payload_that_names_a_journal_may_be(more: int, names: bool) -> None:
    made = Maker()
    made.frame(build.EPOCH_OPEN, padded(CONTROL_PAYLOAD_BYTES_MAX + more))
    assert look(made.body).journal_id == (ID if names else None)


def test_all_candidates_share_one_budget() -> None:
    """Ten ids with the same salt hash the whole file ten times; eight times is the limit."""
    made = Maker(first_sequence=1)
    made.frame(build.BLOB, bytes(10_000))
    same_salt = [ID[:8] + named(number)[:8] for number in range(10)]
    assert look(made.body, known_ids=same_salt[:8]).journal_id == same_salt[0]
    with pytest.raises(LimitExceeded):
        look(made.body, known_ids=same_salt)
