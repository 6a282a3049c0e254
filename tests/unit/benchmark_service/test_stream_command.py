"""`stream_command` over our sandboxes and over the Daytona SDK's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark_service.sandbox import ExecResult, Sandbox, SandboxCommandError
from benchmark_service.utils import MAX_LINE_CHARS, LineSplitter, stream_command


class Talking(Sandbox):
    """A sandbox whose one command prints these pieces and exits so."""

    id = name = state = "talking"  # type: ignore[assignment]

    def __init__(self, pieces: list[str], code: int = 0) -> None:
        self.pieces, self.code = pieces, code
        self.asked: list[tuple[str, str | None]] = []
        self.closed = False

    async def command(self, command: str, *, cwd: str | None = None, **_: Any) -> AsyncIterator[str]:
        self.asked.append((command, cwd))
        try:
            for piece in self.pieces:
                yield piece
            if self.code:
                raise SandboxCommandError("failed", exit_code=self.code)
        finally:
            self.closed = True

    async def exec(self, command: str, **_: Any) -> ExecResult:
        raise AssertionError

    async def upload_file(self, path: str, content: bytes) -> None:
        raise AssertionError

    async def download_file(self, path: str) -> bytes:
        raise AssertionError


class Process:
    """As much of the Daytona SDK's `sandbox.process` as sessions need."""

    def __init__(self, pieces: list[tuple[str, str]], codes: list[int | None]) -> None:
        self.pieces, self.codes = pieces, codes
        self.calls: list[Any] = []

    async def create_session(self, session_id: str) -> None:
        self.calls.append(("create", session_id))

    async def execute_session_command(self, session_id: str, request: Any) -> Any:
        self.calls.append((request.command, request.run_async))
        return SimpleNamespace(cmd_id="c1")

    async def get_session_command_logs_async(
        self, session_id: str, command_id: str, on_stdout: Any, on_stderr: Any
    ) -> None:
        for name, text in self.pieces:
            if name == "lost":
                raise ConnectionError("the log stream broke")
            waiting = (on_stdout if name == "stdout" else on_stderr)(text)
            if waiting is not None:
                await waiting

    async def get_session_command(self, session_id: str, command_id: str) -> Any:
        return SimpleNamespace(exit_code=self.codes.pop(0))

    async def delete_session(self, session_id: str) -> None:
        self.calls.append(("delete", session_id))
        raise RuntimeError("the sandbox is gone")


def daytona(pieces: list[tuple[str, str]], *codes: int | None) -> Any:
    return SimpleNamespace(id="sb", process=Process(pieces, list(codes or (0,))))


async def lines_of(sandbox: Any, *args: Any, **kwargs: Any) -> list[str]:
    return [line async for line in stream_command(sandbox, *args, **kwargs)]


async def test_pieces_become_lines_and_blank_ones_are_dropped() -> None:
    sandbox = Talking(["one\ntw", "o\r\n", "\n  \nthr", "ee"])
    assert await lines_of(sandbox, "make test", "/work dir") == ["one", "two", "three"]
    assert sandbox.asked == [("make test", "/work dir")]


async def test_a_failing_command_is_a_value_error_after_its_output() -> None:
    heard: list[str] = []
    with pytest.raises(ValueError, match=r"^Command failed with exit code 42$"):
        async for line in stream_command(Talking(["dying words"], 42), "x", "/"):
            heard.append(line)
    assert heard == ["dying words"]
    assert await lines_of(Talking(["dying words"], 42), "x", "/", ignore_error=True) == ["dying words"]


async def test_stopping_early_closes_the_command() -> None:
    sandbox = Talking(["a\n", "b\n"])
    stream = stream_command(sandbox, "x", "/")
    assert await anext(stream) == "a"
    await stream.aclose()
    assert sandbox.closed


async def test_a_daytona_session_is_made_used_and_deleted() -> None:
    sandbox = daytona([("stdout", "out "), ("stderr", "warn\n"), ("stdout", "put\n"), ("stdout", "end")])
    assert await lines_of(sandbox, "make", "/it's here") == ["warn", "out put", "end"]
    (created, session), command, (deleted, gone) = sandbox.process.calls
    assert (created, deleted, gone) == ("create", "delete", session)
    assert session.startswith("sb-") and len(session) == len("sb-") + 36
    assert command == ("cd '/it'\"'\"'s here' && make", True)
    await lines_of(other := daytona([]), "make", "/")
    assert other.process.calls[0] != sandbox.process.calls[0]


async def test_a_daytona_command_that_fails() -> None:
    with pytest.raises(ValueError, match="exit code 7"):
        await lines_of(daytona([], None, 7), "x", "/")
    assert await lines_of(daytona([("stderr", "no")], 7), "x", "/", ignore_error=True) == ["no"]


async def test_a_broken_log_stream_is_raised_and_the_session_still_deleted() -> None:
    sandbox = daytona([("stdout", "a\n"), ("lost", "")])
    with pytest.raises(ConnectionError):
        await lines_of(sandbox, "x", "/")
    assert sandbox.process.calls[-1][0] == "delete"


async def test_a_talkative_daytona_command_is_held_back_and_loses_nothing() -> None:
    pieces = [("stdout", f"{n}\n") for n in range(5000)]
    assert await lines_of(daytona(pieces), "x", "/") == [str(n) for n in range(5000)]


@given(st.text(alphabet="ab\n", max_size=60), st.lists(st.integers(0, 60), max_size=6))
def test_lines_do_not_depend_on_how_the_text_was_cut(text: str, cuts: list[int]) -> None:
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    splitter = LineSplitter()
    lines = [line for start, end in pairwise(edges) for line in splitter.feed(text[start:end])]
    assert [*lines, splitter.flush()] == text.split("\n")


def test_an_endless_line_comes_in_parts() -> None:
    splitter = LineSplitter()
    lines = splitter.feed("x" * (2 * MAX_LINE_CHARS + 5))
    assert [len(line) for line in lines] == [MAX_LINE_CHARS, MAX_LINE_CHARS]
    assert splitter.flush() == "x" * 5
