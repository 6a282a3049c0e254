"""What a grader's program printed, bounded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from sandboxes.values import StreamName

MOST_OUTPUT = 2 << 20
"""Characters kept of each stream: the first half and the last half."""
_CUT = "\n[… a part of the output is left out here …]\n"


class ProgramOutput:
    """An output sink. With a `token`, what comes before the line that holds it is not the program's."""

    def __init__(self, token: str | None = None) -> None:
        self._token = token
        self._kept: dict[StreamName, _Ends] = {"stdout": _Ends(), "stderr": _Ends()}
        self._first = ""
        self.on_start: Callable[[], None] = lambda: None
        self.started = token is None

    def __call__(self, stream: StreamName, text: str) -> None:
        if not self.started and stream == "stdout":
            self._first += text
            line, ended, rest = self._first.partition("\n")
            if not ended or line != self._token:
                return
            self.started = True
            self.on_start()
            text = rest
        self._kept[stream].add(text)

    @property
    def stdout(self) -> str:
        return self._kept["stdout"].text()

    @property
    def stderr(self) -> str:
        return self._kept["stderr"].text()


class _Ends:
    """The first and the last of a text of any length."""

    def __init__(self) -> None:
        self._head: list[str] = []
        self._room = MOST_OUTPUT // 2
        self._tail: deque[str] = deque()
        self._tail_chars = 0
        self._cut = False

    def add(self, text: str) -> None:
        if self._room:
            self._head.append(text[: self._room])
            text, self._room = text[self._room :], max(0, self._room - len(text))
        if not text:
            return
        self._tail.append(text)
        self._tail_chars += len(text)
        while self._tail_chars - len(self._tail[0]) >= MOST_OUTPUT // 2:
            self._tail_chars -= len(self._tail.popleft())
            self._cut = True

    def text(self) -> str:
        tail = "".join(self._tail)
        if self._cut or len(tail) > MOST_OUTPUT // 2:
            tail = _CUT + tail[-(MOST_OUTPUT // 2) :]
        return "".join(self._head) + tail
