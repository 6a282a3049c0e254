"""`experiment run` and `merge`: one job over all variants, each against the baseline."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.evals.commands import Said, Valk, valk
from tests.integration.evals.judge_thread import served
from valkyrie.testing import Script, ToolRequest

__all__ = ["valk"]

EVAL = """
name: {name}
defaults: {{executor: mock, runs: 1}}
stimuli:
"""
STIMULUS = """
  - name: s{n}
    prompt: Say yes{n}.
    graders: [{{type: file-contains, config: {{path: s{n}.txt, value: "yes"}}}}]
"""
EXPERIMENT = """
name: mute
evals: ["evals/*/eval.yaml"]
vary: [/environment/files]
baseline: muted
execution: {workers: 3}
variants:
  muted: {environment: {files: [{src: "muted/${eval.parent}", dest: .}]}}
  spoken: {environment: {files: [{src: spoken, dest: .}]}}
"""


@pytest.fixture
def experiment(tmp_path: Path) -> Path:
    """Two evals of four stimuli; of each the baseline can answer one only."""
    folder = tmp_path / "x"
    (folder / "spoken").mkdir(parents=True)
    for n in range(4):
        (folder / "spoken" / f"s{n}.txt").write_text("yes")
    for name in ("a", "b"):
        (folder / "evals" / name).mkdir(parents=True)
        text = EVAL.format(name=name) + "".join(STIMULUS.format(n=n) for n in range(4))
        (folder / "evals" / name / "eval.yaml").write_text(text)
        (folder / "muted" / name).mkdir(parents=True)
        (folder / "muted" / name / "s3.txt").write_text("yes")
    (folder / "mute.experiment.yaml").write_text(EXPERIMENT)
    return folder / "mute.experiment.yaml"


def document(said: Said) -> dict[str, Any]:
    """The first of those on stdout."""
    found: dict[str, Any] = json.loads(said.out.splitlines()[0])
    return found


def only_folder(said: Said) -> Path:
    return Path(document(said)["folder"])


def trials(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]


def test_variants_are_compared_with_the_baseline(valk: Valk, experiment: Path) -> None:
    said = valk("experiment", "run", experiment, "--json", "--compare")
    assert said.code == 1, said.err  # trials of the baseline failed
    folder = only_folder(said)
    assert sorted(path.name for path in folder.iterdir()) == [
        "comparisons.jsonl",
        "eval.json",
        "experiment-manifest.json",
        "muted",
        "plan-snapshot.json",
        "report.md",
        "run-summary.jsonl",
        "spoken",
    ]
    summary = [json.loads(line) for line in (folder / "run-summary.jsonl").read_text().splitlines()]
    assert [(one["variant"], one["eval"], one["passed"], one["failed"]) for one in summary] == [
        ("muted", "a", 1, 3),
        ("muted", "b", 1, 3),
        ("spoken", "a", 4, 0),
        ("spoken", "b", 4, 0),
    ]
    assert [one["baseline"] for one in summary] == [True, True, False, False]
    assert all(one["evalHash"] and one["configHash"] for one in summary)
    records = trials(folder / "spoken")
    assert [one["experiment"]["variant"] for one in records] == ["spoken"] * 8
    assert {one["variant"] for one in trials(folder / "muted")} == {"muted"}
    [comparison] = document(said)["comparisons"]
    assert (comparison["a"], comparison["b"], comparison["verdict"]) == ("spoken", "muted", "better")
    assert comparison["tasks"] == 8
    report = (folder / "report.md").read_text()
    assert "spoken beats muted by 75.0 points" in report
    assert "8 stimuli in common" in report
    assert "| a | s0 | 0.0% (0/1) | 100.0% (1/1) |" in report
    [record] = map(json.loads, (folder / "comparisons.jsonl").read_text().splitlines())
    assert (record["baseline"], record["treatment"], record["summary"]["wins"]) == ("muted", "spoken", 6)
    assert "Nobody judged spoken against muted" in report
    # One job with all runs, each of which says which variant it is.
    [job] = valk("job", "list", "--all", "--json").json["jobs"]
    compared = valk("compare", job["id"], "--json").json
    names = {one["name"] for one in compared["agents"]}
    assert {"mock (muted) on a", "mock (spoken) on a"} <= names


def test_one_variant_that_passes_is_success(valk: Valk, experiment: Path) -> None:
    said = valk("experiment", "run", experiment, "--variant", "spoken", "--runs", "2")
    assert said.code == 0, said.err
    assert "Report: " in said.out
    assert "(baseline)" not in said.out
    assert valk("experiment", "run", experiment, "--variant", "muted", "--no-require-pass").code == 0


def test_options_of_evals_are_those_of_experiments(
    valk: Valk, experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = experiment.parent
    (folder / ".vally.yaml").write_text("plugins: {graders: [mine.py]}\n")
    (folder / "mine.py").write_text(
        "class Mine:\n    type = 'mine'\n    def grade(self, given): return True\n"
    )
    for file in folder.glob("evals/*/eval.yaml"):
        file.write_text(file.read_text().replace("graders: [", "graders: [{type: mine}, "))
    monkeypatch.chdir(folder / "evals")  # the project's own plugins are found from below it too
    words = ("--variant", "spoken", "--threshold", "0.4", "--timeout", "90s", "--max-retries", "0")
    refused = valk("experiment", "run", "../mute.experiment.yaml", *words)
    assert refused.code == 2 and "is not trusted" in refused.err
    assert valk("trust").code == 0
    said = valk("experiment", "run", "../mute.experiment.yaml", *words, "--json")
    assert said.code == 0, said.err
    place = only_folder(said) / "spoken"
    assert {one["gradeResult"]["threshold"] for one in trials(place)} == {0.4}
    again = (place / "eval-results.md").read_text().split("## Run it again")[1]
    expected = "--variant spoken --timeout 90s --threshold 0.4 --max-retries 0 --json"
    assert f"valk experiment run ../mute.experiment.yaml {expected}" in again
    refused = valk("experiment", "run", "--resume", "--runs", "2")
    assert refused.code == 2 and "leave out --trials" in refused.err
    refused = valk("experiment", "run", "../mute.experiment.yaml", "--resume")
    assert refused.code == 2 and "leave out FILE" in refused.err


def test_dry_run_shows_the_plan(valk: Valk, experiment: Path, tmp_path: Path) -> None:
    said = valk("experiment", "run", experiment, "--dry-run")
    assert said.code == 0, said.err
    assert "16 trials, 3 at once. Nothing was run" in said.out
    assert not (tmp_path / "vally-experiment-results").exists()


def test_dry_run_asks_for_no_judge_key(valk: Valk, experiment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "VALKYRIE_JUDGE_KEY", "VALKYRIE_JUDGE_URL"):
        monkeypatch.delenv(name, raising=False)
    file = experiment.parent / "evals" / "a" / "eval.yaml"
    judge = "{type: prompt, config: {prompt: Good?, model: anthropic/claude-x}}"
    file.write_text(file.read_text().replace("graders: [", f"graders: [{judge}, ", 1))
    said = valk("experiment", "run", experiment, "--dry-run")
    assert said.code == 0, said.err
    assert "judge → cannot be asked yet: " in said.out


def test_lint_finds_missing_skills_of_variants(valk: Valk, experiment: Path) -> None:
    text = experiment.read_text()
    assert "vary: [/environment/files]" in text
    plan = """name: skills
