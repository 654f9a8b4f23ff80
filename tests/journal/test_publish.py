"""A new journal is there whole under its name, or nothing is."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import build

from treering.engine import environment
from treering.engine.errors import Conflict, Owned, StorageFull, TreeringError
from treering.engine.journal.admissible import Record
from treering.engine.journal.disk import LOCAL_DISK
from treering.engine.journal.publish import TEMPORARY_SUFFIX, NewJournal, sweep_stale
from treering.engine.limits import WRITE_BYTES_MAX
from treering.fuzz import oracle
from treering.fuzz.faulty_disk import FaultyDisk, Op

RECORDS = [build.SESSION_RECORD, build.entry("a"), build.entry("b", "long " * 200)]


@pytest.fixture
def disk() -> FaultyDisk:
    disk = FaultyDisk()
    disk.skip_syncs = True
    return disk


def empty_store(tmp_path: Path) -> build.Store:
    """No folder of it is there yet."""
    top = str(tmp_path / "home")
    return build.Store(
        top,
        os.path.join(top, "a", "sessions"),
        os.path.join(top, "a", "session-artifacts", "s1", "quarantine"),
        os.path.join(top, "a", "session-index", "s1.owner.json"),
    )


def left_behind(store: build.Store) -> list[str]:
    if not os.path.isdir(store.sessions):
        return []
    return [name for name in os.listdir(store.sessions) if name.endswith(TEMPORARY_SUFFIX)]


def check_whole(path: str) -> None:
    data = build.get(path)
    verdict = oracle.judge(data)
    assert verdict.case == "A"
    assert int.from_bytes(data[44:52], "little") == len(data) == verdict.offset
    assert [f.kind for f in verdict.frames] == [3, 1, 2, 2, 5]
    assert [f.unsynced for f in verdict.frames] == [0, 1, 2, 3, 0]
    assert build.look(data).report().problems == []


def test_whole_journal_with_everything_below_published(tmp_path: Path, disk: FaultyDisk) -> None:
    """A new file ends with EPOCH_CLOSE at its published length, holds no STAGED frame, and its
    maker goes on in epoch 2."""
    store = build.make_store(tmp_path)
    writer = build.create(store, RECORDS, disk=disk)
    check_whole(store.path())
    (frame,) = writer.append([build.entry("c")])
    assert (frame.epoch, frame.sequence, frame.unsynced) == (2, 6, 1)
    writer.close()
    assert left_behind(store) == []


@pytest.mark.parametrize("fresh", [True, False], ids=["no folders", "folders"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EACCES])
def test_failure_at_every_operation(fresh: bool, error: int, tmp_path: Path) -> None:
    """Whatever operation of a creation fails, there is nothing under the name or a whole journal,
    the error is typed, no descriptor stays open, and the next creation or open works."""
    fired = whole = nothing = 0
    for at in range(1, 300):
        make = empty_store if fresh else build.make_store
        store = make(tmp_path / str(at))
        os.makedirs(os.path.dirname(store.top), exist_ok=True)
        disk = FaultyDisk()
        disk.skip_syncs = True
        rule = disk.fail(None, at=at, error=error)
        try:
            writer = build.create(store, RECORDS, disk=disk, note=True)
        except TreeringError:
            assert rule.fired
            assert disk.open_files == 0
        else:
            writer.close()
        fired += rule.fired
        disk.heal()
        if os.path.lexists(store.path()):
            check_whole(store.path())
            build.reopen(store, disk=disk).owner.release()
            whole += 1
        else:
            build.create(store, RECORDS, disk=disk).close()
            nothing += 1
        if not rule.fired:
            break
    assert fired > 15
    assert whole > 3
    assert nothing > 5


@pytest.mark.parametrize("room", range(0, 1200, 83))
def test_full_disk_during_creation(room: int, tmp_path: Path, disk: FaultyDisk) -> None:
    """ENOSPC after any number of bytes: StorageFull, nothing under the name, nothing left over."""
    store = build.make_store(tmp_path)
    disk.quota = room
    try:
        build.create(store, RECORDS, disk=disk)
    except StorageFull:
        assert os.listdir(store.sessions) == []
    else:
        assert room > 800


def positions(log: list[Op], name: str, path: str = "") -> list[int]:
    return [i for i, op in enumerate(log) if op.name == name and path in op.path]


def test_F121_order_of_syncs(tmp_path: Path, disk: FaultyDisk) -> None:
    """Frames synced, EPOCH_CLOSE synced, published length synced, then the name, then the folder
    and every folder up to the top, then the acknowledgement."""
    store = empty_store(tmp_path)
    build.create(store, RECORDS, disk=disk)
    log = disk.take()
    (link,) = positions(log, "link")
    writes = [i for i, op in enumerate(log) if op.name == "pwrite" and op.path.endswith(".new")]
    syncs = [
        i for i, op in enumerate(log) if op.name in ("fsync", "fdatasync") and ".new" in op.path
    ]
    header = writes[-1]
    assert (log[header].first, log[header].second) == (0, 128)
    assert all(i < link for i in writes + syncs)
    assert syncs[-1] > header
    between = [i for i in syncs if i < header]
    assert len(between) >= 2
    assert between[-1] > writes[-2]
    behind = [op.path for op in log[link:] if op.name == "sync_folder"]
    for folder in (store.sessions, os.path.dirname(store.sessions), store.top):
        assert folder in behind
    unlink = next(i for i in positions(log, "unlink") if i > link)
    assert any(i < unlink for i in positions(log, "sync_folder", store.sessions) if i > link)


def test_F121_new_folders_are_synced_before_the_file(tmp_path: Path, disk: FaultyDisk) -> None:
    """Each folder that was made is followed by a sync of the folder that holds it."""
    store = empty_store(tmp_path)
    build.create(store, RECORDS, disk=disk)
    log = disk.take()
    made = positions(log, "make_folder")
    assert [log[i].path for i in made] == [
        store.top, os.path.dirname(store.sessions), store.sessions,
    ]  # fmt: skip
    (create,) = [i for i in positions(log, "create") if log[i].path.endswith(".new")]
    for i in made:
        parent = os.path.dirname(log[i].path)
        assert any(log[k].path == parent for k in positions(log, "sync_folder") if i < k < create)


def test_existing_folders_are_synced_too(tmp_path: Path, disk: FaultyDisk) -> None:
    """Folders are synced whoever made them: their maker may have died before its own sync."""
    store = build.make_store(tmp_path)
    build.create(store, RECORDS, disk=disk)
    log = disk.take()
    (link,) = positions(log, "link")
    synced = {op.path for op in log[link:] if op.name == "sync_folder"}
    assert {store.sessions, store.top} <= synced


def test_name_taken_is_conflict(tmp_path: Path, disk: FaultyDisk) -> None:
    """A name is never overwritten: whatever has it, the error is Conflict and it stays as it is."""
    store = build.make_store(tmp_path)
    build.create(store, RECORDS, disk=disk).close()
    data = build.get(store.path())
    with pytest.raises(Conflict):
        build.create(store, disk=disk)
    assert build.get(store.path()) == data
    os.mkdir(store.path("dir"))
    os.symlink("/nowhere/at/all", store.path("dangling"))
    with open(store.path("empty"), "wb"):
        pass
    for name in ("dir", "dangling", "empty"):
        with pytest.raises(Conflict):
            build.create(store, disk=disk, session_id=name)
    assert os.path.getsize(store.path("empty")) == 0
    assert os.readlink(store.path("dangling")) == "/nowhere/at/all"
    assert left_behind(store) == []
    assert disk.open_files == 0


def test_name_taken_at_the_last_moment(tmp_path: Path, disk: FaultyDisk) -> None:
    """Two makers of one name: the first has it, the second gets Conflict."""
    store = build.make_store(tmp_path)
    first = NewJournal(disk, store.sessions, "s1", purpose="create", top=store.top)
    second = NewJournal(disk, store.sessions, "s1", purpose="create", top=store.top)
    for new in (first, second):
        new.add(RECORDS)
    owner, _ = second.publish(store.path())
    with pytest.raises(Conflict):
        first.publish(store.path())
    first.abandon()
    owner.release()
    check_whole(store.path())
    assert left_behind(store) == []


def test_new_journal_is_owned_from_the_first_moment(tmp_path: Path, disk: FaultyDisk) -> None:
    """Between the name and the handle nobody else can own the new session."""
    store = build.make_store(tmp_path)
    seen: list[str] = []

    def try_open(op: Op) -> None:
        if op.name == "link":
            with pytest.raises(Owned):
                build.reopen(store)
            seen.append(op.path)

    disk.after = try_open
    writer = build.create(store, RECORDS, disk=disk)
    assert seen == [store.path()]
    with pytest.raises(Owned):
        build.reopen(store)
    writer.close()


@pytest.fixture
def umask_000() -> Iterator[None]:
    old = os.umask(0)
    yield
    os.umask(old)


@pytest.mark.usefixtures("umask_000")
def test_F42_modes_under_umask_000(tmp_path: Path) -> None:
    """Files 0600 and folders 0700 from the moment they are made, without a later chmod."""
    store = empty_store(tmp_path)
    disk = FaultyDisk()
    modes: dict[str, int] = {}

    def look(op: Op) -> None:
        for folder, _, files in os.walk(store.top):
            for path in [folder, *(os.path.join(folder, name) for name in files)]:
                modes.setdefault(path, stat.S_IMODE(os.lstat(path).st_mode))

    disk.before = look
    writer = build.create(store, RECORDS, disk=disk)
    writer.append([build.entry("torn")])
    os.makedirs(os.path.dirname(store.note), mode=0o700)
    build.crash(writer)
    os.truncate(store.path(), writer.size - 3)
    build.reopen(store, disk=disk, note=True)
    look(Op("end", ""))
    assert os.path.isdir(store.quarantine)
    for path, mode in modes.items():
        assert mode == (0o700 if os.path.isdir(path) else 0o600), path
    assert any(path.endswith(".tail") for path in modes)
    assert any(path.endswith(".owner.json") for path in modes)


def make_stale(store: build.Store, name: str = ".s9.deadbeef.new") -> str:
    path = os.path.join(store.sessions, name)
    with open(path, "wb") as file:
        file.write(b"half a journal")
    os.utime(path, (1, 1))
    return path


def test_stale_temporaries_are_swept(tmp_path: Path, disk: FaultyDisk) -> None:
    """What a crash left is removed by a later creation, once it is old and nobody holds it."""
    store = build.make_store(tmp_path)
    path = make_stale(store)
    young = make_stale(store, ".s8.deadbeef.new")
    os.utime(young)
    build.create(store, disk=disk)
    assert not os.path.exists(path)
    assert os.path.exists(young)


def test_held_temporaries_are_kept(tmp_path: Path, disk: FaultyDisk) -> None:
    """A journal that somebody is still making is not swept, however old."""
    store = build.make_store(tmp_path)
    making = NewJournal(disk, store.sessions, "s2", purpose="import", top=store.top)
    os.utime(making.temporary, (1, 1))
    build.create(store, disk=disk)
    assert os.path.exists(making.temporary)
    making.add([build.SESSION_RECORD])
    making.publish(store.path("s2"))[0].release()
    assert build.look_at(store.path("s2")).case == "A"


def test_F103_sweep_with_a_clock_far_ahead_keeps_held_ones(
    tmp_path: Path, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that jumped makes everything look old; what is held is kept all the same."""
    store = build.make_store(tmp_path)
    making = NewJournal(disk, store.sessions, "s2", purpose="create", top=store.top)
    now = environment.now_ms()
    monkeypatch.setattr(environment, "now_ms", lambda: now + 10**12)
    assert sweep_stale(disk, store.sessions) == []
    making.abandon()


