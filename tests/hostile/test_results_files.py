"""Results files of strangers: what they say is marked, bounded and printed as text, never obeyed."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.evals.commands import Said, Valk, valk
from valkyrie.trial.outputs import OUTPUT_LIMITS

__all__ = ["valk"]

CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
HOSTILE = (
    "::set-output name=token::stolen\r::add-mask::x\n\u00a0::error file=a::b\u2028::warning::c "
    "##vso[task.setvariable variable=PATH]/evil ##[set-env name=A]b ##teamcity[message text='x'] "
    "\x1b]0;owned\x07\x1b[2J\x1b]8;;http://evil\x1b\\\x9b31m\u202egnp.exe\u2066"
)


def record(stimulus: str = "task", score: Any = 1.0, **more: Any) -> dict[str, Any]:
    """A trial as another tool writes it."""
    return {
        "type": "trial-result",
        "variant": "main",
        "stimulus": stimulus,
        "status": "success",
        "durationMs": 10,
        "eval": "theirs",
        "model": "m",
        "executor": "agent",
        "gradeResult": {"passed": True, "score": score, "details": []},
        "trajectory": None,
        **more,
    }


def write(folder: Path, *records: dict[str, Any] | str) -> Path:
    """Make a folder of results."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [one if isinstance(one, str) else json.dumps(one) for one in records]
    (folder / "results.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def hostile_record(number: int) -> dict[str, Any]:
    """Return a trial in which every text attacks whoever prints it."""
    said = f"{HOSTILE} {number}"
    grade = {
        "passed": False,
        "score": 0.5,
        "evidence": said,
        "details": [{"name": said, "kind": "code", "passed": False, "score": 0.0, "evidence": said}],
    }
    story = {
        "id": said,
        "stimulus": {"name": said, "prompt": said},
        "events": [{"type": "assistant_message", "data": {"content": said}}],
        "output": said,
        "metadata": {"model": said, "executor": said},
    }
    texts = {"variant": HOSTILE, "eval": HOSTILE, "model": HOSTILE, "executor": HOSTILE, "family": HOSTILE}
    return record(said, **texts, evalFile=HOSTILE, gradeResult=grade, trajectory=story)


def hostile_error(number: int) -> dict[str, Any]:
    """Return a trial that failed, with such a message."""
    failed = hostile_record(number)
    fault = {"kind": "execution", "category": "agent", "cause": HOSTILE, "message": HOSTILE}
    return {**failed, "status": "error", "error": HOSTILE, "fault": fault, "gradeResult": None}


def assert_harmless(said: Said) -> None:
    """Nothing of what was printed moves a cursor, turns text round or commands a CI system."""
    for text in (said.out, said.err):
        assert not CONTROLS.search(text), text
        for line in re.split(r"[\n\r]", text):
            assert not line.strip().startswith("::"), line
            assert not re.search(r"##\w*\[", line), line


@pytest.fixture
def ingested(valk: Valk, tmp_path: Path) -> Iterator[str]:
    """A run of nothing but hostile texts."""
    write(tmp_path / "bad", *(hostile_record(n) for n in range(3)), *(hostile_error(n) for n in (3, 4)))
    said = valk("ingest", "bad", "--json")
    assert said.code == 0, said.err
    assert_harmless(said)
    yield said.json["runs"][0]["run_id"]


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_no_command_prints_what_a_terminal_or_a_ci_system_obeys(
    valk: Valk, ingested: str, tmp_path: Path, more: tuple[str, ...]
) -> None:
    write(tmp_path / "good", *(record(f"{HOSTILE} {n}", eval=HOSTILE, model="m2") for n in range(3)))
    other = valk("ingest", "good", "--json").json["runs"][0]["run_id"]
    task = f"{HOSTILE} 0"
    for words in (
        ("ingest", "bad", "--dry-run"),
        ("run", "list"),
        ("run", "fetch", ingested),
        ("run", "tasks", ingested),
        ("run", "errors", ingested),
        ("run", "logs", ingested),
        ("run", "logs", ingested, task),
        ("run", "show", ingested, task),
        ("run", "logs", ingested, HOSTILE),
        ("run", "results", ingested, "--path", "-"),
        ("compare", ingested, other),
        ("compare", "bad", "good"),
        ("export", ingested, "--exporter", "csv", "--output-dir", "out"),
        ("run", "fetch", HOSTILE),
        ("ingest", HOSTILE),
    ):
        if words[1:2] == ("results",) and more:
            continue
        assert_harmless(valk(*words, *more))


def test_exports_hold_nothing_that_is_obeyed(valk: Valk, ingested: str, tmp_path: Path) -> None:
    for exporter in ("csv", "jsonl", "junit", "markdown", "atif"):
        said = valk("export", ingested, "--exporter", exporter, "--output-dir", "out")
        assert said.code == 0, said.err
        assert_harmless(said)
    # Logs and transcripts as they were kept lie apart, byte for byte: `ingest` takes them up again.
    kept = tmp_path / "out" / "trials"
    assert {file.name for file in kept.rglob("*") if file.is_file()} == {"attempt.log", "transcript.json"}
    for file in (tmp_path / "out").rglob("*"):
        assert not CONTROLS.search(file.name), file
        if file.is_dir() or file.is_relative_to(kept):
            continue
        text = file.read_text(encoding="utf-8")
        assert "\x1b" not in text, file
        assert "\x9b" not in text, file
        assert "\u202e" not in text, file


@pytest.mark.parametrize(
    "cell",
    [
        "=cmd|' /C calc'!A0",
        "+1+1",
        "-1+1",
        "@SUM(1)",
        "\t=1",
        "  =1",
        "\n=1",
        "\u00a0=1",
        "\uff1d1",
        "\ufeff=1",
    ],
)
def test_no_cell_of_a_table_is_a_formula(valk: Valk, tmp_path: Path, cell: str) -> None:
    detail = {"name": cell, "kind": "code", "passed": False, "score": 0.0, "evidence": cell}
    grade = {"passed": False, "score": 0.0, "evidence": cell, "details": [detail]}
    texts = {"eval": cell, "model": cell, "executor": cell, "variant": cell, "gradeResult": grade}
    write(tmp_path / "r", record(cell, **texts))
    assert valk("export", "r", "--exporter", "csv", "--output-dir", "out").code == 0
    [row] = csv.DictReader((tmp_path / "out" / "results.csv").read_text(encoding="utf-8").splitlines(True))
    for name in ("eval", "model", "executor", "variant", "stimulus", "reason", "failed_graders"):
        assert not row[name].lstrip().startswith(("=", "+", "-", "@", "\uff1d")), row[name]


@pytest.mark.parametrize(
    "score",
    ["NaN", "Infinity", "-Infinity", "1e999", "1.5", "-0.1", "99", '"nan"', '"1"', "[1]", "1" + "0" * 400],
)
@pytest.mark.parametrize(
    "command",
    [
        ("ingest", "r"),
        pytest.param(("compare", "g", "r"), marks=pytest.mark.slow),
        pytest.param(("export", "r"), marks=pytest.mark.slow),
    ],
)
def test_scores_off_the_scale_are_refused_by_line(
    valk: Valk, tmp_path: Path, score: str, command: tuple[str, ...]
) -> None:
    line = json.dumps(record("second")).replace('"score": 1.0', f'"score": {score}')
    write(tmp_path / "r", record("first"), line)
    write(tmp_path / "g", record("first"))
    more = ("--exporter", "csv") if command[0] == "export" else ()
    said = valk(*command, *more)
    assert said.code == 1, said.out
    assert "results.jsonl" in said.err
    assert "Line 2" in said.err
    assert "bug" not in said.err
    assert valk("run", "list", "--json").json["total"] == 0


def test_a_scale_of_its_own_is_said_in_each_record(valk: Valk, tmp_path: Path) -> None:
    write(tmp_path / "r", record("a", 41.5, fraction=False), record("b", -3.0, fraction=False))
    assert valk("ingest", "r").code == 0
    write(tmp_path / "s", record("a", 41.5, fraction=False), '{"type": "trial-result", "stimulus": "x"}')
    assert valk("ingest", "s").code == 0
    said = valk("ingest", write(tmp_path / "t", record("a", 41.5)))
    assert '"fraction": false' in said.err


@pytest.mark.parametrize("verdict", ['"false"', '"no"', "2", "[]", "{}"])
def test_a_verdict_is_true_or_false(valk: Valk, tmp_path: Path, verdict: str) -> None:
    line = json.dumps(record()).replace('"passed": true', f'"passed": {verdict}')
    said = valk("ingest", write(tmp_path / "r", line))
    assert said.code == 1
    assert "neither true nor false" in said.err


@pytest.mark.slow
@pytest.mark.parametrize(
    "odd",
    [
        {"durationMs": 1e300},
        {"durationMs": -1e300},
        {"trialIndex": 10**30},
        {"trialIndex": -5},
        {"attempts": 10**30},
        {"totalTrials": 10**30},
        {"trajectory": {"metadata": {"startedAt": 1e18, "completedAt": -1e18}}},
        {"trajectory": {"metadata": {"startedAt": "9999-12-31T23:59:59Z"}}},
        {"trajectory": {"metadata": {"startedAt": "0001-01-01T00:00:00+23:59"}}},
        {"trajectory": {"metrics": {"cost": 1e308, "tokenUsage": {"inputTokens": 1e308}, "turnCount": -1}}},
        {"trajectory": {"metrics": {"cost": -5, "tokenUsage": {"inputTokens": -5}}}},
        {"stimulus": "\ud800"},
        {"stimulus": "../../../../tmp/canary"},
        {"stimulus": "/etc/passwd"},
        {"stimulus": "x" * 5000},
        {"runId": "../../x", "eval": "..", "variant": "\ud83d"},
        {"family": "\ud800", "experiment": {"variant": {"a": 1}, "name": ["x"]}},
        {"verification": {"confirmed": True, "scoreConfirmed": 1.0, "evidence": {"mode": HOSTILE}}},
    ],
)
def test_absurd_values_break_no_later_command(valk: Valk, tmp_path: Path, odd: dict[str, Any]) -> None:
    write(tmp_path / "r", record("plain"), record(**({"stimulus": "odd"} | odd)))
    before = set(tmp_path.parent.iterdir())
    taken = valk("ingest", "r", "--json")
    assert "bug" not in taken.err
    if taken.code:
        assert "results.jsonl" in taken.err
        return
    run_id = taken.json["runs"][0]["run_id"]
    for words in (
        ("run", "list"),
        ("run", "fetch", run_id),
        ("run", "tasks", run_id),
        ("run", "results", run_id, "--path", "-"),
        ("export", run_id, "--exporter", "csv", "--output-dir", "out"),
        ("export", run_id, "--exporter", "junit", "--output-dir", "out"),
    ):
        said = valk(*words)
        assert said.code == 0, (words, said.err)
        assert "Infinity" not in said.out
    assert set(tmp_path.parent.iterdir()) == before


def test_files_a_record_names_stay_with_the_results(valk: Valk, tmp_path: Path) -> None:
    canary = tmp_path / "secret.txt"
    canary.write_text("canary-7b1e", encoding="utf-8")
    folder = tmp_path / "r"
    (folder / "kept").mkdir(parents=True)
    (folder / "kept" / "link").symlink_to(canary)
    (folder / "log").symlink_to(canary)
    (folder / "deep").symlink_to(tmp_path)
    write(
        folder,
        record("a", sessionLog=str(canary), artifactDir=str(tmp_path), patch=str(canary)),
        record("b", sessionLog="../secret.txt", artifactDir="..", patch="log"),
        record("c", sessionLog="log", artifactDir="deep", patch="deep/secret.txt"),
        record("d", artifactDir="kept"),
    )
    assert valk("ingest", "r").code == 0
    for file in (tmp_path / "home").rglob("*"):
        if file.is_file():
            assert b"canary-7b1e" not in file.read_bytes(), file


def test_results_that_are_a_link_out_of_their_folder_are_not_read(valk: Valk, tmp_path: Path) -> None:
    elsewhere = write(tmp_path / "private", record("canary-task"))
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "results.jsonl").symlink_to(elsewhere / "results.jsonl")
    said = valk("ingest", "theirs")
    assert said.code == 1
    assert "link" in said.err
    assert valk("run", "list", "--json").json["total"] == 0


