"""The folder an eval leaves."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.unit.evals.made import BROKEN, an_eval, invoked, stimulus, trial
from valkyrie.errors import UserError
from valkyrie.evals import result_folder
from valkyrie.evals.records import read_lines
from valkyrie.evals.result_folder import open_folder, trial_folders, write_all
from valkyrie.evals.results import Invocation, StimulusResult

NOW = datetime(2025, 1, 15, 10, 30, 0, 5678, UTC)


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def with_trial(**more: Any) -> Invocation:
    return invoked(an_eval(StimulusResult("greet", "Say foo.", [trial(True, **more)], 1)))


def test_a_folder_is_named_after_the_time_and_never_taken_twice(tmp_path: Path) -> None:
    names = [open_folder(tmp_path / "out", NOW).name for _ in range(3)]
    assert names == ["2025-01-15T10-30-00-005Z", "2025-01-15T10-30-00-006Z", "2025-01-15T10-30-00-007Z"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"Cannot write to .*file"):
        open_folder(tmp_path / "file" / "out", NOW)


def test_the_tree_is_the_published_one(tmp_path: Path) -> None:
    story = {"events": [{"type": "assistant_message", "data": {"content": "foo"}}], "output": "foo"}
    two = stimulus([True, False], "two trials")
    two = replace(two, trials=[replace(one, transcript=story) for one in two.trials])
    invocation = invoked(an_eval(two), an_eval(stimulus([BROKEN]), model=None), folder=tmp_path)
    written = write_all(invocation, junit=True)
    logs = "executor-session-logs/my-eval"
    assert list(files_below(tmp_path)) == [
        "eval-results.junit.xml",
        "eval-results.md",
        f"{logs}/default/greet/trial-0/metadata.json",
        f"{logs}/gpt-5.5/two trials/trial-0/events.jsonl",
        f"{logs}/gpt-5.5/two trials/trial-0/metadata.json",
        f"{logs}/gpt-5.5/two trials/trial-1/events.jsonl",
        f"{logs}/gpt-5.5/two trials/trial-1/metadata.json",
        "results.jsonl",
        "run-summary.jsonl",
    ]
    assert [one.stimulus for one in read_lines(written.results)] == ["two trials", "two trials", "greet"]
    assert write_all(invocation, folder=tmp_path / "other").junit is None
    assert not (tmp_path / "other" / "eval-results.junit.xml").exists()


def test_written_again_it_is_the_same(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    (kept / "sub").mkdir(parents=True)
    (kept / "sub" / "a.txt").write_text("a")
    out = tmp_path / "out"
    write_all(with_trial(artifacts=kept, transcript={"events": [{"type": "system"}]}), folder=out, junit=True)
    before = files_below(out)
    write_all(with_trial(artifacts=kept, transcript={"events": [{"type": "system"}]}), folder=out, junit=True)
    assert files_below(out) == before
    (kept / "sub" / "a.txt").unlink()
    (kept / "b.txt").write_text("b")
    write_all(with_trial(artifacts=kept), folder=out)
    below = [name.partition("trial-0/")[2] for name in files_below(out) if "trial-0/" in name]
    assert below == ["artifacts/b.txt", "metadata.json"]


def test_kept_files_come_along_but_no_links(tmp_path: Path) -> None:
    kept, secret = tmp_path / "kept", tmp_path / "secret"
    secret.write_text("secret")
    (kept / "bin").mkdir(parents=True)
    (kept / "bin" / "run").write_text("#!/bin/sh\n")
    (kept / "bin" / "run").chmod(0o4777)
    (kept / "link").symlink_to(secret)
    (kept / "folder-link").symlink_to(tmp_path)
    os.mkfifo(kept / "pipe")
    patch = tmp_path / "workspace.patch"
    patch.write_text("diff")
    out = tmp_path / "out"
    written = write_all(with_trial(artifacts=kept, patch=patch), folder=out)
    own = "executor-session-logs/my-eval/gpt-5.5/greet/trial-0"
    assert sorted(path.name for path in (out / own / "artifacts").rglob("*")) == ["bin", "run"]
    assert (out / own / "artifacts" / "bin" / "run").stat().st_mode & 0o7777 == 0o755
    read = read_lines(written.results)[0]
    assert (read.artifacts, read.patch) == (Path(own, "artifacts"), Path(own, "workspace.patch"))
    assert (out / own / "workspace.patch").read_text() == "diff"
    linked = with_trial(artifacts=kept / "folder-link", patch=kept / "link")
    read = read_lines(write_all(linked, folder=tmp_path / "more").results)[0]
    assert (read.artifacts, read.patch) == (None, None)


def test_too_many_kept_files_are_cut_and_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_folder, "MOST_FILES", 2)
    kept = tmp_path / "kept"
    kept.mkdir()
    for number in range(4):
        (kept / str(number)).touch()
    write_all(with_trial(artifacts=kept), folder=tmp_path / "out")
    found = files_below(tmp_path / "out")
    assert sum("artifacts/" in name for name in found) == 2
    assert any(b'"artifactsTruncated": true' in data for data in found.values())


def test_names_of_evals_models_and_stimuli_never_leave_the_folder_or_meet(tmp_path: Path) -> None:
    names = ["../../x", "a/b", "a-b", "A-B", " ", "\x1b]0;x\x07", "n" * 400]
    evals = [
        an_eval(*(stimulus([True], name) for name in names), name=name, model=model, file=file)
        for name, model, file in [
            ("../e", "m/x", "one.yaml"),
            ("../e", "m/x", "two.yaml"),
            ("../e", "m-x", "two.yaml"),
            ("../e", None, "two.yaml"),
            ("../e", "default", "two.yaml"),
        ]
    ]
    folders = trial_folders(invoked(*evals))
    assert len({str(folder).casefold() for folder in folders.values()}) == len(evals) * len(names)
    assert {len(folder.parts) for folder in folders.values()} == {4}
    written = write_all(invoked(*evals), folder=tmp_path / "out", junit=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert len(read_lines(written.results)) == len(evals) * len(names)


def test_what_a_killed_process_was_writing_goes(tmp_path: Path) -> None:
    (tmp_path / ".valkyrie-0123").write_text("half of it")
    write_all(with_trial(), folder=tmp_path)
    assert not list(tmp_path.glob(".*"))


def test_a_failed_write_leaves_the_older_file(tmp_path: Path) -> None:
    written = write_all(with_trial(), folder=tmp_path)
    before = written.results.read_bytes()
    logs = tmp_path / "executor-session-logs"
    for path in sorted(logs.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    logs.rmdir()
    logs.touch()
    with pytest.raises(UserError, match="Cannot write to"):
        write_all(with_trial(duration_ms=1.0), folder=tmp_path)
    assert written.results.read_bytes() == before
    assert not list(tmp_path.glob(".*"))


def test_a_threshold_is_kept_with_each_record(tmp_path: Path) -> None:
    held = replace(stimulus([True, False]), threshold=0.5)
    written = write_all(invoked(an_eval(held, threshold=0.5)), folder=tmp_path)
    assert [one.threshold for one in read_lines(written.results)] == [0.5, 0.5]


def test_spans_are_lines_a_collector_reads(tmp_path: Path) -> None:
    from google.protobuf.json_format import Parse
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    began = {"startedAt": "2025-01-15T10:30:00+00:00"}
    call = {"type": "tool_call", "data": {"toolName": "bash", "toolCallId": "c"}}
    story = {"events": [call], "output": "foo", "metadata": began}
    two = stimulus([True, BROKEN])
    two = replace(two, trials=[replace(one, transcript=story) for one in two.trials])
    write_all(invoked(an_eval(two), folder=tmp_path), spans=True)
    text = (tmp_path / result_folder.SPANS).read_text()
    first, second = (Parse(line, ExportTraceServiceRequest()) for line in text.splitlines())
    trial_span, call_span = first.resource_spans[0].scope_spans[0].spans
    assert (trial_span.name, call_span.name) == ("trial greet", "execute_tool bash")
    assert trial_span.start_time_unix_nano == 1_736_937_000_000_000_000 <= call_span.end_time_unix_nano
    assert (call_span.trace_id, call_span.parent_span_id) == (trial_span.trace_id, trial_span.span_id)
    said = {one.key: one.value for one in trial_span.attributes}
    assert said["valkyrie.passed"].bool_value and said["valkyrie.trial.index"].int_value == 0
    failed = second.resource_spans[0].scope_spans[0].spans[0]
    assert failed.status.code == 2 and failed.trace_id != trial_span.trace_id
    write_all(invoked(an_eval(two), folder=tmp_path), spans=True)
    assert (tmp_path / result_folder.SPANS).read_text() == text
