"""Read files that people name: regular ones, up to a size, so that no device or pipe is read without end."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular(path: Path | str, most: int) -> bytes:
    """Return what a regular file holds; OSError for anything else, and for more than `most` bytes.

    A pipe is not waited for: it is refused before anything is read.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(handle).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        with open(handle, "rb", closefd=False) as file:
            held = file.read(most + 1)
    finally:
        os.close(handle)
    if len(held) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most >> 20} MiB", str(path))
    return held