def test_artifacts_are_taken_within_bounds(valk: Valk, tmp_path: Path) -> None:
    folder = tmp_path / "r"
    (folder / "kept" / "in").mkdir(parents=True)
    (folder / "kept" / "in" / "small").write_text("small", encoding="utf-8")
    for name in ("kept/huge", "huge.log"):
        with (folder / name).open("wb") as file:
            file.truncate(OUTPUT_LIMITS.max_bytes + 1)
    write(folder, record("a", artifactDir="kept", sessionLog="huge.log"))
    assert valk("ingest", "r").code == 0
    [small] = (tmp_path / "home").rglob("small")
    assert small.read_text(encoding="utf-8") == "small"
    assert not list((tmp_path / "home").rglob("huge*"))
    run_id = valk("run", "list", "--json").json["runs"][0]["id"]
    assert "left behind" in valk("run", "logs", run_id, "a").out


def test_ingested_runs_are_marked_wherever_they_are_shown(valk: Valk, tmp_path: Path) -> None:
    ids = []
    for name, score in (("one", 1.0), ("two", 0.0)):
        write(tmp_path / name, *(record(f"t{n}", score, model=name) for n in range(4)))
        ids.append(valk("ingest", name, "--json").json["runs"][0]["run_id"])
    first = ids[0]
    for words in (("run", "list"), ("run", "fetch", first), ("run", "tasks", first), ("compare", *ids)):
        assert "ingested" in valk(*words).out.lower(), words
    listed = valk("run", "list", "--json").json["runs"]
    assert {one["provider"] for one in listed} == {"ingested"}
    compared = valk("compare", *ids, "--json").json
    assert all(agent["ingested"] for agent in compared["agents"])
    assert all("(ingested)" in one["sentence"] for one in compared["comparisons"])
    assert json.loads(valk("run", "results", first, "--path", "-").out)["ingested"] is True
    for exporter, file in (
        ("csv", "results.csv"),
        ("jsonl", "results.jsonl"),
        ("junit", "eval-results.junit.xml"),
        ("markdown", "eval-results.md"),
    ):
        assert valk("export", first, "--exporter", exporter, "--output-dir", f"out-{exporter}").code == 0
        assert "ingested" in (tmp_path / f"out-{exporter}" / file).read_text(encoding="utf-8")
    again = valk("compare", "out-jsonl", "two", "--json").json
    assert "(ingested)" in json.dumps(again)


