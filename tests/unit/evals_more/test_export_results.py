"""Results in other tools' forms."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from valkyrie.errors import UsageError
from valkyrie.evals.exporting.protocol import Exported, ExportRequest
from valkyrie.evals.exporting.registry import find_exporter
from valkyrie.evals.exporting.sources import from_folders
from valkyrie.evals.records import dump_line, to_line
from valkyrie.evals.results import TrialFault, TrialResult
from valkyrie.grade.protocol import GraderResult
from valkyrie.specs.reading import read_text

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
    found = find_exporter("valkyrie.evals.exporting.lines:export_csv")
    assert found is find_exporter("csv")
    with pytest.raises(UsageError, match="no module 'nowhere'"):
        find_exporter("nowhere:custom")


def test_atif_has_a_trajectory_per_trial_that_can_be_graded_again(tmp_path: Path) -> None:
    from valkyrie.trajectory.records import to_record
    from valkyrie.trajectory.sniffing import read_foreign
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
