"""The disk in memory moves and removes names as the local one does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treering.engine.journal.disk import LOCAL_DISK, Disk
from treering.engine.journal.memory_disk import MemoryDisk

PATHS = ("/a", "/b", "/a/c", "/b/c", "/a/c/d")
STEPS = st.one_of(
    st.tuples(
        st.sampled_from(("create", "make_folder", "make_folder", "remove_folder", "unlink")),
        st.sampled_from(PATHS),
    ),
    st.tuples(st.just("rename"), st.sampled_from(PATHS), st.sampled_from(PATHS)),
)


def apply(disk: Disk, top: str, step: tuple[str, ...]) -> int | None:
    """One operation; the number of its error, if it has one."""
    name, *paths = step
    try:
        made = getattr(disk, name)(*(top + path for path in paths))
    except OSError as error:
        return error.errno
    if name == "create":
        made.close()
    return None


def names(disk: Disk, folder: str) -> set[str]:
    """Every path below a folder."""
    found = set()
    for name in disk.list_folder(folder):
        path = f"{folder}/{name}"
        found.add(path)
        if disk.stat(path).is_folder:
            found |= names(disk, path)
    return found


@settings(max_examples=200, deadline=None)
@given(steps=st.lists(STEPS, min_size=3, max_size=14))
def test_names_are_moved_and_removed_as_on_the_local_disk(
    steps: list[tuple[str, ...]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    top = str(tmp_path_factory.mktemp("local"))
    memory = MemoryDisk()
    memory.make_folder("/top")
    for step in steps:
        real, got = apply(LOCAL_DISK, top, step), apply(memory, "/top", step)
        assert (got is None) == (real is None), (step, real, got)
        assert {path.removeprefix("/top") for path in names(memory, "/top")} == {
            path.removeprefix(top) for path in names(LOCAL_DISK, top)
        }