def test_sweep_leaves_everything_else_alone(tmp_path: Path, disk: FaultyDisk) -> None:
    """Names that are not ours, folders and links are not removed or followed; no error stops it."""
    store = build.make_store(tmp_path)
    keep = [make_stale(store, name) for name in (".hidden", "s3.new", ".s4.new.bak", "s5.jsonl")]
    os.mkdir(os.path.join(store.sessions, ".folder.new"))
    os.mkfifo(os.path.join(store.sessions, ".fifo.new"))
    os.symlink(os.path.join(store.sessions, ".loop.new"), os.path.join(store.sessions, ".loop.new"))
    outside = os.path.join(store.top, "outside")
    with open(outside, "wb") as file:
        file.write(b"precious")
    os.utime(outside, (1, 1))
    os.symlink(outside, os.path.join(store.sessions, ".link.new"))
    build.create(store, disk=disk).close()
    assert all(os.path.exists(path) for path in keep)
    assert build.get(outside) == b"precious"
    assert disk.open_files == 0


def test_crash_between_link_and_unlink_keeps_the_session(tmp_path: Path, disk: FaultyDisk) -> None:
    """A temporary name that is a second name of a published journal can be swept: the session
    stays, and stays whole."""
    store = build.make_store(tmp_path)
    disk.fail("unlink", times=100)
    with pytest.raises(TreeringError):
        build.create(store, RECORDS, disk=disk)
    disk.heal()
    (name,) = left_behind(store)
    os.utime(os.path.join(store.sessions, name), (1, 1))
    sweep_stale(LOCAL_DISK, store.sessions)
    assert left_behind(store) == []
    check_whole(store.path())


