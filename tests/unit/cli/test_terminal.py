"""On a real terminal: pages, colours, the live view, questions."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator

import pexpect
import pytest

from tests.unit.cli.filled_store import FilledStore

Spawn = Callable[..., "pexpect.spawn[str]"]


@pytest.fixture
def spawn(program_env: dict[str, str]) -> Iterator[Spawn]:
    children: list[pexpect.spawn[str]] = []

    def start(
        *words: str, rows: int = 24, columns: int = 100, program: str = "", **env: str
    ) -> pexpect.spawn[str]:
        child = pexpect.spawn(
            sys.executable,
            ["-c", program, *words] if program else ["-m", "valkyrie", *words],
            env={**program_env, **env},
            dimensions=(rows, columns),
            encoding="utf-8",
            timeout=60,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.close(force=True)


@pytest.fixture
def going(filled: FilledStore) -> FilledStore:
    filled.add_run_under_way()
    filled.log("one\x1b]0;owned\x07 line\n", "solve-it")
    return filled


@pytest.fixture
def many(filled: FilledStore) -> FilledStore:
    filled.add_runs([f"ab{number:04d}" for number in range(60)])
    return filled


def finish(child: pexpect.spawn[str]) -> tuple[str, int]:
    if not child.flag_eof:
        child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus is not None
    return child.before or "", child.exitstatus


def interrupt(child: pexpect.spawn[str]) -> None:
    """Press Ctrl+C; again if it fell between the question and the reading, as a person would."""
    for _ in range(5):
        child.sendintr()
        if child.expect([pexpect.EOF, pexpect.TIMEOUT], timeout=3) == 0:
            return


def test_pages_turn_with_h_and_l(spawn: Spawn, many: FilledStore) -> None:
    child = spawn("run", "list")
    child.expect("ab0017")
    child.expect(r"Page 1   l next · q quit")
    child.send("l")
    child.expect("ab0018")
    child.expect(r"Page 2   h previous · l next · q quit")
    child.send("h")
    child.expect("ab0000")
    child.expect("Page 1")
    child.send("h")
    for page in (2, 3, 4):
        child.send("l")
        child.expect(f"Page {page} ")
    child.expect("h previous · q quit")
    child.send("q")
    said, code = finish(child)
    assert code == 0 and "ab0059" in said


@pytest.mark.parametrize(
    "key", ["q", pytest.param("\x03", marks=pytest.mark.slow), pytest.param("\x04", marks=pytest.mark.slow)]
)
def test_pages_are_left_and_the_terminal_is_put_back(spawn: Spawn, many: FilledStore, key: str) -> None:
    child = spawn("run", "list")
    child.expect("Page 1")
    child.send(key)
    _, code = finish(child)
    assert code == 0


def test_lists_that_fit_are_printed(spawn: Spawn, going: FilledStore) -> None:
    said, code = finish(spawn("run", "list"))
    assert code == 0 and "Page" not in said and "\x1b[34mIN_PROGRESS\x1b[0m" in said


@pytest.mark.slow
def test_narrow_terminals_wrap_nothing(spawn: Spawn, many: FilledStore) -> None:
    said, _ = finish(spawn("run", "list", "--limit", "5", columns=60))
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in said.split("\r\n")]
    assert max(len(line) for line in lines) <= 60 and "ab0004" in said


@pytest.mark.slow
def test_no_color_is_honoured(spawn: Spawn, going: FilledStore) -> None:
    assert "\x1b" not in finish(spawn("run", "list", NO_COLOR="1"))[0]
    assert "\x1b" not in finish(spawn("run", "list", "--no-color"))[0]
    assert "\x1b" not in finish(spawn("run", "list", TERM="dumb"))[0]


def test_live_view_draws_then_shows_the_end(spawn: Spawn, going: FilledStore) -> None:
    child = spawn("run", "fetch", "aaaa", "--connect")
    child.expect("solve-it")
    began = child.before or ""
    going.end_runs()
    rest, code = finish(child)
    said = began + rest
    assert code == 0
    assert "Run ended" in said.split("\x1b[?25h")[-1]
    assert "\x1b[?25l" in said and "\x1b[?25h" in said


@pytest.mark.slow
def test_live_view_ticks_and_survives_a_resize(spawn: Spawn, going: FilledStore) -> None:
    child = spawn("run", "fetch", "aaaa", "--connect")
    child.expect("solve-it")
    clock = r"(\d+ min \d\d s)"
    child.expect(clock)
    first = child.match.group(1)
    child.setwinsize(12, 50)
    child.expect(clock)
    while child.match.group(1) == first:
        child.expect(clock)
    child.sendintr()
    said, code = finish(child)
    assert code == 130 and "Detached" in said and "valk run fetch aaaa1111" in said


def test_questions_are_asked_on_a_terminal(spawn: Spawn, going: FilledStore) -> None:
    child = spawn("run", "stop", "aaaa", "--force")
    child.expect(r"Kill 1 trial of run aaaa1111 under way\?")
    child.sendline("n")
    said, code = finish(child)
    assert code == 1 and "Nothing was changed." in said
    child = spawn("run", "stop", "aaaa", "--force")
    child.expect("under way")
    child.sendline("y")
    assert finish(child)[1] == 0


@pytest.mark.slow
def test_a_dumb_terminal_gets_lines(spawn: Spawn, going: FilledStore) -> None:
    child = spawn("run", "fetch", "aaaa", "--connect", TERM="dumb")
    child.expect("IN_PROGRESS  6/13")
    began = child.before or ""
    going.end_runs()
    rest, code = finish(child)
    assert code == 0 and "\x1b" not in began + rest
    going.add_runs([f"ab{number:04d}" for number in range(59)])
    said, _ = finish(spawn("run", "list", TERM="dumb"))
    assert "\x1b" not in said and "Page" not in said and "50 of 60 runs" in said


def test_secrets_are_typed_unseen(spawn: Spawn) -> None:
    child = spawn("secret", "set", "key")
    child.expect("Value of key")
    child.sendline("hunter2")
    said, code = finish(child)
    assert code == 0 and "Kept key." in said and "hunter2" not in said
    child = spawn("secret", "set", "other")
    child.expect("Value of other")
    child.sendline("")
    said, code = finish(child)
    assert code == 2 and "empty" in said


@pytest.mark.slow
def test_results_asks_before_overwriting(spawn: Spawn, going: FilledStore) -> None:
    assert finish(spawn("run", "results", "aaaa"))[1] == 0
    child = spawn("run", "results", "aaaa")
    child.expect("quickstart.json exists. Overwrite it?")
    child.sendline("")
    said, code = finish(child)
    assert code == 1 and "left as it is" in said
    child = spawn("run", "results", "aaaa")
    child.expect(r"Overwrite it\? \[y/N\]: ")  # only then it listens
    interrupt(child)
    assert finish(child)[1] == 130


UPLOADING = """
from valkyrie.cli.main import main
from valkyrie.tracker.results import ResultVerbs
from valkyrie.views import ResultsLink

link = ResultsLink("s3://bucket/key.json", "https://bucket/key.json?signature=abc")
ResultVerbs.upload_results = lambda *_words: link
raise SystemExit(main())
"""
"""The command line, with a bucket that takes everything."""


@pytest.mark.slow
def test_a_download_link_is_shown_to_people_only(spawn: Spawn, going: FilledStore) -> None:
    said, code = finish(spawn("run", "results", "aaaa", "--s3", program=UPLOADING))
    assert code == 0 and "Download https://bucket/key.json?signature=abc" in said and "for a day" in said
    said, _ = finish(spawn("run", "results", "aaaa", "--s3", "--json", program=UPLOADING))
    assert "s3://bucket/key.json" in said and "signature" not in said


def test_log_lines_cannot_drive_the_terminal(spawn: Spawn, going: FilledStore) -> None:
    said, code = finish(spawn("run", "logs", "aaaa", "--no-color"))
    assert code == 0 and "solve-it │ one line" in said and "\x1b" not in said


def test_debug_hands_the_terminal_to_the_shell(spawn: Spawn, going: FilledStore) -> None:
    said, code = finish(spawn("run", "debug", "aaaa", "solve-it"))
    assert code == 0 and "in the sandbox" in said
