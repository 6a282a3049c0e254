"""Hide secret values in texts, data, files and streams of output, in every form they commonly travel in."""

from __future__ import annotations

import base64
import json
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, quote_plus

from sandboxes.protocol import OutputSink, StreamName

MASK = "***"
MIN_LENGTH = 4
"""Shorter values are not masked: they would blacken half of any log."""
_MIN_LINE = 16
_SECRET_NAME = re.compile(r"auth|key|token|secret|cookie|password", re.IGNORECASE)
_PIECE = 1 << 20


class Masker:
    """Replaces secret values, and the forms they commonly travel in, by `***`.

    Forms: as it is, JSON-escaped, URL-quoted, base64 (alone or inside a longer text), and each long line
    of a value of several lines.
    """

    def __init__(self, values: Iterable[str]) -> None:
        forms = {form for value in values for form in _forms(value) if len(form) >= MIN_LENGTH}
        self._forms = sorted(forms, key=len, reverse=True)
        # Bytes as text, a character each: what is true of text then holds for files of any kind.
        self._byte_forms = [form.encode("utf-8", "surrogatepass").decode("latin-1") for form in self._forms]

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Masker:
        """Hide each value whose header, variable or setting has a secret-sounding name.

        The last word of a value is hidden by itself too: a server may echo `Bearer KEY` without its scheme.
        """
        values = [str(value) for name, value in settings.items() if _SECRET_NAME.search(name)]
        return cls(piece for value in values for piece in (value, value.rpartition(" ")[2]))

    def __repr__(self) -> str:
        return f"Masker({len(self._forms)} forms)"

    def text(self, text: str) -> str:
        """Mask a whole text."""
        stream = _Stream(self._forms)
        return stream.feed(text) + stream.flush()

    def data(self, value: Any) -> Any:
        """Mask every text in plain JSON data."""
        match value:
            case str():
                return self.text(value)
            case dict():
                return {self.data(key): self.data(item) for key, item in value.items()}
            case list():
                return [self.data(item) for item in value]
            case _:
                return value

    def file(self, path: Path) -> None:
        """Mask a file of any kind and size in place; one that holds no secret is not touched.

        It is replaced whole, so that a failure half-way leaves the old one.
        """
        with path.open("rb") as source:
            if not self._is_in(source):
                return
            source.seek(0)
            handle, part = tempfile.mkstemp(dir=path.parent, prefix=".masked-")
            try:
                with open(handle, "wb") as target:
                    stream = _Stream(self._byte_forms)
                    while piece := source.read(_PIECE):
                        target.write(stream.feed(piece.decode("latin-1")).encode("latin-1"))
                    target.write(stream.flush().encode("latin-1"))
                    os.fchmod(target.fileno(), os.fstat(source.fileno()).st_mode & 0o777)
                Path(part).replace(path)
            except BaseException:
                Path(part).unlink(missing_ok=True)
                raise

    def finds_in(self, path: Path) -> bool:
        """Return whether a file holds a secret value in one of its forms."""
        with path.open("rb") as source:
            return self._is_in(source)

    def _is_in(self, source: IO[bytes]) -> bool:
        longest = max(map(len, self._byte_forms), default=1)
        before = ""
        while piece := source.read(_PIECE):
            text = before + piece.decode("latin-1")
            if any(form in text for form in self._byte_forms):
                return True
            before = text[max(0, len(text) - longest + 1) :]
        return False

    @contextmanager
    def sink(self, sink: OutputSink) -> Iterator[OutputSink]:
        """Yield a sink that masks text and passes it on; what it holds back follows at the end."""
        if not self._forms:
            yield sink
            return
        streams: dict[StreamName, _Stream] = {}

        def masked(name: StreamName, text: str) -> None:
            if out := streams.setdefault(name, _Stream(self._forms)).feed(text):
                sink(name, out)

        try:
            yield masked
        finally:
            for name, stream in streams.items():
                if out := stream.flush():
                    sink(name, out)


class _Stream:
    """Mask one stream of text; hold back what may be the beginning of a secret until the rest comes."""

    def __init__(self, forms: list[str]) -> None:
        self._forms = forms
        self._held = ""
        self._covered = 0
        """How much of what is held belongs to a secret whose mask is out already."""

    def feed(self, text: str) -> str:
        text = self._held + text
        return self._emit(text, self._safe_length(text))

    def flush(self) -> str:
        return self._emit(self._held, len(self._held))

    def _safe_length(self, text: str) -> int:
        """Everything before this cannot be part of a secret that is still to come."""
        safe = len(text)
        for form in self._forms:
            at = text.find(form[0], max(0, len(text) - len(form) + 1), safe)
            while at >= 0 and not form.startswith(text[at:]):
                at = text.find(form[0], at + 1, safe)
            if at >= 0:
                safe = at
        return safe

    def _emit(self, text: str, until: int) -> str:
        out: list[str] = []
        at = 0
        for start, end in self._spans(text):
            if start >= until:
                break
            out.append(text[at:start])
            if start > 0 or not self._covered:
                out.append(MASK)
            at = end
        out.append(text[at:until])
        self._held = text[until:]
        self._covered = max(0, max(at, self._covered) - until)
        return "".join(out)

    def _spans(self, text: str) -> list[tuple[int, int]]:
        """Return where secrets stand, overlapping ones joined."""
        found = [(0, self._covered)] if self._covered else []
        for form in self._forms:
            at = text.find(form)
            while at >= 0:
                found.append((at, at + len(form)))
                at = text.find(form, at + 1)
        joined: list[tuple[int, int]] = []
        for start, end in sorted(found):
            if joined and start < joined[-1][1]:
                joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
            else:
                joined.append((start, end))
        return joined


def _forms(value: str) -> Iterator[str]:
    yield value
    yield value.strip()
    yield json.dumps(value)[1:-1]
    yield json.dumps(value, ensure_ascii=False)[1:-1]
    yield quote(value, safe="")
    yield quote(value)
    yield quote_plus(value)
    yield from (line.strip() for line in value.splitlines() if len(line.strip()) >= _MIN_LINE)
    raw = value.encode("utf-8", "surrogatepass")
    for offset in range(3):
        # Characters at both ends also carry bits of the neighbours; those between are the value's alone.
        encoded = base64.b64encode(b"\0" * offset + raw).decode().rstrip("=")
        whole = encoded[-(-offset * 8 // 6) : (offset + len(raw)) * 8 // 6]
        if len(whole) >= 8:
            yield whole
            yield whole.translate({ord("+"): "-", ord("/"): "_"})