evals: [evals/a/eval.yaml]
vary: [/environment/skills]
baseline: plain
variants:
  plain: {environment: {skills: []}}
  skilled: {environment: {skills: [skills/gone]}}
"""
    experiment.write_text(plan)
    said = valk("lint", experiment)
    assert said.code == 1 and "missing-skill" in said.out and "skills/gone" in said.out, said.out


def test_an_agent_that_fails_counts_as_0_in_every_comparison(valk: Valk, experiment: Path) -> None:
    fixture = experiment.parent / "evals" / "a" / ".mock-executor" / "s0.json"
    fixture.parent.mkdir()
    fixture.write_text(json.dumps({"error": "the model is gone"}))
    said = valk("experiment", "run", experiment, "--no-require-pass", "--json")
    assert said.code == 1
    [comparison] = said.json["comparisons"]
    assert comparison["tasks"] == 8
    assert not comparison["excluded"]
    assert "0.0% (0/1), 1 error" in (only_folder(said) / "report.md").read_text()


@pytest.mark.parametrize(
    ("change", "words", "why"),
    [
        (("vary: [/environment/files]", "vary: [/defaults/model]"), [], "differ at /environment/files"),
        (("baseline: muted", "baseline: mutted"), [], "Did you mean 'muted'"),
        (("evals/*/eval.yaml", "nowhere/*.yaml"), [], "matches no file"),
        (("", ""), ["--variant", "spken"], "Did you mean 'spoken'"),
        (("", ""), ["--executor", "mockk"], "mock"),
    ],
)
def test_what_is_wrong_is_refused_before_the_start(
    valk: Valk, experiment: Path, tmp_path: Path, change: tuple[str, str], words: list[str], why: str
) -> None:
    experiment.write_text(experiment.read_text().replace(*change))
    said = valk("experiment", "run", experiment, *words)
    assert (said.code, why in said.err) == (2, True), said.err
    assert not list(tmp_path.glob("vally-experiment-results/*/report.md"))
    assert valk("run", "list", "--json").json["total"] == 0


def test_resume_of_what_has_ended_writes_the_same_report(valk: Valk, experiment: Path) -> None:
    first = valk("experiment", "run", experiment, "--json")
    folder = only_folder(first)
    report = (folder / "report.md").read_text()
    (folder / "report.md").unlink()
    shutil.rmtree(folder / "muted")
    again = valk("experiment", "run", "--resume", "--json")
    assert (again.code, only_folder(again)) == (1, folder), again.err
    assert (folder / "report.md").read_text() == report
    assert valk("run", "list", "--json").json["total"] == 4
    said = valk("experiment", "run", "--resume", "--output-dir", "elsewhere")
    assert (said.code, "holds no experiment" in said.err) == (2, True)
    said = valk("eval", "--resume", folder)
    assert (said.code, "is an experiment" in said.err) == (2, True)
    valk("eval", "-e", next(experiment.parent.glob("evals/*/eval.yaml")))
    said = valk("experiment", "run", "--resume", "vally-results")
    assert (said.code, "is an eval; `valk eval --resume" in said.err) == (2, True)


def test_shards_are_merged(valk: Valk, experiment: Path, tmp_path: Path) -> None:
    whole = only_folder(valk("experiment", "run", experiment, "--json"))
    for variant in ("muted", "spoken"):
        shutil.copytree(whole / variant, tmp_path / f"shard-{variant}" / "2025-01-15T10-30-00-005Z" / variant)
    said = valk("experiment", "merge", "shard-spoken", "shard-muted", "--output-dir", "merged", "--json")
    assert said.code == 0, said.err
    merged = only_folder(said)
    assert (merged / "report.md").read_text() == (whole / "report.md").read_text()
    assert (merged / "run-summary.jsonl").read_text() == (whole / "run-summary.jsonl").read_text()
    assert trials(merged / "muted") == trials(whole / "muted")
    assert len(list((merged / "spoken").rglob("metadata.json"))) == 8
    said = valk("experiment", "merge", "shard-muted", "shard-muted", "--output-dir", "again")
    assert "Merged 8 trials from 1 file." in said.out


def test_a_judge_compares_each_variant_with_the_baseline(valk: Valk, experiment: Path) -> None:
    tie = ToolRequest("submit_comparison", {"winner": "tie", "magnitude": "equal", "reasoning": "Alike."})
    with served(Script({"default": [tie]})) as server:
        words = ("--compare", "--judge-model", "judge", "--judge-url", server.url)
        said = valk("experiment", "run", experiment, *words)
        asked = len(server.requests)
    assert asked == 16, said.err  # eight pairs, in both orders
    assert "The judge can't tell spoken and muted apart: they are level" in said.out
