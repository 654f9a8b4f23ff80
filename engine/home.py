"""Where a store's files are, which names are allowed in it, and where nothing may be written.

``<home>`` is ``~/.base-context`` or BASE_CONTEXT_HOME; BASE_CONTEXT_SESSION_DIR moves the sessions
folder, and the folders of artifacts, index and trash are siblings of it.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from treering.engine import environment
from treering.engine.errors import Invalid, InvalidId, Unsupported
from treering.engine.limits import SESSION_ID_CHARS_MAX

JOURNAL_SUFFIX: Final = ".jsonl"

_PROTECTED_ROOTS: Final = (".prime", ".pi", ".prime-context")
"""State folders of older products, below the user's home: read from, never written to."""

_REMOTE_FILE_SYSTEMS: Final = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "ceph", "glusterfs", "afs", "lustre")
)
"""Locks, syncs or shared memory of these are not those of a local file system."""

_SESSION_ID: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?\Z")
_DEVICE_NAMES: Final = re.compile(r"(?:con|prn|aux|nul|com[0-9]|lpt[0-9])(?:\.|\Z)", re.IGNORECASE)


@dataclass(frozen=True)
class Store:
    """The folders of one store. ``top`` is the folder up to which names are synced."""

    top: str
    sessions: str

    @classmethod
    def at(cls, home: str | None = None, session_dir: str | None = None) -> Store:
        """The store that arguments and environment select.

        Raises:
            Invalid: the folder is not an absolute path.
        """
        if home is None and session_dir is None:
            session_dir = environment.variable("BASE_CONTEXT_SESSION_DIR")
        if session_dir is not None:
            sessions = _absolute(session_dir, "the sessions folder")
            return cls(os.path.dirname(sessions), sessions)
        chosen = home or environment.variable("BASE_CONTEXT_HOME") or "~/.base-context"
        top = _absolute(chosen, "the home folder")
        return cls(top, os.path.join(top, "sessions"))

    @classmethod
    def of_journal(cls, path: str) -> Store:
        """The store that a journal lies in: its folder is the sessions folder."""
        sessions = os.path.dirname(path)
        return cls(os.path.dirname(sessions), sessions)

    @property
    def artifacts(self) -> str:
        """Folder of the sessions' own files."""
        return os.path.join(os.path.dirname(self.sessions), "session-artifacts")

    @property
    def index(self) -> str:
        """Folder of derived files."""
        return os.path.join(os.path.dirname(self.sessions), "session-index")

    @property
    def trash(self) -> str:
        """Folder of deleted sessions and their tombstones."""
        return os.path.join(os.path.dirname(self.sessions), "session-trash")

    def journal_path(self, session_id: str) -> str:
        """Where the journal of that session is or will be.

        Raises:
            InvalidId: the id could leave the folder.
        """
        return os.path.join(self.sessions, check_session_id(session_id) + JOURNAL_SUFFIX)

    def artifact_folder(self, session_id: str) -> str:
        """The folder that the session owns for its files."""
        return os.path.join(self.artifacts, check_session_id(session_id))

    def quarantine_folder(self, session_id: str) -> str:
        """Where bytes go before they are cut, and journals before they are replaced."""
        return os.path.join(self.artifact_folder(session_id), "quarantine")

    def trash_folder(self, session_id: str) -> str:
        """Where a deleted session lies, whole, and its tombstone."""
        return os.path.join(self.trash, check_session_id(session_id))

    def owner_note(self, session_id: str) -> str:
        """The advisory note that says who owns the session."""
        return os.path.join(self.index, check_session_id(session_id) + ".owner.json")


def check_session_id(session_id: str) -> str:
    """The id, when it is a safe file name on every file system we know.

    Raises:
        InvalidId: empty, too long, not ``[A-Za-z0-9._-]``, not starting and ending with a letter
            or digit, or a device name.
    """
    if not isinstance(session_id, str):
        raise InvalidId(f"a session id is a string, not {type(session_id).__name__}")
    if len(session_id) > SESSION_ID_CHARS_MAX:
        raise InvalidId(
            f"session id of {len(session_id)} characters (at most {SESSION_ID_CHARS_MAX})"
        )
    if not _SESSION_ID.match(session_id) or ".." in session_id or _DEVICE_NAMES.match(session_id):
        raise InvalidId(
            f"session id {session_id!r} is not allowed",
            next_step="use letters, digits and '.', '_', '-', with a letter or digit at both ends",
        )
    return session_id


def check_path(path: str | os.PathLike[str]) -> str:
    """The path as text, when a system could take it.

    Raises:
        Invalid: it holds a NUL, or characters that stand for no bytes.
    """
    text = os.fsdecode(path)
    try:
        possible = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise Invalid(f"{text!r} cannot be a path")
    return text


def journal_file(path: str | os.PathLike[str]) -> str:
    """The absolute path of a journal; a link to the file itself is followed.

    Links in its folders stay as they are: index and artifacts lie beside the sessions folder by
    the name under which the store is used. (The lock is on the inode: no alias escapes it.)

    Raises:
        Invalid: no system takes such a path.
    """
    text = check_path(path)
    absolute = os.path.abspath(text)
    return os.path.realpath(absolute) if os.path.islink(absolute) else absolute


def session_id_of(path: str) -> str:
    """The session id that a journal's file name states.

    Raises:
        InvalidId: the name without its suffix is no session id.
    """
    return check_session_id(os.path.basename(path).removesuffix(JOURNAL_SUFFIX))


def check_writable_place(path: str, *, allow_remote: bool = False) -> None:
    """Refuse to write into an older product's state, or onto a file system that cannot keep it.

    Raises:
        Invalid: the path leads below ``~/.prime``, ``~/.pi`` or ``~/.prime-context``.
        Unsupported: a network or FUSE file system, unless asked for.
    """
    real = os.path.realpath(path)
    user_home = os.path.realpath(os.path.expanduser("~"))
    for name in _PROTECTED_ROOTS:
        root = os.path.join(user_home, name)
        if real == root or real.startswith(root + "/"):
            raise Invalid("state of an older product is never written to", path=path)
    if allow_remote or environment.variable("TREERING_ALLOW_REMOTE"):
        return
    kind = file_system_of(real)
    if kind in _REMOTE_FILE_SYSTEMS or kind.startswith("fuse"):
        raise Unsupported(
            f"the {kind} file system does not promise what a journal needs",
            path=path,
            next_step="use a local disk, or set TREERING_ALLOW_REMOTE=1 if you know better",
        )


def file_system_of(path: str) -> str:
    """The type of the file system that holds ``path`` (or its nearest existing parent)."""
    while True:
        try:
            device = os.stat(path).st_dev
            break
        except OSError:
            if path == os.path.dirname(path):
                return "unknown"
            path = os.path.dirname(path)  # not there, or not for us to see: its folder tells
    wanted = f"{os.major(device)}:{os.minor(device)}"
    for line in environment.mount_lines():
        fields = line.split(" ")
        if len(fields) > 6 and fields[2] == wanted and "-" in fields:
            return fields[fields.index("-") + 1]
    return "unknown"


def _absolute(path: str, what: str) -> str:
    path = check_path(path)
    expanded = os.path.expanduser(path)
    if not os.path.isabs(expanded):
        raise Invalid(f"{what} must be an absolute path, not {path!r}")
    return os.path.normpath(expanded)
