"""Runs and jobs exported, and taken in on another machine: nothing people export for is lost."""

from __future__ import annotations

import csv
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.integration.evals.commands import Valk, valk
from valkyrie.evals.export.sources import again_words
from valkyrie.tracker import open_tracker
from valkyrie.tracker.protocol import NamedRuns, named_runs

__all__ = ["valk"]

JOB = {"id": "7d1e8a00-0000-4000-8000-000000000000", "name": "nightly"}
WHO = ("worker", "nop")


def record(agent: str, task: int, *, passed: bool) -> dict[str, Any]:
    grade = {"passed": passed, "score": float(passed), "evidence": "", "details": []}
    events = [{"type": "user_message", "data": {"content": f"Do {task}."}}]
    story = {"id": f"t{task}", "stimulus": f"t{task}", "events": events, "output": "done", "metadata": {}}
    return {
        "type": "trial-result",
        "stimulus": f"t{task}",
        "status": "success",
        "durationMs": 1500.0,
        "trialIndex": 0,
        "runId": f"run of {agent}",
        "eval": "bench",
        "executor": agent,
        "model": "m1",
        "reason": None if passed else f"=FAIL\x1b[31m {task} is not 3\n::error::",
        "exit": {"code": 0 if passed else 3, "reason": None},
        "usage": {"inputTokens": 100, "cacheReadTokens": 10, "outputTokens": 20, "cost": 0.25},
        "job": {**JOB, "position": WHO.index(agent)},
        "log": f"logs/{agent}-{task}.log",
        "gradeResult": grade,
        "trajectory": story,
    }


@pytest.fixture
def job(valk: Valk, tmp_path: Path) -> Valk:
    """A store with a job of two runs on eight tasks."""
    folder = tmp_path / "made"
    (folder / "logs").mkdir(parents=True)
    records = [record(agent, task, passed=agent == "worker") for agent in WHO for task in range(8)]
    for one in records:
        (folder / one["log"]).write_text(f"{one['executor']} tried {one['stimulus']}\n")
    (folder / "results.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    assert valk("ingest", folder).code == 0
    return valk


def told(valk: Valk) -> dict[str, Any]:
    """What a store says of the job, but for ids and times."""
    summary = valk("job", "summary", "nightly", "--json").json
    agents = [valk("run", "fetch", f"nightly/{agent}", "--json").json["run"] for agent in WHO]
    trials = [valk("run", "tasks", f"nightly/{agent}", "--json").json["trials"] for agent in WHO]
    shown = valk("run", "show", "nightly/worker", "t3", "--json").json
    return {
        "sentence": [one["sentence"] for one in summary["comparisons"]],
        "scores": [(run["agent"], run["model"], run["score"]["final_score"]) for run in agents],
        "used": [(run["cost"]["total"], run["tokens"]["input"], run["tokens"]["output"]) for run in agents],
        "trials": [
            [(one["task_id"], one["score"], one["reason"], one["exit_code"]) for one in own] for own in trials
        ],
        "log": valk("run", "logs", "nightly/nop", "t2").out.splitlines()[-1],
        "trajectory": shown["accounts"][0]["trajectory"]["steps"],
    }


def test_a_job_is_the_same_on_another_machine(
    job: Valk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = told(job)
    assert "beats nop" in here["sentence"][0] and here["log"] == "nop tried t2"
    assert here["used"] == [(2.0, 800, 160)] * 2 and here["trajectory"]
    assert here["trials"][1][2] == ("t2", 0.0, "=FAIL 2 is not 3 ::error::", 3)
    assert job("export", "nightly", "--exporter", "jsonl", "--output-dir", tmp_path / "out").code == 0
    monkeypatch.setenv("VALKYRIE_HOME", str(tmp_path / "elsewhere"))
    assert job("run", "list", "--json").json["runs"] == []
    assert job("ingest", tmp_path / "out").code == 0
    assert told(job) == here
    assert "known" in job("ingest", tmp_path / "out").out


def test_every_form_has_what_people_export_for(job: Valk, tmp_path: Path) -> None:
    for name in ("csv", "junit", "markdown", "atif", "jsonl"):
        said = job("export", "nightly", "--exporter", name, "--output-dir", tmp_path / name)
        assert said.code == 0 and not said.err, said
    with (tmp_path / "csv" / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    wanted = ("executor", "stimulus", "score", "exit_code", "input_tokens", "output_tokens", "cost")
    assert [rows[9][name] for name in wanted] == ["nop", "t1", "0.0", "3", "100", "20", "0.25"]
    assert rows[9]["reason"] == "'=FAIL 1 is not 3 ::error::"
    suites = ElementTree.parse(tmp_path / "junit" / "eval-results.junit.xml").getroot()
    assert [suite.get("name") for suite in suites] == [f"bench [{agent}:m1] (ingested)" for agent in WHO]
    failure = suites[1].find(".//failure")
    assert failure is not None and "0 is not 3" in (failure.text or "") + (failure.get("message") or "")
    assert "agent's end: exit code 3, 100 tokens in, 20 out; $0.25" in (
        suites[1].findtext("system-out") or ""
    )
    text = (tmp_path / "markdown" / "eval-results.md").read_text()
    assert (
        re.search(r"\| bench \(ingested\) \| worker \| m1 ", text) and "worker:m1 \\(ingested\\)" not in text
    )
    assert "beats nop" in text.replace("\\", "") and "7 is not 3" in text and "\x1b" not in text
    assert "Run it again" not in text  # it ran elsewhere
    files = sorted(path.name for path in (tmp_path / "atif").iterdir())
    assert len(files) == 16 and files[0] == "main-bench-nop-m1-t0-trial-0.json"
    first = json.loads((tmp_path / "jsonl" / "results.jsonl").read_text().splitlines()[8])
    assert first["gradeResult"]["evidence"].startswith("=FAIL") and first["trajectory"]["events"]


def test_every_line_that_runs_it_again_does(job: Valk) -> None:
    asked = {"benchmark": "quickstart", "trials": 2, "slice": ":2", "settings": {"verify": "fresh"}}
    tracker = open_tracker()
    try:
        named = named_runs(tracker, "nightly")
    finally:
        tracker.close()
    runs = [
        replace(run, provider="local", model=None, arguments={"agent": agent, **asked})
        for run, agent in zip(named.runs, ("oracle", "nop"), strict=True)
    ]
    commands = [*again_words(NamedRuns(runs[:1])), *again_words(NamedRuns(runs, named.job))]
    assert [words[:3] for words in commands] == [["valk", "run", "start"], ["valk", "job", "run"]]
    for words in commands:
        said = job(*shlex.split(shlex.join(words))[1:], "--dry-run", "--json")
        assert said.code == 0, (words, said)
        assert said.out.count("fix-interval-merge") >= 2 and "flatten-orders-csv" not in said.out
