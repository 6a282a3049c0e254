"""Session logs: what the agent wrote, what its transcript has, or nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.unit.evals.made import broken, trial
from valkyrie.evals import result_folder
from valkyrie.evals.result_folder import write_session_log

STORY: dict[str, Any] = {
    "events": [{"type": "user_message", "data": {"content": "hi"}}, {"type": "turn_end"}],
    "metadata": {"sessionID": "s-1", "startedAt": "2025-01-15T10:30:00Z"},
    "endReason": "timeout",
}


def written(tmp_path: Path, **more: Any) -> tuple[dict[str, Any], list[Any] | None]:
    """metadata.json, and the objects of events.jsonl."""
    folder = tmp_path / "trial-0"
    found = write_session_log(trial(True, **more), folder)
    about = json.loads((folder / "metadata.json").read_text())
    if found is None:
        assert not (folder / "events.jsonl").exists()
        return about, None
    return about, [json.loads(line) for line in found.read_text().split("\n")[:-1]]


def native(tmp_path: Path, data: bytes) -> Path:
    log = tmp_path / "agent.jsonl"
    log.write_bytes(data)
    return log


def test_the_agents_own_log_comes_first(tmp_path: Path) -> None:
    log = native(tmp_path, b'{"a": 1}\n\n{"b": 2}')
    about, events = written(tmp_path, session_log=log, transcript=STORY, model="m", attempts=2)
    assert events == [{"a": 1}, {"b": 2}]
    assert about == {
        "trialId": "my-eval::main::m::greet::trial-0",
        "eval": "my-eval",
        "model": "m",
        "executor": "mock",
        "variant": "main",
        "stimulus": "greet",
        "trialIndex": 0,
        "sessionID": "s-1",
        "startedAt": "2025-01-15T10:30:00Z",
        "endReason": "timeout",
        "status": "passed",
        "durationMs": 8300.0,
        "attempts": 2,
        "logSource": "native",
        "events": 2,
    }


def test_then_the_transcript_then_nothing(tmp_path: Path) -> None:
    about, events = written(tmp_path, transcript=STORY, session_log=tmp_path / "gone.jsonl")
    assert (about["logSource"], events) == ("raw-event-fallback", STORY["events"])
    about, events = written(tmp_path, transcript={"events": []}, session_log=native(tmp_path, b"\n \n"))
    assert (about["logSource"], about["events"], events) == ("none", 0, None)
    write_session_log(broken(), tmp_path / "b")
    assert json.loads((tmp_path / "b" / "metadata.json").read_text())["status"] == "execution error"


@pytest.mark.parametrize(
    ("data", "events"),
    [
        (b'[{"a": 1},\n {"b": 2}]', [{"a": 1}, {"b": 2}]),
        (b'{\n  "pretty": true\n}\n', [{"pretty": True}]),
        (
            b'text\n{"a": 1}\n\xff',
            [{"type": "raw", "text": "text"}, {"a": 1}, {"type": "raw", "text": "\ufffd"}],
        ),
        (b"[1]\n2\n", [{"type": "raw", "value": [1]}, {"type": "raw", "value": 2}]),
        (b"[" * 50_000, None),
    ],
    ids=["array", "document", "text", "values", "deep"],
)
def test_one_object_per_line_comes_out_whatever_goes_in(tmp_path: Path, data: bytes, events: Any) -> None:
    about, found = written(tmp_path, session_log=native(tmp_path, data))
    assert about["logSource"] == "native" and found
    assert all(isinstance(one, dict) for one in found)
    assert events is None or found == events


def test_links_and_pipes_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text('{"secret": 1}\n')
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "."):
        assert written(tmp_path, session_log=tmp_path / name)[0]["logSource"] == "none"


def test_logs_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_folder, "MOST_LOG_BYTES", 100)
    monkeypatch.setattr(result_folder, "LONGEST_LINE", 30)
    about, events = written(tmp_path, session_log=native(tmp_path, b'{"a":1}\n' * 50))
    assert events and 5 < len(events) < 20 and about["truncated"] is True
    assert about["events"] == len(events)
    about, events = written(tmp_path, session_log=native(tmp_path, b'{"a":1}\n' + b"x" * 95 + b'\n{"b":2}\n'))
    assert events == [{"a": 1}, {"type": "raw", "text": "x" * 30}, {"b": 2}] and about["truncated"] is True
