"""Exported task directories run here: what is right passes, what is not fails; what was left out is said."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from tests.integration.conftest import tracker
from tests.integration.evals.commands import Valk, valk
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest

__all__ = ["tracker", "valk"]

SPEC = r"""
name: greetings
defaults: {executor: mock, timeout: 30s}
scoring: {threshold: 0.6, weights: {run-command: 2}}
environment:
  files:
    - {src: start, dest: .}
  commands: ["echo ready > ready.txt"]
grading_environment:
  files:
    - {src: expected.txt, dest: expected.txt}
stimuli:
  - name: shout it
    prompt: Make the greeting shout.
    tags: {tier: smoke}
    constraints: {max_turns: 3}
    golden_patch: |
      --- a/greeting.txt
      +++ b/greeting.txt
      @@ -1 +1 @@
      -hello
      +HELLO
    graders:
      - {type: file-contains, config: {path: "**/greeting.*", value: HELLO}}
      - {type: file-not-matches, config: {path: greeting.txt, pattern: "^hello"}}
      - {type: file-exists, config: {path: "{ready,other}.txt"}}
      - type: run-command
        config: {command: "rm ready.txt; cmp greeting.txt expected.txt && echo same", stdout_matches: ^same}
  - name: talk
    turns: [Say one., Say two.]
    graders:
      - {type: output-contains, config: {value: two}}
  - name: judged
    prompt: Be nice.
    graders:
      - {type: prompt, config: {prompt: "Is it nice?"}}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    folder = tmp_path / "spec"
    (folder / "start").mkdir(parents=True)
    (folder / "start" / "greeting.txt").write_text("hello\n")
    (folder / "start" / "setup.sh").write_text("echo the workspace's own\n")
    (folder / "expected.txt").write_text("HELLO\n")
    (folder / "eval.yaml").write_text(SPEC)
    return folder / "eval.yaml"


def test_the_golden_patch_passes_and_doing_nothing_does_not(
    valk: Valk, spec: Path, tracker: LocalTracker
) -> None:
    assert valk("export", "-e", spec, "--exporter", "harbor", "--tag", "tier=smoke").code == 0
    started = [
        tracker.start(RunRequest(agent=agent, benchmark="./harbor")).run.id for agent in ("oracle", "nop")
    ]
    for run_id, passed in zip(started, (True, False), strict=True):
        view = tracker.wait(run_id, timeout=90)
        assert (view.state, view.score.final_score) == ("FINISHED", float(passed)), tracker.errors(run_id)
        trial = tracker.results(run_id)["evaluation_results"]["shout-it"]
        # Of weights 1 + 1 + 1 + 2 doing nothing gets one: below the threshold.
        assert trial["rewards"]["score"] == (1.0 if passed else 0.2)


def test_what_is_written(valk: Valk, spec: Path, tmp_path: Path) -> None:
    said = valk("export", "-e", spec, "--exporter", "harbor", "--json")
    assert said.code == 0
    assert [Path(path).name for path in said.json["written"]] == ["shout-it"]
    warnings = "\n".join(said.json["warnings"])
    assert "shout-it: left out: constraints (max_turns): they look at the transcript" in warnings
    assert "talk was not exported: it has 2 turns" in warnings
    assert "judged was not exported: nothing would grade it (grader prompt: it asks a model)" in warnings
    task = tmp_path / "harbor" / "shout-it"
    about = tomllib.loads((task / "task.toml").read_text())
    assert about["environment"]["workdir"] == "/workspace"
    assert about["agent"]["timeout_sec"] == 30.0
    assert about["metadata"]["left_out"] == ["constraints (max_turns): they look at the transcript"]
    assert about["task"]["keywords"] == ["tier=smoke"]
    # A file that the format means something by gets its name back at set-up.
    assert "mv -- setup.sh.workspace setup.sh" in (task / "environment" / "setup.sh").read_text()
    assert not (task / "environment" / "expected.txt").exists()
    assert (task / "tests" / "files" / "expected.txt").read_text() == "HELLO\n"


