"""Results in other tools' forms."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from valkyrie.errors import UnknownError, UsageError
from valkyrie.evals.export.formats import Exported, ExportRequest, find_exporter
from valkyrie.evals.export.sources import from_folders, from_tracker
from valkyrie.evals.records import dump_line, to_line
from valkyrie.evals.results import TrialFault, TrialResult
from valkyrie.grade.protocol import GraderResult
from valkyrie.specs.reader import read_text
from valkyrie.tracker.protocol import PAGE
from valkyrie.views import RunView, ScoreView, TrialFilter, TrialView

TRIALS = [
    TrialResult("e", "good", 0, model="m", score=1.0, passed=True, duration_ms=1500.0),
    TrialResult(
        "e",
        "bad",
        0,
        model="m",
        score=0.5,
        passed=False,
        graders=[GraderResult("=cmd", "output-contains", False, 0.0, "no")],
    ),
    TrialResult("e", "gone", 0, model="m", fault=TrialFault("execution", "-2 lost", "infrastructure", "x")),
]
SPEC = """
name: e
tags: {team: a}
stimuli:
  - {name: one, turns: [Hi., Bye.], graders: [{type: completed}], runs: 3}
"""


@pytest.fixture
def results(tmp_path: Path) -> Path:
    folder = tmp_path / "r" / "2025-01-15T10-30-00-005Z"
    folder.mkdir(parents=True)
    (folder / "results.jsonl").write_text("".join(dump_line(to_line(one)) + "\n" for one in TRIALS))
    return folder.parent


def export(name: str, results: Path, out: Path) -> Exported:
    return find_exporter(name)(ExportRequest(out, results=from_folders([results])))


def test_csv_has_a_row_per_trial_and_no_formula(results: Path, tmp_path: Path) -> None:
    [path] = export("csv", results, tmp_path / "out").written
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["stimulus"], row["outcome"], row["passed"], row["score"]) for row in rows] == [
        ("good", "passed", "true", "1.0"),
        ("bad", "failed", "false", "0.5"),
        ("gone", "execution error", "", ""),
    ]
    assert rows[1]["failed_graders"] == "'=cmd"
    assert (rows[2]["error"], rows[2]["error_category"]) == ("'-2 lost", "infrastructure")


def test_jsonl_is_what_was_read(results: Path, tmp_path: Path) -> None:
    [path] = export("jsonl", results, tmp_path / "out").written
    assert path.read_text() == next(results.glob("*/results.jsonl")).read_text()


def test_junit_and_markdown_are_the_reports_of_an_eval(results: Path, tmp_path: Path) -> None:
    [path] = export("junit", results, tmp_path / "out").written
    [suite] = ElementTree.parse(path).getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    assert (suite.get("timestamp") or "").startswith("2025-01-15T10:30:00")
    [path] = export("markdown", results, tmp_path / "out").written
    assert "1 passed, 1 failed, 1 execution error" in path.read_text()


def test_specs_as_lists(tmp_path: Path) -> None:
    spec = read_text(SPEC, tmp_path / "eval.yaml").spec
    request = ExportRequest(tmp_path / "out", specs=[spec])
    [path] = find_exporter("csv")(request).written
    with path.open(newline="") as file:
        [row] = csv.DictReader(file)
    assert (row["stimulus"], row["turns"], row["graders"], row["runs"]) == ("one", "2", "completed", "3")
    [path] = find_exporter("jsonl")(request).written
    [line] = map(json.loads, path.read_text().splitlines())
    assert (line["turns"], line["tags"]) == (["Hi.", "Bye."], {"team": ["a"]})
    [path] = find_exporter("junit")(request).written
    [suite] = ElementTree.parse(path).getroot()
    assert (suite.get("tests"), suite.get("skipped")) == ("1", "1")
    with pytest.raises(UsageError, match="markdown reports results"):
        find_exporter("markdown")(request)


def test_options_nobody_reads_are_refused(results: Path, tmp_path: Path) -> None:
    request = ExportRequest(tmp_path, results=from_folders([results]), options={"x": "1"})
    with pytest.raises(UsageError, match="csv has no option 'x'; it takes none"):
        find_exporter("csv")(request)


def test_an_exporter_by_module_and_name() -> None:
    found = find_exporter("valkyrie.evals.export.formats:export_csv")
    assert found is find_exporter("csv")
    with pytest.raises(UsageError, match="no module 'nowhere'"):
        find_exporter("nowhere:custom")


def test_atif_has_a_trajectory_per_trial_that_can_be_graded_again(tmp_path: Path) -> None:
    from valkyrie.trajectory.agent_logs import read_foreign
    from valkyrie.trajectory.records import to_record
    from valkyrie.trajectory.transcript import Event, Transcript

    said = [Event("user_message", {"content": "Hi."}), Event("assistant_message", {"content": "Hello."})]
    record = to_record(Transcript("Hello.", said, model="m"), id="x", stimulus="good", work_dir="/workspace")
    trials = [TrialResult("e", "a/b", 0, passed=True, score=1.0, transcript=record), TRIALS[2]]
    results = tmp_path / "r"
    results.mkdir()
    (results / "results.jsonl").write_text("".join(dump_line(to_line(one)) + "\n" for one in trials))
    done = export("atif", results, tmp_path / "out")
    [path] = done.written
    assert path.parent == tmp_path / "out" and len(done.warnings) == 1
    [foreign] = read_foreign(path.read_text())
    assert foreign.transcript.output == "Hello."


class OneRun:
    """A tracker that knows one run: a good trial, a doubtful one, one its agent ended, one lost."""

    def fetch_job(self, ref: str) -> None:
        raise UnknownError(f"No job {ref}.")

    def fetch(self, _ref: str) -> RunView:
        return RunView(
            id="r", benchmark="b", dataset="default", agent="a", model="m", label=None, provider="local",
            state="FINISHED", counts={}, total=4, concurrency=1, created_at=0.0, started_at=0.0,
            finished_at=1.0, started_by=None, error=None, note=None, executor="none", folder="",
            arguments={}, enforcement={}, version=1,
            score=ScoreView(
                0.5, 2 / 3, 2, 4, 0.75, {"agent": 1, "infrastructure": 1}, True, True, 2, None, None,
                0.25, 1, 1, 1, 0.5, 0.75, 1,
            ),
        )  # fmt: skip

    def trials(self, _ref: str, _query: object) -> tuple[list[TrialView], int]:
        shared = {"mode": "shared", "open_to_tampering": True, "system": {"added": 1, "changed": 1}}
        found = [
            a_trial("good", 1.0, confirmed=True, score_confirmed=1.0, evidence={"mode": "fresh"}),
            a_trial("odd", 1.0, confirmed=False, score_confirmed=0.0, evidence=shared),
            a_trial("quit", None, state="ERROR", category="agent", cause="agent_failed", message="exit 3"),
            a_trial("lost", None, state="ERROR", category="infrastructure", cause="sandbox_failed"),
        ]
        return found, len(found)


def a_trial(task: str, score: float | None, **more: Any) -> TrialView:
    names = (
        "category cause message exit_code exit_reason retry_at started_at finished_at confirmed "
        "score_confirmed evidence"
    )
    passed = None if score is None else score >= 1
    made: dict[str, Any] = {"state": "FINISHED", **dict.fromkeys(names.split()), **more}
    return TrialView(task, 0, attempts=1, score=score, passed=passed, timing={}, digest="d", **made)


class ManyTrials(OneRun):
    """A run of three pages."""

    def __init__(self) -> None:
        self.asked: list[TrialFilter] = []

    def trials(self, _ref: str, query: object) -> tuple[list[TrialView], int]:
        assert isinstance(query, TrialFilter) and query.after is not None
        self.asked.append(query)
        first = query.after + 1
        found = [
            replace(a_trial(f"t{number}", 1.0), position=number, result={"threshold": 0.5})
            for number in range(first, min(first + query.limit, 2 * PAGE + 5))
        ]
        return found, len(found)


@pytest.mark.parametrize("name", ["csv", "jsonl"])
def test_trials_of_a_store_are_written_as_they_are_read(name: str, tmp_path: Path) -> None:
    opened = ManyTrials()
    results = from_tracker(opened, ["r"])  # type: ignore[arg-type]
    assert not opened.asked
    trials = results.evals[0].each_trial()
    first = next(trials)
    assert (first.stimulus, first.threshold, first.planned) == ("t0", 0.5, 1)
    assert [query.after for query in opened.asked if query.detail == "result"] == [-1]
    trials.close()  # type: ignore[attr-defined]
    [path] = find_exporter(name)(ExportRequest(tmp_path, results=results)).written
    assert len(path.read_text().splitlines()) == 2 * PAGE + 5 + (name == "csv")
    assert [query.after for query in opened.asked if query.detail == "result"][1:] == [-1, 999, 1999]
    assert [one.name for one in results.evals[0].stimuli[-2:]] == ["t2003", "t2004"]


def of_the_store(name: str, out: Path) -> str:
    results = from_tracker(OneRun(), ["r"])  # type: ignore[arg-type]
    [path] = find_exporter(name)(ExportRequest(out, results=results)).written
    return path.read_text()


def test_a_runs_csv_has_zeros_and_evidence(tmp_path: Path) -> None:
    rows = list(csv.DictReader(of_the_store("csv", tmp_path).splitlines()))
    assert [(row["outcome"], row["score"], row["confirmed"]) for row in rows] == [
        ("passed", "1.0", "true"),
        ("passed", "1.0", "false"),
        ("failed", "0.0", ""),
        ("execution error", "", ""),
    ]
    odd, quit_ = rows[1], rows[2]
    assert (odd["verified_in"], odd["open_to_tampering"], odd["system_files_changed"]) == (
        "shared",
        "true",
        "2",
    )
    assert json.loads(odd["evidence"])["system"] == {"added": 1, "changed": 1}
    assert (quit_["counted_as_zero"], quit_["error_category"], quit_["error"]) == (
        "agent_failed",
        "agent",
        "exit 3",
    )


class NotStarted(OneRun):
    """A run whose agents ended with codes; one was ended from outside, which is no code of its own."""

    def trials(self, _ref: str, _query: object) -> tuple[list[TrialView], int]:
        missing = {"state": "ERROR", "category": "agent", "cause": "agent_not_started", "exit_code": 127}
        found = [
            a_trial("gone", None, **missing),
            a_trial("lost", None, **missing),
            a_trial("slow", 0.0, exit_code=124, exit_reason="timeout"),
            a_trial("good", 1.0, exit_code=0),
        ]
        return found, len(found)


def test_exports_say_which_agents_ended_with_an_exit_code(tmp_path: Path) -> None:
    results = from_tracker(NotStarted(), ["r"])  # type: ignore[arg-type]
    texts = {
        name: find_exporter(name)(ExportRequest(tmp_path, results=results)).written[0].read_text()
        for name in ("markdown", "junit", "csv", "jsonl")
    }
    said = "2 of 4 agents ended with exit code 127; `valk run logs r`"
    assert f"\n> {said}\n" in texts["markdown"]
    [suite] = ElementTree.fromstring(texts["junit"])
    told = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert told["agentExits"] == said
    assert [one.text.count("agent's end: exit code 127") for one in suite.iter("failure") if one.text] == [
        1,
        1,
        0,
    ]
    assert "trial 1 failed in 0.0s, score 0.0%, agent's end: timeout" in (suite.findtext("system-out") or "")
    rows = [(row["exit_code"], row["exit_reason"]) for row in csv.DictReader(texts["csv"].splitlines())]
    assert rows == [("127", ""), ("127", ""), ("124", "timeout"), ("0", "")]
    lines = [json.loads(line)["exit"]["code"] for line in texts["jsonl"].splitlines()]
    assert lines == [127, 127, 124, 0]
    assert "agents ended with" not in of_the_store("markdown", tmp_path / "none")


def test_a_runs_jsonl_has_how_it_was_verified(tmp_path: Path) -> None:
    good, odd, quit_, lost = map(json.loads, of_the_store("jsonl", tmp_path).splitlines())
    assert good["verification"] == {"confirmed": True, "scoreConfirmed": 1.0, "evidence": {"mode": "fresh"}}
    assert odd["verification"]["evidence"]["open_to_tampering"]
    assert quit_["gradeResult"]["score"] == 0.0 and quit_["verification"]["countedAsZero"]
    assert "verification" not in lost and lost["status"] == "error"


def test_a_runs_markdown_and_junit_say_range_and_doubts(tmp_path: Path) -> None:
    text = of_the_store("markdown", tmp_path)
    assert "| 50.0% to 75.0% |" in text
    assert "> 50.0 % to 75.0 %, depending on 1 ungraded trial" in text
    assert "score\\_confirmed 25.0 %: 1 of 2 passes was seen in a fresh sandbox" in text
    assert "> 1 of 2 trials is graded in the sandbox the agent left: open to tampering" in text
    assert "- counted as 0: agent/agent\\_failed" in text and "- open to tampering" in text
    suite = ElementTree.fromstring(of_the_store("junit", tmp_path)).find("testsuite")
    assert suite is not None
    properties = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert (properties["scoreLow"], properties["scoreHigh"]) == ("0.5000", "0.7500")
    assert (properties["scoreConfirmed"], properties["unconfirmedPasses"]) == ("0.2500", "1")
    assert [one.get("message") for one in suite.iter("failure")] == ["counted as 0: agent_failed"]
