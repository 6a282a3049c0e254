"""Agents that turn on the eval that tests them: nothing leaks, hangs, breaks it, or reaches another trial."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.abilities import need_local_sandboxes
from tests.integration.evals.commands import Said, Valk
from tests.integration.evals.commands import valk as valk

HIDDEN = "ONLY-FOR-GRADING"
KEY = "the-judge-key-of-this-machine"
CONTRACT = """\
name: evil
install_cmd: chmod +x attacks.sh
run_cmd: HOST_FILE={host_file} /bundle/evil/attacks.sh {problem_statement_path}
kwargs:
  host_file: {type: str, default: /nowhere, description: What must not come to be.}
output_artifacts:
  - {path: transcript.json, source: /tmp/transcript.json, required: false}
  - {path: trajectory.json, source: /tmp/trajectory.json, required: false}
"""
CHECK = {"type": "run-command", "config": {"command": "cat hidden/check.sh a.txt"}}
LOOKED_AT = (
    {"type": "output-matches", "config": {"pattern": "^(a+)+$"}},
    {"type": "diff-not-contains", "config": {"value": "no such text"}},
    {"type": "file-not-matches", "config": {"path": "**", "pattern": "(x+x+)+y"}},
    CHECK,
    {"type": "run-command", "config": {"command": "/bin/true"}},
    {"type": "wall-time", "config": {"max": "100ms"}},
)
Records = dict[str, Any]


@pytest.fixture
def project(valk: Valk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A spec, an agent, and files for grading, all in the folder the agent is shown."""
    need_local_sandboxes(tmp_path / "trying", network="none")
    monkeypatch.setenv("VALKYRIE_JUDGE_API_KEY", KEY)
    folder = tmp_path / "project"
    for name in ("evil", "hidden", ".mock-executor", "vally-results/earlier"):
        (folder / name).mkdir(parents=True)
    (folder / "evil/contract.yaml").write_text(CONTRACT)
    shutil.copy(Path(__file__).with_name("eval_attacks.sh"), folder / "evil/attacks.sh")
    for name in ("hidden/check.sh", ".mock-executor/look.json", "vally-results/earlier/results.jsonl"):
        (folder / name).write_text(HIDDEN)
    (folder / "a.txt").write_text("a\n")
    monkeypatch.chdir(folder)
    return folder


def attacked(valk: Valk, project: Path, *attacks: str, view: bool = False) -> tuple[Said, Records]:
    """How the eval ended, and its record of each attack."""
    environment = {} if view else {"environment": {"files": [{"src": "a.txt", "dest": "a.txt"}]}}
    document = {
        "name": "hostile",
        "description": HIDDEN,
        "defaults": {"executor": "agent:./evil", "timeout": "60s"},
        "grading_environment": {"files": [{"src": "hidden/check.sh", "dest": "hidden/check.sh"}]},
        "stimuli": [
            {"name": attack, "prompt": attack, "graders": list(LOOKED_AT), **environment}
            for attack in attacks
        ],
    }
    (project / "eval.yaml").write_text(json.dumps(document))
    words = ("--junit", "--verbose", "--max-retries", "0", "--network", "none", "--workers", "4")
    host_file = project.parent / "taken-over"
    ended = valk("eval", "-e", "eval.yaml", *words, "-k", f"host_file={host_file}")
    assert ended.code == 1, ended.out + ended.err
    assert not host_file.exists()
    return ended, {one["stimulus"]: one for one in _lines(_folder(project) / "results.jsonl")}


def _folder(project: Path) -> Path:
    return sorted((project / "vally-results").glob("2*"))[-1]


def _lines(path: Path) -> Iterator[Any]:
    return map(json.loads, path.read_text().splitlines())


def fenced(report: str) -> list[str]:
    """The lines of a report that stand in blocks of code."""
    inside, fence = [], ""
    for line in report.splitlines():
        if not fence and line.startswith("```"):
            fence = line.removesuffix("text")
        elif line == fence:
            fence = ""
        elif fence:
            inside.append(line)
    assert not fence, "a block that is never ended"
    return inside


