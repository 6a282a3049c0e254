"""The last of a command's output, for error messages."""

from __future__ import annotations

from collections import deque

from sandboxes.types import OutputSink, StreamName


class Tail:
    """An output sink that passes everything on and remembers the last of it."""

    def __init__(self, onward: OutputSink, max_chars: int = 2000) -> None:
        self._onward = onward
        self._max_chars = max_chars
        self._pieces: deque[str] = deque()
        self._chars = 0

    def __call__(self, stream: StreamName, text: str) -> None:
        self._onward(stream, text)
        self._pieces.append(text)
        self._chars += len(text)
        while self._chars - len(self._pieces[0]) >= self._max_chars:
            self._chars -= len(self._pieces.popleft())

    def last_line(self) -> str | None:
        """Return the last line that is not empty; None where nothing was printed."""
        lines = "".join(self._pieces)[-self._max_chars :].splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), None)

    def quoted(self) -> str:
        """`; last output:` and the last lines, or a word that there was none."""
        text = "".join(self._pieces)[-self._max_chars :].strip()
        if not text:
            return "; it printed nothing"
        return "; last output:\n" + "\n".join(f"  {line}" for line in text.splitlines()[-20:])
