"""Text from outside: read up to a size, made harmless for terminals, and matched with what was meant."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from benchmark_runner.errors import did_you_mean as did_you_mean

_ESCAPES = re.compile(
    r"\x1b(?:\][^\x07\x1b]*(?:\x07|\x1b\\)?|[PX^_][^\x1b]*(?:\x1b\\)?|\[[0-?]*[ -/]*[@-~]|[ -~])?"
)
_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
_COLORS = re.compile(r"(\x1b\[(?:0|(?:[12]|3[1-6])(?:;(?:[12]|3[1-6]))*)m)")
"""Those of `layout.Ink`."""
_COMMANDS = re.compile(r"^[^\S\n]*(?=::)|#(?=#\w*\[)", re.MULTILINE)
"""`::error::` at the start of a line, after whatever is a space somewhere, and `##[error]` or `##vso[…]`
anywhere."""
LONGEST_NAME = 200
LONGEST_PATH = 4096
_LONG_QUOTES = re.compile(r"'[^'\n/]{200,}'|\"[^\"\n/]{200,}\"")
_LONG_WORDS = re.compile(r"\S{211,}")
_CLOSING = "'\"`.,;:)]"
_JSON_COMMANDS = re.compile(r"##(?=\w*\[)")
_JSON_ESCAPES = {
    code: f"\\u{code:04x}"
    for code in (
        *range(0x7F, 0xA0),
        0x200B,
        0x200E,
        0x200F,
        *range(0x2028, 0x202F),
        *range(0x2060, 0x206A),
        0xFEFF,
    )
}


def safe(text: object, *, keep_lines: bool = False) -> str:
    """Text from outside, harmless on a terminal: no escape sequence, control or direction character.

    Line breaks and tabs become spaces unless `keep_lines`.
    """
    text = str(text)
    if text.isascii() and text.isprintable():  # most texts are, and some commands print millions
        return text if keep_lines else text.strip()
    cleaned = _ESCAPES.sub("", text.replace("\r\n", "\n"))
    if keep_lines:
        return "\n".join(_CONTROLS.sub("", line.replace("\t", "    ")) for line in cleaned.split("\n"))
    return _CONTROLS.sub("", re.sub(r"[\n\r\t\v\f]+", " ", cleaned)).strip()


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


def printable(text: str, *, colors: bool = True) -> str:
    """Return text as every command prints it: tabs, line breaks and our colours are all the controls in it.

    No line of it is a command to a CI system. This is the last net, for lines in which something from outside
    stands; `safe` makes such a piece fit for its place.
    """
    pieces = _COLORS.split(text.replace("\r\n", "\n")) if colors else [text.replace("\r\n", "\n")]
    pieces[::2] = [_without_controls(piece) for piece in pieces[::2]]
    return no_command("".join(pieces))


def _without_controls(text: str) -> str:
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text
    return _CONTROLS.sub(lambda found: found[0] if found[0] in "\n\t" else "", _ESCAPES.sub("", text))


def printable_json(text: str) -> str:
    """Return JSON text, the same in meaning, that neither a terminal nor a CI system takes for a command."""
    text = text if text.isascii() else text.translate(_JSON_ESCAPES)
    return _JSON_COMMANDS.sub(r"#\\u0023", text) if "##" in text else text


def no_command(line: str) -> str:
    """A line that no CI system takes for a command to it, whoever wrote what stands in it."""
    return _COMMANDS.sub(lambda found: f"{found[0]}{' ' if found[0].endswith('#') else '| '}", line)


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
