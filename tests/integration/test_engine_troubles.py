"""What goes wrong around the verbs: killed processes, odd plugins, removed files. No trouble spreads."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.conftest import alive, end_executor, until
from tests.integration.scripted import open_gate
from tests.integration.test_engine import AGENT, BENCHMARK, KEYED, finished, request
from tests.live_folders import contents_below
from valkyrie.domain import Json
from valkyrie.errors import InfrastructureError
from valkyrie.executor.client import ExecutorClient, socket_path
from valkyrie.executor.open_runs import OpenRuns, TenantAccess
from valkyrie.store import Store, runs
from valkyrie.store.layout import DataFolder
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import ResumeRequest, RunFilter, StopRequest, TrialFilter

ROOT = Path(__file__).parents[2]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "home"
    monkeypatch.setenv("VALKYRIE_HOME", str(folder))
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "config" / "valkyrie.yaml"))
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    monkeypatch.setenv("VALKYRIE_EXECUTOR_IDLE_S", "30")
    monkeypatch.chdir(tmp_path)
    yield folder
    end_executor(folder)


@pytest.fixture
def tracker(home: Path) -> Iterator[LocalTracker]:
    made = LocalTracker(home)
    yield made
    made.close()


def kill_executor(tracker: LocalTracker) -> None:
    pid = (tracker.executor_status() or {})["pid"]
    os.kill(pid, signal.SIGKILL)
    until(lambda: tracker.executor_status() is None)


def test_a_stopped_run_ends_though_its_last_attempt_would_be_tried_again(tracker: LocalTracker) -> None:
    run = tracker.start(request("broken,ok*3", concurrency=1)).run
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 1)
    tracker.stop(run.id)
    open_gate()
    ended = tracker.wait(run.id, timeout=60)
    assert (ended.state, ended.counts["STOPPED"]) == ("STOPPED", 4)
    assert [one.outcome for one in tracker.attempts(run.id, "broken-0")] == ["failed"]


def test_a_run_without_executor_can_be_stopped(tracker: LocalTracker) -> None:
    run = tracker.start(request("held*2,ok", concurrency=2)).run
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 2)
    kill_executor(tracker)
    tracker.stop(run.id)
    ended = tracker.wait(run.id, timeout=60)
    assert (ended.state, ended.counts["STOPPED"]) == ("STOPPED", 3)


def test_a_drained_executor_scores_what_ended_in_its_hands(tracker: LocalTracker) -> None:
    run = tracker.start(request("held*2", concurrency=2)).run
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 2)
    pid = (tracker.executor_status() or {})["pid"]
    os.kill(pid, signal.SIGTERM)
    until(lambda: (tracker.executor_status() or {})["draining"])
    open_gate()
    until(lambda: not alive(pid))
    ended = tracker.fetch(run.id)
    assert (ended.state, ended.score.final_score) == ("FINISHED", 1.0)


def test_a_drained_executor_that_is_told_again_leaves_a_stopped_run_stopped(tracker: LocalTracker) -> None:
    run = tracker.start(request("held*2", concurrency=2)).run
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 2)
    pid = (tracker.executor_status() or {})["pid"]
    tracker.stop(run.id)
    os.kill(pid, signal.SIGTERM)
    until(lambda: (tracker.executor_status() or {})["draining"])
    os.kill(pid, signal.SIGTERM)
    until(lambda: not alive(pid))
    tracker.resume(run.id, ResumeRequest(concurrency=1))
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 1)
    tracker.stop(run.id, StopRequest(force=True))
    assert tracker.wait(run.id, timeout=60).counts["STOPPED"] == 2


def test_a_trial_comes_back_while_its_last_attempt_still_ends(tracker: LocalTracker) -> None:
    run = tracker.start(request("clinging", concurrency=2)).run
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 1)
    before = tracker.executor_status() or {}
    tracker.stop(run.id, StopRequest(force=True))
    tracker.retry(run.id)
    until(lambda: tracker.fetch(run.id).counts["FINISHED"] == 1)
    until(lambda: (tracker.executor_status() or {})["active"] == 1)
    open_gate()
    ended = tracker.wait(run.id, timeout=60)
    assert (ended.state, ended.counts["FINISHED"]) == ("FINISHED", 1)
    assert [one.outcome for one in tracker.attempts(run.id, "clinging-0")] == ["stopped", "graded"]
    until(lambda: (tracker.executor_status() or {"active": 0})["active"] == 0)
    assert (tracker.executor_status() or {}).get("pid") == before["pid"]


def test_a_grade_that_cannot_be_stored_is_one_trials_error(tracker: LocalTracker) -> None:
    run = finished(tracker, "oddgrade,nangrade,halfword,ok*3", max_attempts=1, concurrency=6)
    assert (run.state, run.counts["FINISHED"], run.counts["ERROR"]) == ("FINISHED", 3, 3)
    rows, _ = tracker.trials(run.id, TrialFilter(states=("ERROR",)))
    assert {row.task_id: row.cause for row in rows} == {
        "oddgrade-0": "internal",
        "nangrade-0": "grader_no_verdict",
        "halfword-0": "grader_no_verdict",
    }


@pytest.mark.parametrize("kind", ["unthinkable", "unstorable"])
def test_a_benchmark_that_cannot_score_harms_no_other_run(tracker: LocalTracker, kind: str) -> None:
    other = tracker.start(request("held*2")).run
    broken = finished(tracker, kind)
    assert broken.state == "ERROR" and broken.error is not None and "final score" in broken.error
    open_gate()
    assert tracker.wait(other.id, timeout=60).state == "FINISHED"
    assert [len(tracker.attempts(other.id, f"held-{n}")) for n in range(2)] == [1, 1]


def test_secrets_are_in_no_kept_file_of_a_failed_attempt(
    tracker: LocalTracker, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "secret-value-123")
    run = finished(tracker, "leaky", agent=KEYED)
    kept = tracker.attempts(run.id, "leaky-0")[0].artifacts
    assert kept is not None
    assert Path(kept, "grading", "output.txt").read_text() == "the key is ***"
    for path, content in contents_below(home):
        assert b"secret-value-123" not in content, path


def test_what_a_killed_executor_was_putting_together_is_swept(tracker: LocalTracker) -> None:
    run = tracker.start(request("held")).run
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 1)
    kill_executor(tracker)
    draft = Path(run.folder) / "drafts" / "1-1" / "grading"
    draft.mkdir(parents=True)
    tracker.resume(run.id)
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 1)
    assert not draft.exists()
    tracker.stop(run.id, StopRequest(force=True))
    assert tracker.wait(run.id, timeout=60).state == "STOPPED"


def test_leftovers_of_a_provider_nobody_knows_any_more_stop_no_run(tracker: LocalTracker, home: Path) -> None:
    (home / "sandboxes" / "forgotten").mkdir(parents=True)
    assert finished(tracker, "ok").state == "FINISHED"
    assert "forgotten" in (home / "executor.log").read_text()


@pytest.mark.slow
def test_an_executor_whose_folder_is_removed_leaves(tracker: LocalTracker, home: Path) -> None:
    tracker.start(request("held"))
    pid = (tracker.executor_status() or {})["pid"]
    tracker.close()
    shutil.rmtree(home)
    until(lambda: not alive(pid))
    again = LocalTracker(home)
    assert finished(again, "ok").state == "FINISHED"
    again.close()


def test_the_control_socket_stands_whatever_it_is_sent(tracker: LocalTracker, home: Path) -> None:
    run = tracker.start(request("held")).run
    path = socket_path(DataFolder(home))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for garbage in (b"", b"\n", b"nonsense\n", b"[" * 100_000 + b"\n", b'{"verb": 1}\n', b"x" * (5 << 20)):
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(60)
            link.connect(str(path))
            try:
                link.sendall(garbage)
                link.shutdown(socket.SHUT_WR)
                link.recv(4096)
            except OSError:
                pass  # it hung up in the middle of too much
    idle = [socket.socket(socket.AF_UNIX) for _ in range(50)]
    for link in idle:
        link.connect(str(path))
    client = ExecutorClient(DataFolder(home))
    for bad in ({"run_id": run.id}, {"run_id": run.id, "values": "secret-value-123"}, {}):
        with pytest.raises(InfrastructureError, match="refused secrets") as refusal:
            client.ask("secrets", **bad)
        assert "secret-value" not in str(refusal.value)
    for link in idle:
        link.close()
    assert tracker.fetch(run.id).executor == "alive"
    tracker.stop(run.id, StopRequest(force=True))
    assert tracker.wait(run.id, timeout=60).state == "STOPPED"
    log = (home / "executor.log").read_text()
    assert "Traceback" not in log and "secret-value" not in log


@pytest.mark.slow
def test_a_removed_socket_comes_back(tracker: LocalTracker, home: Path) -> None:
    run = tracker.start(request("held")).run
    pid = (tracker.executor_status() or {})["pid"]
    socket_path(DataFolder(home)).unlink()
    until(lambda: tracker.executor_status() is not None)
    assert (tracker.executor_status() or {})["pid"] == pid
    tracker.stop(run.id, StopRequest(force=True))
    assert tracker.wait(run.id, timeout=60).state == "STOPPED"


@pytest.mark.slow
def test_many_start_at_once_on_a_new_folder(tracker: LocalTracker) -> None:
    words = ["run", "start", "--agent", AGENT, "--benchmark", BENCHMARK, "--dataset", "ok*2"]
    command = [sys.executable, "-m", "valkyrie", *words, "--provider", "null"]
    started = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [process.wait(60) for process in started] == [0] * 4
    until(lambda: all(run.state == "FINISHED" for run in tracker.list(RunFilter()).runs))
    assert tracker.list(RunFilter()).total == 4


def test_following_ends_with_the_run_though_nothing_is_written_any_more(
    tracker: LocalTracker, home: Path
) -> None:
    run_id = tracker.enqueue(request("ok"))
    views = tracker.follow(run_id, interval=0.01)
    assert next(views).state == "IN_PROGRESS"
    store = Store(home / "valkyrie.db")
    with store.writing() as connection:
        runs.set_values(connection, run_id, state="ERROR", error="by hand")
    store.close()
    assert [view.state for view in views] == ["ERROR"]


def test_an_executor_too_busy_to_answer_is_not_taken_for_dead(tracker: LocalTracker) -> None:
    run = tracker.start(request("held")).run
    pid = (tracker.executor_status() or {})["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        assert tracker.fetch(run.id).executor == "alive"
    finally:
        os.kill(pid, signal.SIGCONT)
    open_gate()
    assert tracker.wait(run.id, timeout=60).state == "FINISHED"


def test_following_notices_a_dead_executor(tracker: LocalTracker) -> None:
    run = tracker.start(request("held")).run
    until(lambda: tracker.fetch(run.id).counts["IN_PROGRESS"] == 1)
    views = tracker.follow(run.id)
    assert next(views).executor == "alive"
    kill_executor(tracker)
    note = next(view.note for view in views if view.executor == "none")
    assert note is not None and "run resume" in note
    tracker.stop(run.id, StopRequest(force=True))
    assert tracker.wait(run.id, timeout=60).state == "STOPPED"


async def test_runs_that_open_at_once_share_one_provider(home: Path) -> None:
    data = DataFolder(home).make()
    store = Store(data.database)
    writer = store.writer()
    open_runs = OpenRuns(TenantAccess(data, store), writer, "here")
    one, two = await asyncio.gather(open_runs.provider("process"), open_runs.provider("process"))
    assert one is two
    await open_runs.close()
    await writer.close()
    store.close()


async def test_executors_side_by_side_leave_each_others_doors_alone(home: Path) -> None:
    data = DataFolder(home).make()
    store = Store(data.database)
    writer = store.writer()
    mine, other = (OpenRuns(TenantAccess(data, store), writer, word) for word in ("mine", "other"))
    door = mine._model_proxies.to("http://127.0.0.1:9/v1")
    assert door is not None
    async with door.opened() as folder:
        await other.sweep()
        await other.close()
        assert list(folder.iterdir()), "a sandbox is shown this folder"
    await mine.close()
    await writer.close()
    store.close()


@pytest.mark.slow
def test_an_executor_that_keeps_sandboxes_rests(
    tracker: LocalTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VALKYRIE_EXECUTOR_IDLE_S", "0.1")
    run = finished(tracker, "ok", keep_sandbox=True)
    pid = (tracker.executor_status() or {})["pid"]
    time.sleep(0.5)
    turns, since = _turns(pid), time.monotonic()
    time.sleep(1.5)
    turns = _turns(pid) - turns
    assert turns < 150 * (time.monotonic() - since), "it looks for work without a pause"
    tracker.delete(run.id)
    until(lambda: not alive(pid))


def _turns(pid: int) -> int:
    """How often the process went to sleep and was woken."""
    words = Path(f"/proc/{pid}/status").read_text().split()
    return int(words[words.index("voluntary_ctxt_switches:") + 1])


def test_no_secret_is_in_the_executors_environment(
    tracker: LocalTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "secret-value-123")
    monkeypatch.setenv("VALKYRIE_MODEL_TOKEN", "secret-value-456")
    run = tracker.start(request("held", agent=KEYED)).run
    pid = (tracker.executor_status() or {})["pid"]
    for file in ("environ", "cmdline"):
        assert b"secret-value" not in Path(f"/proc/{pid}/{file}").read_bytes()
    tracker.stop(run.id, StopRequest(force=True))
    assert tracker.wait(run.id, timeout=60).state == "STOPPED"


def test_an_executor_that_dies_as_a_run_is_handed_over_is_followed_by_another(
    tracker: LocalTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "secret-value-123")
    died = []

    def ask(client: ExecutorClient, verb: str, **details: Any) -> Json | None:
        if verb == "secrets" and not died:
            died.append(verb)
            kill_executor(tracker)
        return unbroken(client, verb, **details)

    unbroken = ExecutorClient.ask
    monkeypatch.setattr(ExecutorClient, "ask", ask)
    run = tracker.start(request("ok", agent=KEYED)).run
    assert tracker.wait(run.id, timeout=60).state == "FINISHED"
    assert died


@pytest.mark.slow
def test_secrets_given_to_a_leaving_executor_are_asked_for_again(
    tracker: LocalTracker, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_KEY", "secret-value-123")
    first = tracker.start(request("held")).run
    until(lambda: tracker.fetch(first.id).counts["IN_PROGRESS"] == 1)
    ExecutorClient(DataFolder(home)).ask("drain")
    second = tracker.start(request("ok", agent=KEYED))
    assert any("run resume" in notice for notice in second.notices)
    tracker.stop(first.id, StopRequest(force=True))
    until(lambda: "API_KEY" in (tracker.fetch(second.run.id).note or ""))
    tracker.resume(second.run.id)
    assert tracker.wait(second.run.id, timeout=60).state == "FINISHED"
