"""Corners of the commands: what goes away while it is looked at, what the system refuses, texts and
files that nobody makes on purpose. Each of them is one line and an exit code."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from support.build import ENTRY, LEAF, Maker, compact
from tools_helpers import fine, message, new_session, run

from treering.engine.errors import Damaged, NotFound, OutcomeUnknown, StorageError
from treering.engine.home import Store
from treering.engine.journal import disk
from treering.engine.journal.disk import Disk, File
from treering.engine.journal.shared import SharedFrames
from treering.engine.session import listing, texts
from treering.engine.session.session import Session
from treering.engine.session.view import SessionView
from treering.fuzz.oracle import judge
from treering.index import IndexFault, SessionIndex, files
from treering.tools import entry, fsck, next_steps, output, viewing
from treering.tools.fsck import check_session
from treering.tools.pool import run_all


def put(home: Path, maker: Maker, name: str = "s") -> str:
    path = home / "sessions" / f"{name}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(maker.whole())
    return str(path)


def index_of(path: str) -> str:
    found = files.current(Store.of_journal(path).index, Path(path).stem)
    assert found is not None
    return found


def undecodable(maker: Maker, kind: int = ENTRY) -> None:
    maker.frame(kind, b"no zstd at all", codec=1, raw=100)


def started() -> Maker:
    maker = Maker().started()
    maker.open()
    return maker


class TestEntry:
    @pytest.mark.parametrize(
        ("error", "code", "said"),
        [
            (click.ClickException("a click error"), 1, "error: a click error"),
            (IndexFault("/x", "is bad"), 3, "`treering reindex` builds it anew"),
            (BrokenPipeError(), 141, ""),
            (click.Abort(), 130, "error: interrupted"),
        ],
    )
    def test_every_end_has_a_code(
        self, error: Exception, code: int, said: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        @click.command()
        def failing() -> None:
            raise error

        assert entry.main([], command=failing) == code
        told = capsys.readouterr().err
        assert said in told
        assert told.count("\n") == bool(said)

    def test_an_output_that_fails_at_the_end(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The last flush fails: exit code 3 when all went well, else the code of what went wrong."""

        class Full(io.StringIO):
            def flush(self) -> None:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        @click.command()
        @click.argument("code", type=int)
        def ending(code: int) -> None:
            raise click.exceptions.Exit(code)

        monkeypatch.setattr(sys, "stdout", Full())
        assert [entry.main([code], command=ending) for code in ("0", "1")] == [3, 1]
        assert capsys.readouterr().err == "treering: error: No space left on device\n"

    def test_a_group_alone_shows_its_commands(self) -> None:
        ran = run("session")
        assert ran.code == 2
        assert "Usage:" in ran.stderr
        assert "export" in ran.stderr
        assert "error" not in ran.stderr


