"""Text from outside: read up to a size, made harmless for terminals, and matched with what was meant."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from benchmark_runner.errors import did_you_mean as did_you_mean

LONGEST_NAME = 200
LONGEST_PATH = 4096
_LONG_QUOTES = re.compile(r"'[^'\n/]{200,}'|\"[^\"\n/]{200,}\"")
_LONG_WORDS = re.compile(r"\S{211,}")
_CLOSING = "'\"`.,;:)]"


def shorten_names(text: str) -> str:
    """Return a message without names of more than 200 characters: their beginning says enough.

    Paths are names too, but as long as paths can be.
    """
    if len(text) <= LONGEST_NAME:
        return text
    text = _LONG_QUOTES.sub(lambda found: f"{found[0][:LONGEST_NAME]}…{found[0][0]}", text)
    return _LONG_WORDS.sub(_shortened, text)


def _shortened(found: re.Match[str]) -> str:
    word = found[0]
    return (
        word
        if "/" in word and len(word) <= LONGEST_PATH
        else f"{word[:LONGEST_NAME]}…{word[-1] if word[-1] in _CLOSING else ''}"
    )


# Read files that people name: regular ones, up to a size, so that no device or pipe is read without end.


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
