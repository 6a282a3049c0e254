"""On a real terminal: pages, colours, the live view, questions."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator

import pexpect
import pytest

from tests.unit.cli.said import HERE

Spawn = Callable[..., "pexpect.spawn[str]"]


@pytest.fixture
def spawn(program_env: dict[str, str]) -> Iterator[Spawn]:
    children: list[pexpect.spawn[str]] = []

    def start(scene: str, *words: str, rows: int = 24, columns: int = 100, **env: str) -> pexpect.spawn[str]:
        child = pexpect.spawn(
            sys.executable,
            [str(HERE / "fake_valk.py"), scene, *words],
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


def test_pages_turn_with_h_and_l(spawn: Spawn) -> None:
    child = spawn("many", "run", "list")
    child.expect("run-0017")
    child.expect(r"Page 1   l next · q quit")
    child.send("l")
    child.expect("run-0018")
    child.expect(r"Page 2   h previous · l next · q quit")
    child.send("h")
    child.expect("run-0000")
    child.expect("Page 1")
    child.send("h")
    for page in (2, 3, 4):
        child.send("l")
        child.expect(f"Page {page} ")
    child.expect("h previous · q quit")
    child.send("q")
    said, code = finish(child)
    assert code == 0 and "run-0059" in said


@pytest.mark.parametrize(
    "key", ["q", pytest.param("\x03", marks=pytest.mark.slow), pytest.param("\x04", marks=pytest.mark.slow)]
)
def test_pages_are_left_and_the_terminal_is_put_back(spawn: Spawn, key: str) -> None:
    child = spawn("many", "run", "list")
    child.expect("Page 1")
    child.send(key)
    _, code = finish(child)
    assert code == 0


def test_lists_that_fit_are_printed(spawn: Spawn) -> None:
    said, code = finish(spawn("one", "run", "list"))
    assert code == 0 and "Page" not in said and "\x1b[34mIN_PROGRESS\x1b[0m" in said


@pytest.mark.slow
def test_narrow_terminals_wrap_nothing(spawn: Spawn) -> None:
    said, _ = finish(spawn("many", "run", "list", "--limit", "5", columns=60))
    lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in said.split("\r\n")]
    assert max(len(line) for line in lines) <= 60 and "run-0004" in said


@pytest.mark.slow
def test_no_color_is_honoured(spawn: Spawn) -> None:
    assert "\x1b" not in finish(spawn("one", "run", "list", NO_COLOR="1"))[0]
    assert "\x1b" not in finish(spawn("one", "run", "list", "--no-color"))[0]
    assert "\x1b" not in finish(spawn("one", "run", "list", TERM="dumb"))[0]


def test_live_view_draws_then_shows_the_end(spawn: Spawn) -> None:
    said, code = finish(spawn("ending", "run", "fetch", "run", "--connect"))
    assert code == 0
    assert "solve-it" in said and "Latest errors" not in said
    assert "Run ended" in said.split("\x1b[?25h")[-1]
    assert "\x1b[?25l" in said and "\x1b[?25h" in said


@pytest.mark.slow
def test_live_view_ticks_and_survives_a_resize(spawn: Spawn) -> None:
    child = spawn("endless", "run", "fetch", "run", "--connect")
    child.expect("solve-it")
    child.expect("1 min 0[67] s")
    child.setwinsize(12, 50)
    child.expect("1 min 0[89] s")
    child.sendintr()
    said, code = finish(child)
    assert code == 130 and "Detached" in said and "valk run fetch run-aaaa1111" in said


def test_questions_are_asked_on_a_terminal(spawn: Spawn) -> None:
    child = spawn("one", "run", "stop", "run", "--force")
    child.expect(r"Kill 1 trial of run run-aaaa1111 under way\?")
    child.sendline("n")
    said, code = finish(child)
    assert code == 1 and "Nothing was changed." in said
    child = spawn("one", "run", "stop", "run", "--force")
    child.expect("under way")
    child.sendline("y")
    assert finish(child)[1] == 0


@pytest.mark.slow
def test_a_dumb_terminal_gets_lines(spawn: Spawn) -> None:
    said, code = finish(spawn("ending", "run", "fetch", "run", "--connect", TERM="dumb"))
    assert code == 0 and "\x1b" not in said and "IN_PROGRESS  5/12" in said
    said, _ = finish(spawn("many", "run", "list", TERM="dumb"))
    assert "\x1b" not in said and "Page" not in said and "50 of 60 runs" in said


def test_secrets_are_typed_unseen(spawn: Spawn) -> None:
    child = spawn("one", "secret", "set", "key")
    child.expect("Value of key")
    child.sendline("hunter2")
    said, code = finish(child)
    assert code == 0 and "Kept key." in said and "hunter2" not in said
    child = spawn("one", "secret", "set", "other")
    child.expect("Value of other")
    child.sendline("")
    said, code = finish(child)
    assert code == 2 and "empty" in said


@pytest.mark.slow
def test_results_asks_before_overwriting(spawn: Spawn) -> None:
    assert finish(spawn("one", "run", "results", "run"))[1] == 0
    child = spawn("one", "run", "results", "run")
    child.expect("quickstart.json exists. Overwrite it?")
    child.sendline("")
    said, code = finish(child)
    assert code == 1 and "left as it is" in said
    child = spawn("one", "run", "results", "run")
    child.expect(r"Overwrite it\? \[y/N\]: ")  # only then it listens
    interrupt(child)
    assert finish(child)[1] == 130


@pytest.mark.slow
def test_a_download_link_is_shown_to_people_only(spawn: Spawn) -> None:
    said, code = finish(spawn("one", "run", "results", "run", "--s3"))
    assert code == 0 and "Download https://bucket/key.json?signature=abc" in said and "for a day" in said
    said, _ = finish(spawn("one", "run", "results", "run", "--s3", "--json"))
    assert "s3://bucket/key.json" in said and "signature" not in said


def test_log_lines_cannot_drive_the_terminal(spawn: Spawn) -> None:
    said, code = finish(spawn("one", "run", "logs", "run", "--no-color"))
    assert code == 0 and "solve-it │ one line" in said and "\x1b" not in said


def test_debug_hands_the_terminal_to_the_shell(spawn: Spawn) -> None:
    said, code = finish(spawn("one", "run", "debug", "run", "a"))
    assert code == 0 and "in the sandbox" in said