class TestOutput:
    def test_a_text_that_fits_is_whole(self) -> None:
        """Combining characters take no column: nothing is missing, so nothing is cut."""
        text = "e\u0301" * 6
        assert output.clip(text, 6) == text
        assert output.clip(text, 5) == "e\u0301" * 4 + "…"
        assert output.clip("木" * 5, 6) == "木木…"
        assert output.clip("木" * 5, 0) == ""

    @pytest.mark.parametrize(
        ("count", "text"),
        [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2.5e12, "2.5 TB"), (7e16, "70000.0 TB")],
    )
    def test_sizes(self, count: float, text: str) -> None:
        assert output.size_text(count) == text

    def test_paths_on_a_terminal(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Escaped where a terminal would obey, exact where a program reads."""
        path = "/x/\x1b[2J"
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        output.say_path(path)
        output.write_bytes(b'{"plain":1}')
        assert capsys.readouterr().out == '/x/\\x1b[2J\n{"plain":1}'

    def test_a_report_that_cannot_be_printed(self, capsys: pytest.CaptureFixture[str]) -> None:
        """Two facts, and exit code 1: whoever reads of a failure alone does it twice."""
        with pytest.raises(click.exceptions.Exit) as stop, output.reporting("it was done"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        assert stop.value.exit_code == 1
        told = capsys.readouterr().err
        assert "it was done; this could not be reported: No space left on device" in told


class TestPool:
    def test_a_worker_that_dies(self) -> None:
        with pytest.raises(StorageError, match="a worker process died"):
            list(run_all(eval, ["__import__('os')._exit(1)"] * 2, jobs=2))

    def test_workers_leave_interrupts_to_the_command(self) -> None:
        asked = "int(__import__('signal').getsignal(2) is __import__('signal').SIG_IGN)"
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            assert list(run_all(eval, [asked] * 2, jobs=2)) == [1, 1]
            assert list(run_all(eval, [asked] * 2, jobs=1)) == [0, 0]
        finally:
            signal.signal(signal.SIGINT, before)


class TestFsck:
    def test_undecodable_frames_around_damage(self, home: Path) -> None:
        """It is named with its place, and so is one before the damage; each of them once."""
        maker = started()
        undecodable(maker)
        before = maker.frames[-1]
        bad = maker.entry("bad")
        maker.sync()
        undecodable(maker)
        lost = maker.frames[-1]
        maker.close()
        path = put(home, maker)
        data = bytearray(maker.whole())
        data[bad.offset + 50] ^= 1
        Path(path).write_bytes(data)
        result = check_session(path, with_index=False)
        assert [(f.kind, f.offset) for f in result.findings] == [
            ("interior", bad.offset),
            ("undecodable", before.offset),
            ("undecodable", lost.offset),
        ]

    def test_more_differences_than_are_shown(self, home: Path) -> None:
        path = new_session(home, "a", "b", "c", "d", "e")
        with SessionIndex.open(index_of(path)) as index:
            index._db.execute("UPDATE entry SET depth = depth + 1")
        result = check_session(path, with_index=True)
        (finding,) = result.findings
        assert len(result.index.differences) > 3
        assert finding.what.endswith(f"and {len(result.index.differences) - 3} more")

    def test_a_watermark_that_does_not_verify(self, home: Path) -> None:
        """It proves nothing, and is named as a note."""
        path = new_session(home, "a")
        with SessionIndex.open(index_of(path)) as index:
            index.set_watermark(b"x" * 64)
        result = check_session(path, with_index=True)
        assert result.ok
        (note,) = result.findings
        assert (note.kind, note.file) == ("leftover", index_of(path))
        assert "does not verify" in note.what

    def test_an_index_that_is_not_yet_filled(self, home: Path) -> None:
        maker = started()
        maker.entry("a")
        maker.close()
        path = put(home, maker)
        folder = Store.of_journal(path).index
        files.ensure_folder(folder)
        with SessionIndex.open(files.next_path(folder, "s"), create=True):
            pass
        result = check_session(path, with_index=True)
        assert (result.ok, result.index.state) == (True, "behind")

    def test_an_index_of_a_journal_of_a_newer_release(self, home: Path) -> None:
        """Nobody could build it anew: it is not compared, and not blamed."""
        path = new_session(home, "a")
        old = Path(path).read_bytes()
        assert check_session(path, with_index=True).index.state == "equal"
        last = judge(old).frames[-1]
        more = Maker(old[28:44], first_sequence=last.sequence + 1, epoch=last.epoch)
        more.previous = last.revision[:8]
        more.open()
        more.frame(0x55, b"{}")
        more.close()
        Path(path).write_bytes(old + more.body)
        result = check_session(path, with_index=True)
        assert result.case == "A"
        assert [finding.kind for finding in result.findings] == ["not-understood"]
        assert result.index.state == "not compared: the journal has frames of a newer release"

    def test_an_index_folder_that_is_a_loop(self, home: Path) -> None:
        """Neither the index nor its name can be had: the folder is named."""
        path = new_session(home, "a")
        folder = Path(Store.of_journal(path).index)
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        folder.symlink_to(folder)
        result = check_session(path, with_index=True)
        (finding,) = result.findings
        assert (finding.kind, finding.file) == ("index", str(folder))

    def test_what_goes_away_meanwhile_has_no_size(self, tmp_path: Path) -> None:
        gone = fsck.leftover(str(tmp_path / ".s.0123abcd.new"))
        assert (gone.kind, gone.offset, gone.length) == ("leftover", None, None)
        assert fsck.temporaries(Store.at(str(tmp_path / "nowhere"))) == []

    def test_a_size_that_the_system_refuses(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Nothing is known about the session then: it is not called damaged."""
        path = new_session(home, "a")
        real, calls = disk.LocalFile.stat, []

        def failing(self: disk.LocalFile) -> disk.FileStat:
            calls.append(1)
            if len(calls) == 2:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(self)

        monkeypatch.setattr(fsck, "hint_of", lambda *_: None)
        monkeypatch.setattr(disk.LocalFile, "stat", failing)
        result = check_session(path, with_index=False)
        (finding,) = result.findings
        assert (finding.kind, finding.what) == ("unreadable", "Input/output error")
        assert result.could_not_run
        assert result.case is None

    def test_a_header_that_breaks_while_it_is_checked(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What cannot be exported any more is read with `treering dump`."""
        maker = started()
        undecodable(maker)
        maker.frame(0x55, b"{}")
        path = put(home, maker)

        def broken(self: SharedFrames, frame: Any) -> bytes:
            raise Damaged("the frame does not verify any more")

        monkeypatch.setattr(SharedFrames, "payload_of", broken)
        found = {
            finding.kind: finding for finding in check_session(path, with_index=False).findings
        }
        assert found["not-understood"].next == f"treering dump {path}"


class TestNextSteps:
    def test_a_name_that_is_taken(self, tmp_path: Path) -> None:
        for name in ("odd-name", "odd-name-2"):
            (tmp_path / f"{name}.jsonl").write_bytes(b"")
        path = str(tmp_path / "odd name.jsonl")
        said = next_steps.for_name(path, "odd name")
        assert said.endswith(f"{tmp_path}/odd-name-3.jsonl")

    def test_a_session_that_is_gone(self, home: Path) -> None:
        path = str(home / "sessions" / "gone.jsonl")
        kind, then = next_steps.for_failure(path, NotFound("no such file", path=path))
        assert (kind, then) == ("missing", f"treering session list --home {home}")

    def test_a_folder_that_may_not_be_entered(self, tmp_path: Path) -> None:
        """The file cannot be looked at: its folder is what helps."""
        path = str(tmp_path / "closed" / "s.jsonl")
        kind, then = next_steps.for_failure(path, PermissionError(errno.EACCES, "no"))
        assert (kind, then) == ("unreadable", f"chmod u+rwx -- {tmp_path}/closed")

    @pytest.mark.parametrize(("uid", "then"), [(0, "chmod u+rw -- {}"), (1, "sudo chown -- ")])
    def test_a_file_that_may_not_be_read(
        self, uid: int, then: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "s.jsonl"
        path.write_bytes(b"")
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + uid)
        _, said = next_steps.for_failure(str(path), PermissionError(errno.EACCES, "no"))
        assert said.startswith(then.format(path))

    def test_without_a_default_store(
        self, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A home that is no path leads nowhere: the command names the store itself."""
        monkeypatch.setenv("BASE_CONTEXT_HOME", "not/absolute")
        path = str(home / "sessions" / "gone.jsonl")
        _, then = next_steps.for_failure(path, NotFound("no such file", path=path))
        assert then == f"treering session list --home {home}"


class TestViewing:
    def test_a_torn_end_beside_its_owner(self, home: Path) -> None:
        """It is being written, as far as anybody can tell: nothing is to be repaired."""
        path = new_session(home, "a")
        with Session.open(path) as session:
            session.append(message("b"))
            with open(path, "ab") as file:
                file.write(b"half")
            with SessionView.open(path) as view:
                said = viewing.trouble(view)
            os.truncate(path, os.path.getsize(path) - 4)
        assert said is not None
        assert f"process {os.getpid()} is using the session" in said
        assert "next:" not in said

    def test_an_unreadable_entry_hides_no_neighbour(self, home: Path) -> None:
        maker = started()
        maker.entry("a")
        undecodable(maker)
        maker.frame(ENTRY, compact({"type": "message", "id": "b", "parentId": "a"}))
        path = put(home, maker)
        with SessionView.open(path) as view:
            (page,) = viewing.branch_pages(view)
            assert [(name, seen is not None) for name, seen in page] == [("a", True), ("b", True)]
            rows = viewing.rows_after(view, 0)
            loaded = list(viewing.load(view, rows))
            assert [seen is not None for _, seen in loaded] == [True, False, True]
            with pytest.raises(Damaged):
                view.entries()

    def test_a_branch_with_an_unreadable_entry(self, home: Path) -> None:
        """The page is read one by one: the entry that cannot be had is named by its id."""
        maker = started()
        maker.entry("a")
        bad = maker.frame(ENTRY, compact({"type": "message", "id": "b", "parentId": "a"}))
        maker.frame(ENTRY, compact({"type": "message", "id": "c", "parentId": "b"}))
        path = put(home, maker)
        with SessionView.open(path) as view:
            with open(path, "r+b") as file:  # it goes bad while it is looked at
                file.seek(bad.offset + 50)
                file.write(b"\xff")
            (page,) = viewing.branch_pages(view)
        assert [(name, seen is not None) for name, seen in page] == [
            ("a", True),
            ("b", False),
            ("c", True),
        ]


def named(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "session_info", "id": "n", "name": text, **more}


class TestUnreadableNames:
    @pytest.fixture
    def path(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> str:
        """A session whose name goes bad on disk after its index was made."""
        maker = started()
        maker.frame(ENTRY, compact(message("hello") | {"id": "a"}))
        maker.frame(ENTRY, compact(named("x") | {"parentId": "a"}))

        def refused(self: SessionView) -> str:
            raise Damaged("the name does not verify any more")

        monkeypatch.setattr(SessionView, "name", property(refused))
        return put(home, maker)

    def test_it_is_listed(self, home: Path) -> None:
        """A name whose payload is lost says nothing; the session is listed all the same."""
        maker = started()
        maker.frame(ENTRY, compact(message("hello") | {"id": "a"}))
        maker.frame(ENTRY, b"not zstd", codec=1, raw=100)
        put(home, maker)
        (row,) = fine("session", "list", "--json", home=home).json
        assert (row["id"], row["name"], row["status"], row["entries"]) == ("s", None, "ok", 2)
        assert row["firstMessage"] == "hello"

    def test_it_is_shown(self, path: str) -> None:
        assert "[the name does not verify any more]" in fine("session", "show", path).out
        assert fine("session", "info", path, "--json").json["name"] is None


class TestListing:
    def test_a_time_that_no_date_can_say(self, home: Path) -> None:
        """A time zone can push a valid timestamp out of the years that can be written."""
        maker = started()
        far = {"id": "a", "timestamp": "9999-12-31T23:59:59-14:00"}
        maker.frame(ENTRY, compact(message("hello") | far))
        put(home, maker)
        (row,) = fine("session", "list", "--json", home=home).json
        assert (row["lastActivity"], row["messages"]) == (None, 1)

    @pytest.mark.parametrize(
        ("error", "reason"),
        [
            (StorageError("a read failed"), "a read failed"),
            (OSError(errno.EIO, "it broke"), "it broke"),
            (MemoryError(), "out of memory"),
        ],
    )
    def test_what_the_system_refuses_is_no_damage(
        self, error: Exception, reason: str, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """And it hides no other session."""
        new_session(home, "a", session_id="fine")
        bad = new_session(home, "b", session_id="bad")
        real = listing.open_regular

        def open_(disk: Disk, path: str, **more: Any) -> File:
            if path == bad:
                raise error
            return real(disk, path, **more)

        monkeypatch.setattr(listing, "open_regular", open_)
        rows = {row["id"]: row for row in run("session", "list", "--json", home=home).json}
        assert rows["fine"]["status"] == "ok"
        assert rows["bad"]["status"] == "unreadable"
        assert reason in rows["bad"]["reason"]


class TestInformation:
    def test_provenance_that_is_no_json(self, home: Path) -> None:
        maker = Maker()
        maker.open()
        maker.session()
        maker.frame(11, b"not json\0")
        maker.close()
        path = put(home, maker.publish())
        assert fine("session", "info", path, "--json").json["provenance"] == {"unreadable": True}

    def test_an_index_folder_that_is_a_loop(self, home: Path) -> None:
        path = put(home, started())
        folder = Path(Store.of_journal(path).index)
        folder.symlink_to(folder)
        assert fine("session", "info", path, "--json").json["index"].startswith("unusable: ")

    def test_who_is_using_it(self, home: Path) -> None:
        path = new_session(home, "a")
        with Session.open(path) as session:
            session.append(message("b"))
            out = fine("session", "info", path).out
        assert f"in use      by process {os.getpid()} since 20" in out
        assert "in use" not in fine("session", "info", path).out


class TestShowing:
    @pytest.mark.parametrize(
        "raw", [b"[" * 5000, b"\xff", b'{"a":NaN', b"[1]", b'{"a":' * 200 + b"1" + b"}" * 200]
    )
    def test_members_of_what_has_none(self, raw: bytes) -> None:
        assert texts.members_of(raw) == {}

    def test_images_and_calls_are_counted(self) -> None:
        image = {"type": "image", "data": "x", "mimeType": "image/png"}
        for count, said in ((1, "[image]"), (2, "[2 images]")):
            found = {"role": "user", "content": [{"type": "text", "text": "see"}, *[image] * count]}
            assert texts._message(found) == ("user", f"see {said}")
        call = {"type": "toolCall", "name": "run", "arguments": {}}
        role, text = texts._message({"role": "assistant", "content": [call]})
        assert (role, text.startswith("calls run")) == ("assistant", True)

    def test_a_value_that_cannot_be_written(self) -> None:
        deep: list[Any] = []
        for _ in range(100_000):
            deep = [deep]
        assert texts.json_text(deep) == "..."
        assert texts.json_text({"a": 1}) == '{"a": 1}'


class TestShowCommands:
    def test_a_payload_that_is_no_json_is_shown_as_it_is(self, home: Path) -> None:
        maker = started()
        maker.frame(ENTRY, b'{"type":"message","id":"a"} \xff')
        path = put(home, maker)
        with SessionView.open(path) as view:
            (shown,) = view.entries()
        out = fine("session", "show", path, "--entry", shown.id).out
        assert out == '{"type":"message","id":"a"} \\xff\n'

    @pytest.mark.parametrize("name", ["", "a\0b"])
    def test_an_export_to_no_name(self, name: str, home: Path) -> None:
        ran = run("session", "export", new_session(home, "a"), "-o", name)
        assert ran.code != 0
        assert "no file can have this name" in ran.stderr


class TestMaking:
    def test_a_session_whose_name_was_not_set(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two facts: there is a session, and it has no name."""

        def refused(self: Session, name: str) -> str:
            raise OutcomeUnknown("a sync failed")

        monkeypatch.setattr(Session, "set_name", refused)
        ran = run("session", "new", "--name", "x", home=home)
        assert ran.code == OutcomeUnknown("").exit_code
        (made,) = (home / "sessions").glob("*.jsonl")
        assert f"the session was made: {made}; but its name was not set" in ran.stderr

    @pytest.mark.parametrize("name", ["", "a\0b"])
    def test_a_quickstart_in_no_folder(self, name: str) -> None:
        ran = run("quickstart", "--keep", name)
        assert ran.code == 2
        assert "--keep needs the name of a new folder" in ran.stderr

    def test_a_selector_that_names_nothing(self, home: Path) -> None:
        ran = run("fsck", "nowhere.jsonl", home=home)
        assert ran.code != 0
        assert "no such file" in ran.stderr
        new_session(home, "a", session_id="s")
        fine("fsck", "s.jsonl", home=home)


class TestImport:
    def source(self, tmp_path: Path, *lines: bytes) -> Path:
        file = tmp_path / "source"
        header = {"type": "session", "version": 3, "id": "x", "cwd": "/"}
        file.write_bytes(b"\n".join([json.dumps(header).encode(), *lines, b""]))
        return file

    def test_a_preview_of_nothing(self, home: Path, tmp_path: Path) -> None:
        ran = run("session", "import", "--preview", tmp_path / "missing", home=home)
        assert (ran.code, ran.stdout) == (1, b"")
        assert ran.stderr.count("\n") == 1

    def test_a_system_error_is_one_line(
        self, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from treering.engine.transfer import importing

        def failing(*_: object, **__: object) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(importing, "import_session", failing)
        file = self.source(tmp_path, b'{"type":"custom","id":"a"}')
        ran = run("session", "import", file, home=home)
        assert ran.code == 3
        assert ran.stderr.count("\n") == 1
        assert "Input/output error" in ran.stderr

    def test_an_import_that_cannot_be_told_is_done(
        self, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(output, "say_path", full)
        file = self.source(tmp_path, b'{"type":"custom","id":"a","parentId":null}')
        ran = run("session", "import", file, home=home)
        assert ran.code == 1
        (made,) = (home / "sessions").glob("*.jsonl")
        assert f"session imported to {made}; this could not be reported" in ran.stderr

    def test_many_pieces_that_are_left_out(self, home: Path, tmp_path: Path) -> None:
        """The first ones are told one by one, and how many more there are."""
        good = b'{"type":"custom","id":"a","parentId":null}'
        two = b'{"type":"custom","id":"b","parentId":"a"}{"type":"custom","id":"c","parentId":"b"}'
        file = self.source(tmp_path, good, two, *[b"bad %d" % n for n in range(40)])
        ran = fine("session", "import", "--salvage", file, home=home)
        told = ran.out + ran.stderr
        assert "lines that held several records, taken apart: 3" in told
        assert "more pieces" in told
        listed = told.count("left out: line ")
        assert f"left out: {40 - listed} more pieces" in told


class TestReindex:
    def test_no_memory(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = new_session(home, "a")

        def exhausted(*_: object) -> None:
            raise MemoryError

        monkeypatch.setattr(files, "remove_all", exhausted)
        ran = run("reindex", path)
        assert ran.code == 3
        assert "MemoryError" in ran.stderr + ran.out
        with Session.open(path) as session:  # the lock was given back
            assert session.counts()["entries"] == 1


class TestRepairing:
    def test_an_index_that_cannot_be_built_is_told(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The journal is repaired all the same."""
        path = new_session(home, "one", "two-two", "three")
        data = bytearray(Path(path).read_bytes())
        data[data.index(b"two-two")] ^= 1
        Path(path).write_bytes(data)

        def full(folder: str, session_id: str) -> None:
            raise IndexFault(folder, "no space left")

        monkeypatch.setattr(files, "remove_all", full)
        ran = fine("repair", path)
        assert "the journal is repaired; its index is not built: " in ran.stderr
        monkeypatch.undo()
        with SessionView.open(path) as view:
            assert view.counts()["entries"] == 2

    def test_a_leaf_is_no_entry_of_a_branch(self, home: Path) -> None:
        """LEAF frames in quarantine are not appended again: they are no entries."""
        maker = started()
        maker.entry("a")
        start = maker.end
        maker.frame(LEAF, compact({"leaf": None}))
        maker.frame(ENTRY, compact({"type": "custom", "id": "b", "parentId": "a"}))
        path = put(home, maker)
        Path(path).write_bytes(maker.whole()[:start])
        folder = home / "session-artifacts" / "s" / "quarantine"
        folder.mkdir(parents=True)
        (folder / f"{start}-{'0' * 16}.tail").write_bytes(maker.whole()[start:])
        found = fine("repair", path, "--readmit", "--json").json
        assert (found["readmitted"], found["left"]) == (["b"], [])


def test_importing_the_command_runs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    import importlib

    assert importlib.import_module("treering.tools.__main__").main is entry.main
    assert capsys.readouterr() == ("", "")
