"""Small file systems of our own: really full, read-only, turned read-only.

Each is a ``tmpfs``, or an ext4 on a loop device, in a mount namespace that ends with the process:
nothing outside sees it, and nothing has to be unmounted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from typing import Final

from treering.fuzz.syscalls.mounted import CHECKS, WITHOUT_MOUNT
from treering.fuzz.syscalls.runs import UnavailableError

SIZE: Final = "600k"
FILE_SYSTEMS: Final = {
    "tmpfs": f'mount -t tmpfs -o size={SIZE} none "$0" || exit 77; exec "$@"',
    "ext4": (
        'truncate -s 3M "$0.img" && mkfs.ext4 -q -F -m 0 -O ^has_journal "$0.img"'
        ' && mount -o loop "$0.img" "$0" || exit 77; exec "$@"'
    ),
}
"""What mounts each at ``$0`` and goes on with the words behind. ext4 finds out at a write or a sync
that there is no space, as its blocks are given out late."""

__all__ = ["CHECKS", "check"]


def check(name: str, folder: str, file_system: str = "tmpfs") -> list[str]:
    """Run one of the checks on a file system mounted at ``folder`` (made here); what it broke.

    Raises:
        UnavailableError: mounting is not possible here.
    """
    mounted = os.geteuid() == 0
    if not mounted and name not in WITHOUT_MOUNT:
        raise UnavailableError("mounting needs root")
    if mounted and shutil.which("unshare") is None:
        raise UnavailableError("unshare is not installed")
    os.makedirs(folder)
    words = [sys.executable, "-m", "treering.fuzz.syscalls.mounted", name, folder]
    if mounted:
        words = ["unshare", "-m", "sh", "-c", FILE_SYSTEMS[file_system], folder, *words]
    done = subprocess.run(
        words,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "TREERING_TRACEBACK": ""},
    )
    if done.returncode == 77 or b"unshare" in done.stderr:
        raise UnavailableError("mounting is not allowed here")
    told = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or not told or told[-1] is not None:
        told = [*told, f"the check itself ended: {done.stderr[-1000:].decode()}"]
    return [line for line in told if line is not None]