def verdicts(record: Any) -> list[bool | str]:
    return [one.get("status") or one["passed"] for one in record["gradeResult"]["details"]]


def test_an_agent_finds_nothing_of_how_it_is_graded(valk: Valk, project: Path) -> None:
    _, found = attacked(valk, project, "look", view=True)
    said = found["look"]["trajectory"]["output"]
    assert said.endswith("looked") and "\na.txt\n" in said
    assert HIDDEN not in said and "results" not in said and "check.sh" not in said
    assert KEY not in said and "eval.yaml" not in said and ".mock-executor" not in said
    run_command = found["look"]["gradeResult"]["details"][3]
    assert run_command["passed"] and HIDDEN in run_command["evidence"]
    # What was hidden from it, it did not remove.
    assert [patch.read_text() for patch in _folder(project).rglob("workspace.patch")] == [""]


def test_attacks_on_what_grading_reads(valk: Valk, project: Path) -> None:
    attacks = (
        "plant",
        "git",
        "link",
        "file",
        "pipe",
        "later",
        "deep",
        "deeper",
        "atif",
        "nonsense",
        "forged",
    )
    _, found = attacked(valk, project, *attacks)
    assert {name: one["status"] for name, one in found.items()} == dict.fromkeys(attacks, "success")
    whole = [False, True, True, True, True]
    for name in ("plant", "git", "later", "deep", "deeper", "atif", "nonsense"):
        assert verdicts(found[name])[:5] == whole, (name, found[name]["gradeResult"])
    for name in ("link", "file", "pipe"):
        assert verdicts(found[name])[:5] == [False, True, True, False, True], (name, found[name])
    for name in ("deep", "deeper", "atif", "nonsense"):
        (event,) = found[name]["trajectory"]["events"]
        assert "could not be read" in event["data"]["message"], name
    for one in found.values():
        assert "root:" not in json.dumps(one), "the machine's own files"
    # It may say what it did; how long it took is known better, and its numbers stay within bounds.
    forged = found["forged"]
    assert forged["trajectory"]["output"] == "forged" and verdicts(forged)[5] is False
    assert forged["trajectory"]["metrics"]["tokenUsage"]["totalTokens"] == 0


def test_words_that_are_meant_for_those_who_read_reports(valk: Valk, project: Path) -> None:
    ended, found = attacked(valk, project, "say", "regex")
    assert verdicts(found["regex"])[0] == "error", "a search without end tells nothing of the answer"
    lines = (ended.out + ended.err).splitlines()
    assert any("::error::taken over" in line for line in lines)
    assert not [line for line in lines if line.lstrip().startswith("::")]
    results = _folder(project)
    for text in (ended.out, ended.err, (results / "results.jsonl").read_text()):
        assert "##[" not in text and "##vso[" not in text
    for text in (ended.out, (results / "eval-results.md").read_text()):
        assert "\x1b" not in text and "\u202e" not in text and "evil\a" not in text
    assert "# Heading" in fenced((results / "eval-results.md").read_text())
    cases = ElementTree.parse(results / "eval-results.junit.xml").iter("testcase")
    assert [case.get("name") for case in cases] == ["say", "regex"]


@pytest.mark.slow
def test_too_much_of_everything(valk: Valk, project: Path) -> None:
    attacks = ("large", "many", "tree")
    _, found = attacked(valk, project, *attacks, "plant")
    assert set(found) == {*attacks, "plant"}
    assert verdicts(found["plant"])[:5] == [False, True, True, True, True], "others are graded as ever"
    assert len(found["large"]["trajectory"]["output"]) <= 4 << 20
    for name in attacks:
        assert not found[name].get("gradeResult", {}).get("passed"), name
    assert (_folder(project) / "results.jsonl").stat().st_size < 64 << 20
