"""`benchmark-job watch` on a real terminal: the whole screen, and the terminal given back."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pexpect
import pytest
from sqlalchemy import text

from benchmark_runner.terminal import fit
from tests.unit.cli.filled_store import CODEX, NOP, FilledStore, lost, passed
from tests.unit.cli.sample_views import HALFWAY, make_job, make_run, make_trial, trials_of_two
from valkyrie.compare.job_tables import HINT, job_frame, snapshot
from valkyrie.compare.tables import summarised, summary_table

Spawn = Callable[..., "pexpect.spawn[str]"]
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


@pytest.fixture
def spawn(program_env: dict[str, str]) -> Iterator[Spawn]:
    children: list[pexpect.spawn[str]] = []

    def start(*, rows: int = 24, columns: int = 100, **env: str) -> pexpect.spawn[str]:
        child = pexpect.spawn(
            sys.executable,
            ["-m", "valkyrie", "job", "watch", "nightly"],
            env={**program_env, **env},
            dimensions=(rows, columns),
            encoding="utf-8",
            timeout=120,
        )
        children.append(child)
        return child

    yield start
    for child in children:
        child.close(force=True)


@pytest.fixture(autouse=True)
def going(filled: FilledStore) -> FilledStore:
    """A job of an agent with 40 trials under way, and of one that is done."""
    filled.add_run_under_way(CODEX, active=40, agent="codex", model="gpt-5")
    filled.add_run(NOP, [passed()] * 4, agent="nop")
    filled.add_job(run_ids=[CODEX, NOP])
    return filled


def finish(child: pexpect.spawn[str]) -> tuple[str, int]:
    """What is on the normal screen at the end, and the exit code."""
    child.expect(pexpect.EOF)
    child.close()
    said = child.before or ""
    assert said.count(LEAVE) == 1 and "\x1b[?25h" in said, "the terminal was left as it was not"
    assert child.exitstatus is not None
    return said.split(LEAVE)[1], child.exitstatus


def test_the_screen_shows_the_job_then_the_table_stays(spawn: Spawn, going: FilledStore) -> None:
    child = spawn()
    child.expect_exact(ENTER)
    child.expect("Progress")
    going.end_runs(lambda _agent: lost())
    said, code = finish(child)
    assert code == 1 and "Not passed: " in said and "Agent" in said and "beats" not in said.split("Agent")[0]


def test_it_survives_a_resize_and_ctrl_c_detaches(spawn: Spawn) -> None:
    child = spawn()
    child.expect("In progress")
    child.expect("… and [0-9]+ more")
    child.setwinsize(50, 60)
    child.expect("task-30")
    child.setwinsize(6, 30)
    child.expect("Ctrl")
    child.sendintr()
    said, code = finish(child)
    assert code == 130 and "Detached; job nightly" in said and "valk job fetch bbbb2222 --connect" in said


def test_a_failure_gives_the_terminal_back(spawn: Spawn, going: FilledStore) -> None:
    child = spawn()
    child.expect("Progress")
    with going.store.writing() as connection:
        connection.execute(text("ALTER TABLE job RENAME TO elsewhere"))
    said, code = finish(child)
    assert code == 1 and "no such table: job" in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_gives_the_terminal_back(spawn: Spawn, number: signal.Signals) -> None:
    child = spawn()
    child.expect("Progress")
    child.kill(number)
    _, code = finish(child)
    assert code == 128 + number


def test_a_dumb_terminal_gets_lines(spawn: Spawn, going: FilledStore) -> None:
    child = spawn(TERM="dumb")
    child.expect("IN_PROGRESS")
    said = child.before or ""
    going.end_runs()
    child.expect(pexpect.EOF)
    said += child.before or ""
    assert "\x1b" not in said and "job nightly  completed  56/56" in said


@pytest.mark.parametrize("rows", [1, 5, 8, 12, 24, 60])
def test_a_frame_fits_its_rows(rows: int) -> None:
    counts = {"FINISHED": 5, "IN_PROGRESS": 40, "ERROR": 1, "PENDING": 6}
    run = make_run("run-one", agent="codex", model="gpt-5", state="IN_PROGRESS", finished_at=None, total=12)
    other = make_run("run-two", agent="nop", total=4, counts={"FINISHED": 4})
    run = replace(run, score=HALFWAY, counts={**run.counts, **counts})
    job = make_job(state="running", runs=[run, other])
    begun = [
        make_trial(f"task-{number:02d}", state="IN_PROGRESS", started_at=1_700_000_030.0 + number)
        for number in range(40)
    ]
    active = [("run-one", trial) for trial in begun]
    broke = make_trial(
        "broke", state="ERROR", category="infrastructure", cause="sandbox_failed", message="no room"
    )
    failed = [("run-one", broke)]
    lines = job_frame(snapshot(job, active, failed), now=job.created_at, rows=rows)
    assert len(lines) <= rows and lines[-1] == HINT
    if rows >= 24:
        said = "\n".join(lines)
        assert "✓ nop" in said
        assert "codex:gpt-5  6/12  score so far 80.0 %  40 running, 6 pending, 1 error" in said
        assert "ahead so far" in said and "not decided" in said
        assert "infrastructure/sandbox_failed: no room" in said and "task-00" in said
        assert ("task-39" in said) is (rows == 60) and ("more" in said) is (rows == 24)


def test_at_80_columns_the_score_is_the_last_to_go() -> None:
    job = make_job()
    run = replace(job.runs[0], agent="an-agent-with-a-long-name", model="some-vendor/some-model-4.5")
    counts = {"FINISHED": 6, "IN_PROGRESS": 40, "EVALUATING": 12, "BUILDING": 3, "PENDING": 600, "ERROR": 2}
    going = replace(run, state="IN_PROGRESS", counts=counts)
    lines = job_frame(snapshot(replace(job, runs=[going, job.runs[1]])), now=job.created_at, rows=24)
    line = next(fit(line, 80) for line in lines if "40 running" in line)
    assert "score so far" in line and line.endswith("…")
    table = summary_table(job, trials_of_two(), summarised(job, trials_of_two()))
    heading = table.lines(width=80)[0]
    assert "Score" in heading and "95 % interval" in heading