def test_turns_are_joined_when_asked_for(valk: Valk, spec: Path, tmp_path: Path) -> None:
    said = valk(
        "export", "-e", spec, "--exporter", "harbor", "--", r"joinTurnsWith=\n---\n", "image=alpine:3"
    )
    assert said.code == 0, said.err
    task = tmp_path / "harbor" / "talk"
    instruction = (task / "instruction.md").read_text()
    assert instruction.startswith("Say one.\n---\nSay two.\n\nWhen you are done, write your final answer")
    assert json.loads((task / "tests" / "checks.json").read_text())["answer"] == "/logs/agent/answer.txt"
    assert (task / "environment" / "Dockerfile").read_text().startswith("FROM alpine:3\nWORKDIR /workspace\n")
    assert (task / "environment" / "workspace" / "setup.sh").read_text() == "echo the workspace's own\n"


def test_several_specs_and_no_answers(valk: Valk, spec: Path, tmp_path: Path) -> None:
    other = spec.with_name("other.yaml")
    other.write_text(SPEC.replace("name: greetings", "name: others"))
    words = ["export", "-e", spec, "-e", other, "--exporter", "harbor", "--output-dir", "out"]
    said = valk(*words, "--", "joinTurnsWith= ", "answerFile=none", "reward=score")
    assert said.code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "benchmark.toml",
        "greetings__shout-it",
        "others__shout-it",
    ]
    plan = json.loads((tmp_path / "out" / "others__shout-it" / "tests" / "checks.json").read_text())
    assert (plan["reward"], plan["threshold"]) == ("score", 0.6)


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (["-e", "SPEC", "--exporter", "habor"], 2, "Did you mean 'harbor'"),
        (["-e", "SPEC", "--exporter", "harbor", "--", "joinTurnWith=x"], 2, "joinTurnsWith"),
        (["-e", "SPEC", "--exporter", "harbor", "--", "strict=true"], 1, "strict=true"),
        (["-e", "SPEC", "--exporter", "harbor", "--", "answerFile=a.txt"], 2, "a path in the sandbox"),
        (["-e", "SPEC", "--exporter", "harbor", "--tag", "tier=none"], 2, "No stimulus has tier=none"),
        (["-e", "missing.yaml", "--exporter", "harbor"], 2, "missing.yaml"),
        (["--exporter", "harbor"], 2, "--eval-spec"),
        (["somewhere", "--exporter", "csv"], 2, "somewhere"),
    ],
)
def test_refusals(valk: Valk, spec: Path, tmp_path: Path, words: list[str], code: int, why: str) -> None:
    said = valk("export", *(str(spec) if word == "SPEC" else word for word in words))
    assert (said.code, why in said.err) == (code, True), said.err
    assert not list(tmp_path.glob("harbor/*/task.toml"))


def test_a_task_is_written_whole_or_not_at_all(valk: Valk, spec: Path, tmp_path: Path) -> None:
    (tmp_path / "harbor" / "shout-it" / "environment").mkdir(parents=True)
    said = valk("export", "-e", spec, "--exporter", "harbor")
    assert (said.code, "is there and is no task" in said.err) == (2, True)
    (tmp_path / "harbor" / "shout-it" / "task.toml").touch()
    (tmp_path / "harbor" / "shout-it" / "environment" / "old.txt").touch()
    assert valk("export", "-e", spec, "--exporter", "harbor").code == 0
    assert not (tmp_path / "harbor" / "shout-it" / "environment" / "old.txt").exists()
    (spec.parent / "expected.txt").unlink()
    said = valk("export", "-e", spec, "--exporter", "harbor", "--output-dir", "out")
    assert (said.code, "expected.txt does not exist" in said.err) == (1, True)
    assert list((tmp_path / "out").iterdir()) == []


def test_nothing_exported_is_a_failure(valk: Valk, spec: Path) -> None:
    spec.write_text("name: x\nstimuli: [{name: a, prompt: p, graders: [{type: completed}]}]\n")
    said = valk("export", "-e", spec, "--exporter", "harbor")
    assert said.code == 1
    assert "Nothing was exported" in said.err
