"""The files of a run: names that are safe and apart, contents that are whole."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark_runner import (
    EvalResult,
    EvalStatus,
    GenerationResult,
    GenerationStatus,
    RunArtifacts,
    ScoreResult,
)
from benchmark_runner.artifacts import ArtifactError, RunInUseError, checked_run_id, folder_name
from benchmark_runner.checkpoint import RunConfig

PRINTABLE = st.text(min_size=1, max_size=300).filter(str.isprintable)
TRICKY = st.text("./\\%~ :2Ejson", min_size=1, max_size=12)


def answer(task_id: str = "t", data: Any = "42") -> GenerationResult:
    return GenerationResult(task_id=task_id, status=GenerationStatus.SUCCESS, data=data)


@given(PRINTABLE | TRICKY)
def test_a_folder_is_one_plain_name(task_id: str) -> None:
    name = folder_name(task_id)
    assert Path(name).parts == (name,) and name not in (".", "..")
    assert not name.startswith(".") and not name.endswith(".json")
    assert name.isascii() and name.isprintable() and len(name) <= 200
    if "%~" not in name:
        assert unquote(name) == task_id


@given(PRINTABLE | TRICKY, PRINTABLE | TRICKY)
def test_no_two_tasks_share_a_folder(one: str, other: str) -> None:
    assert (folder_name(one) == folder_name(other)) == (one == other)


@given(st.text("abc", min_size=1, max_size=3), st.text("abc", min_size=1, max_size=3))
def test_long_ids_that_differ_at_their_end_do_not_either(one: str, other: str) -> None:
    long = "ü" * 200
    assert (folder_name(long + one) == folder_name(long + other)) == (one == other)


@pytest.mark.parametrize("task_id", ["django__django-123", "a.b", "Task 7", "x@y:z", "f(a)[1]", "a_b-c=d"])
def test_plain_ids_stay_readable(task_id: str) -> None:
    assert folder_name(task_id) == task_id


@pytest.mark.parametrize("task_id", ["", "a\nb", "\x00", "a\u202eb", "\ud800"])
def test_what_is_no_task_id(task_id: str) -> None:
    with pytest.raises(ValueError, match="is no task id"):
        folder_name(task_id)


@pytest.mark.parametrize("run_id", ["", ".", "..", "a/b", "a\\b", "a\nb", "x" * 201, "ü" * 101])
def test_what_is_no_run_id(run_id: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="run id"):
        RunArtifacts(tmp_path, run_id)


def test_run_ids_may_be_words() -> None:
    for run_id in ("r1", "2026-01-01 gpt (2)", "ünï", "-x", ".hidden"):
        assert checked_run_id(run_id) == run_id


def test_where_things_are(tmp_path: Path) -> None:
    run = RunArtifacts(str(tmp_path), "r1")
    assert run.config_path == tmp_path / "r1" / "run_config.json"
    assert run.score_path == tmp_path / "r1" / "final_score.json"
    assert run.generation_path("t") == tmp_path / "r1" / "t" / "generation.json"
    assert run.eval_path("a/b") == tmp_path / "r1" / "a%2Fb" / "eval.json"
    assert run.log_dir("t") == tmp_path / "r1" / "t" / "agent_logs"
    assert list(tmp_path.iterdir()) == [], "looking makes nothing"


def test_what_is_written_is_read(tmp_path: Path) -> None:
    run = RunArtifacts(tmp_path, "r1")
    assert run.read_config() is run.read_generation("t") is run.read_eval("t") is run.read_score() is None
    config = RunConfig(run_id="r1", model="m", tasks=["t"])
    evaluation = EvalResult(task_id="t", status=EvalStatus.EVALUATED, result={"x": 1})
    score = ScoreResult(tasks_evaluated=["t"], final_score=1.0, complete=True)
    run.write_config(config)
    run.write_generation(answer())
    run.write_eval(evaluation)
    run.write_score(score)
    assert run.read_config() == config
    assert run.read_generation("t") == answer()
    assert run.read_eval("t") == evaluation
    assert run.read_score() == score
    text = run.generation_path("t").read_text()
    assert text.endswith("}\n") and '\n  "task_id": "t",\n' in text
    run.drop_eval("t")
    run.drop_score()
    run.drop_score()
    assert run.read_eval("t") is run.read_score() is None
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        "generation.json",
        "r1",
        "run_config.json",
        "t",
    ]


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    run = RunArtifacts(tmp_path, "r1")
    run.write_generation(answer())
    with pytest.raises(ValueError, match="not JSON"):
        run.write_generation(answer(data=object()))
    assert run.read_generation("t") == answer()
    (tmp_path / "r1" / "u").write_text("in the way")
    with pytest.raises(ArtifactError, match=r"u/generation.json cannot be written: Not a directory\."):
        run.write_generation(answer("u"))
    assert not list(tmp_path.rglob(".new-*"))


def test_a_full_disk_is_said_and_leaves_what_was_there(tmp_path: Path) -> None:
    import resource
    import signal

    run = RunArtifacts(tmp_path, "r1")
    run.write_generation(answer())
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(ArtifactError, match=r"generation.json cannot be written: File too large\."):
            run.write_generation(answer(data="x" * 5000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, ignored)
    assert run.read_generation("t") == answer()
    assert not list(tmp_path.rglob(".new-*"))


def test_half_a_character_is_replaced(tmp_path: Path) -> None:
    run = RunArtifacts(tmp_path, "r1")
    run.write_generation(answer(data="a\ud83d"))
    assert json.loads(run.generation_path("t").read_bytes())["data"] == "a?"


def test_what_cannot_be_read_is_put_aside(tmp_path: Path) -> None:
    run = RunArtifacts(tmp_path, "r1")
    run.write_generation(answer())
    run.generation_path("t").write_text('{"task_id"')
    assert run.read_generation("t") is None
    aside = run.generation_path("t").with_name("generation.json.unreadable")
    assert run.set_aside == [aside] and aside.read_text() == '{"task_id"'
    assert run.read_generation("t") is None and len(run.set_aside) == 1


def test_a_broken_configuration_is_an_error(tmp_path: Path) -> None:
    run = RunArtifacts(tmp_path, "r1")
    run.root.mkdir()
    run.config_path.write_text('{"run_id": "r1", "tasks": []}')
    with pytest.raises(ArtifactError, match=r"run_config.json is not a run's configuration: model: Field"):
        run.read_config()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    run, other = RunArtifacts(tmp_path, "r1"), RunArtifacts(tmp_path, "r1")
    with run.in_use():
        with pytest.raises(RunInUseError, match="Another process is working on run r1"), other.in_use():
            pass
        run.write_config(RunConfig(run_id="r1", model="m", tasks=[]))
    with other.in_use():
        pass
    assert run.read_config() is not None


@pytest.mark.parametrize("had", [True, False])
def test_an_attempt_that_came_to_nothing_leaves_nothing(tmp_path: Path, had: bool) -> None:
    results = tmp_path / "results"
    if had:
        results.mkdir()
    with RunArtifacts(results, "r1").in_use():
        assert (results / "r1").is_dir()
    assert list(tmp_path.rglob("*")) == ([results] if had else [])


def test_what_a_killed_process_began_is_swept(tmp_path: Path) -> None:
    run = RunArtifacts(tmp_path, "r1")
    run.write_config(RunConfig(run_id="r1", model="m", tasks=["t"]))
    run.write_generation(answer())
    left = [run.root / ".new-run_config.json-1", run.root / "t" / ".new-eval.json-77"]
    logs = run.log_dir("t")
    logs.mkdir()
    for path in (*left, logs / ".new-idea"):
        path.write_text("{")
    (run.root / "link").symlink_to(tmp_path)
    with run.in_use():
        assert not any(path.exists() for path in left)
    assert (logs / ".new-idea").exists(), "logs are the author's"
    assert run.has_answers() and not RunArtifacts(tmp_path, "r2").has_answers()
    assert os.listdir(logs) == [".new-idea"]