def test_abandon_leaves_nothing(tmp_path: Path, disk: FaultyDisk) -> None:
    """An abandoned journal is gone, twice is once, and its name is free."""
    store = build.make_store(tmp_path)
    new = NewJournal(disk, store.sessions, "s1", purpose="import", top=store.top)
    new.add(RECORDS)
    new.abandon()
    new.abandon()
    assert os.listdir(store.sessions) == []
    assert disk.open_files == 0


def test_memory_of_a_long_creation_is_bounded(tmp_path: Path, disk: FaultyDisk) -> None:
    """Frames go to the file in writes of bounded size while they are added, however many come in
    one call."""
    store = build.make_store(tmp_path)
    records = [Record(2, b"x" * 100_000) for _ in range(300)]
    build.create(store, [build.SESSION_RECORD, *records], disk=disk, compression=False)
    writes = [op.second for op in disk.take() if op.name == "pwrite"]
    assert sum(writes) > 30_000_000
    assert max(writes) <= WRITE_BYTES_MAX + 2 * 2**20
    assert build.look_at(store.path()).case == "A"


def test_replace_keeps_the_old_file_aside(tmp_path: Path, disk: FaultyDisk) -> None:
    """A replacement is linked aside first, that folder synced, then renamed over the name, then the
    folder synced; at every failure one whole journal has the name and the old bytes exist."""
    for at in range(1, 200):
        store = build.make_store(tmp_path / str(at))
        old = build.create(store, RECORDS, disk=disk)
        old.close()
        data = build.get(store.path())
        aside = os.path.join(store.quarantine, "old.jsonl")
        disk.heal()
        disk.take()
        new = NewJournal(disk, store.sessions, "s1", purpose="repair", top=store.top)
        new.add([build.SESSION_RECORD])
        rule = disk.fail(None, at=at)
        try:
            new.replace(store.path(), aside)[0].release()
        except TreeringError:
            new.abandon()
        disk.heal()
        if not rule.fired:
            break
        now = build.get(store.path())
        assert oracle.judge(now).case == "A"
        assert now == data or build.get(aside) == data
    else:
        pytest.fail("it never ran through")
    log = disk.take()
    (link,) = positions(log, "link", "old.jsonl")
    (rename,) = positions(log, "rename")
    assert any(link < i < rename for i in positions(log, "sync_folder", store.quarantine))
    assert any(i > rename for i in positions(log, "sync_folder", store.sessions))
    assert build.get(aside) == data
    assert build.get(store.path()) != data
