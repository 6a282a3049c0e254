"""Where the executor of a data folder is found: its lock and its control socket."""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from pathlib import Path

from valkyrie.store.layout import DataFolder

_LONGEST = 100
"""Unix socket paths may not be longer than about this."""


def socket_path(data: DataFolder) -> Path:
    """Beside the data, or in a private folder of ours when that path would be too long."""
    path = data.root / "executor.sock"
    if len(os.fsencode(path)) <= _LONGEST:
        return path
    name = hashlib.sha256(os.fsencode(data.root)).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"valkyrie-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} must belong to you and be closed to others")
    return folder / f"{name}.sock"


def home_mark(data: DataFolder) -> str:
    """Marks what belongs to this data folder of this machine, such as its sandboxes."""
    return hashlib.sha256(_machine() + os.fsencode(data.root)).hexdigest()[:16]


def _machine() -> bytes:
    """Folders of the same name on several machines are not the same; their sandboxes may be side by side."""
    for file in ("/etc/machine-id", "/var/lib/dbus/machine-id"):
        try:
            return Path(file).read_bytes() + os.fsencode(socket.gethostname())
        except OSError:
            continue
    return os.fsencode(socket.gethostname())