def test_what_is_stored_of_a_record_is_bounded(valk: Valk, tmp_path: Path) -> None:
    long = "x" * 2_000_000
    grade = {
        "passed": True,
        "score": 1.0,
        "details": [
            {"name": f"g{n}", "passed": True, "score": 1.0, "evidence": long[:9999]} for n in range(900)
        ],
    }
    fault = {"kind": "execution", "category": "infrastructure", "cause": long, "message": long}
    write(
        tmp_path / "r",
        record(
            "a",
            experiment={"name": "e", "notes": long, "deep": {"a": long}, **{f"k{n}": 1 for n in range(999)}},
        ),
        record("b", gradeResult=grade),
        record("c", status="error", fault=fault, gradeResult=None),
    )
    run_id = valk("ingest", "r", "--json").json["runs"][0]["run_id"]
    assert len(valk("run", "list", "--json").out) < 20_000
    assert len(valk("run", "tasks", run_id, "--json").out) < 20_000
    assert len(valk("run", "errors", run_id).out) < 20_000


@pytest.mark.parametrize(
    "grader",
    [
        {"name": 5, "passed": True, "score": 1.0},
        {"name": None, "passed": None},
        {"name": {"a": 1}, "passed": True, "weight": "heavy", "usage": [1], "evidence": {"a": [1]}},
        {"passed": True, "weight": float("nan"), "details": {"a": 1}, "kind": 7, "status": ["x"]},
        {"passed": True, "usage": {"cost": "much", "inputTokens": float("inf")}},
    ],
)
def test_odd_graders_break_no_later_command(valk: Valk, tmp_path: Path, grader: dict[str, Any]) -> None:
    write(tmp_path / "r", record(gradeResult={"passed": True, "score": 1.0, "details": [grader]}))
    taken = valk("ingest", "r", "--json")
    assert "bug" not in taken.err
    if taken.code == 0:
        run_id = taken.json["runs"][0]["run_id"]
        for words in (
            ("run", "show", run_id, "task"),
            ("export", run_id, "--exporter", "markdown"),
            ("export", "r", "--exporter", "markdown"),
            ("export", run_id, "--exporter", "junit"),
        ):
            said = valk(*words)
            assert said.code == 0, (words, said.err)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("task/eval.json", '{"task_id": "task", "status": "evaluated", "result": {"score": 1e999}}'),
        ("task/eval.json", '{"task_id": "task", "status": "evaluated", "result": {"score": NaN}}'),
        ("task/eval.json", '{"task_id": "other", "status": "evaluated", "result": {"score": 1}}'),
        ("final_score.json", '{"final_score": 1e999, "complete": true, "metadata": {}}'),
        ("final_score.json", '{"final_score": NaN, "complete": true, "metadata": {}}'),
    ],
)
def test_a_runners_folder_with_absurd_scores_is_refused(
    valk: Valk, tmp_path: Path, name: str, content: str
) -> None:
    folder = tmp_path / "results" / "first"
    (folder / "task").mkdir(parents=True)
    config = {"run_id": "first", "model": "m", "tasks": ["task"], "benchmark": "b"}
    (folder / "run_config.json").write_text(json.dumps(config), encoding="utf-8")
    verdict = {"task_id": "task", "status": "evaluated", "result": {"score": 1.0}}
    (folder / "task" / "eval.json").write_text(json.dumps(verdict), encoding="utf-8")
    (folder / name).write_text(content, encoding="utf-8")
    said = valk("ingest", "results")
    assert said.code == 1, said.out
    assert Path(name).name in said.err
    assert "bug" not in said.err


@pytest.mark.parametrize("exporter", ["csv", "jsonl", "junit", "markdown", "atif"])
def test_exports_stay_in_their_folder(valk: Valk, tmp_path: Path, exporter: str) -> None:
    names = ("../../canary", "/canary", "..", "a/../../canary", ".git/hooks/post-checkout")
    story = {"id": "t", "events": [], "output": "x", "metadata": {}}
    write(tmp_path / "r", *(record(name, eval=name, model=name, trajectory=story) for name in names))
    before = set(tmp_path.rglob("*"))
    said = valk("export", "r", "--exporter", exporter, "--output-dir", "out")
    assert said.code == 0, said.err
    new = set(tmp_path.rglob("*")) - before
    assert all(
        path.is_relative_to(tmp_path / "out") or path.is_relative_to(tmp_path / "home") for path in new
    )
    assert not [path for path in tmp_path.parent.iterdir() if path.name.startswith("canary")]
