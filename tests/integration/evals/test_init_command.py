"""`valkyrie init`, and that what it writes works."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
import yaml

from tests.integration.evals.commands import Valk, valk

__all__ = ["valk"]

ROOT = Path(__file__).resolve().parents[3]


def test_what_it_writes_lints_and_passes(valk: Valk, tmp_path: Path) -> None:
    said = valk("init")
    assert said.code == 0
    assert "valk eval --suite smoke" in said.out
    lint = valk("lint", "--strict", "--json")
    assert lint.code == 0
    assert lint.json["findings"] == []
    assert [one["kind"] for one in lint.json["targets"]] == ["project", "spec", "skill"]
    ran = valk("eval", "--suite", "smoke")
    assert ran.code == 0, ran.out + ran.err
    assert "2 passed, 0 failed" in ran.out


def test_the_eval_can_fail(valk: Valk, tmp_path: Path) -> None:
    valk("init")
    fixture = tmp_path / "evals/hello/.mock-executor/greets-by-name.json"
    fixture.write_text(json.dumps({"output": "done", "files": {"greeting.txt": "Hi Ada!!"}}))
    ran = valk("eval", "--suite", "smoke")
    assert ran.code == 1
    assert "1 passed, 1 failed" in ran.out


def test_the_schema_beside_the_spec_takes_it(valk: Valk, tmp_path: Path) -> None:
    valk("init")
    spec = tmp_path / "evals/hello/eval.yaml"
    first = spec.read_text().splitlines()[0]
    schema = spec.parent / first.removeprefix("# yaml-language-server: $schema=")
    validator = jsonschema_rs.validator_for(json.loads(schema.read_text()))
    document = yaml.safe_load(spec.read_text())
    validator.validate(document)
    document["stimuli"][0]["graders"] = "none"
    assert not validator.is_valid(document)


def test_nothing_is_overwritten(valk: Valk, tmp_path: Path) -> None:
    (tmp_path / "evals/hello").mkdir(parents=True)
    mine = tmp_path / "evals/hello/eval.yaml"
    mine.write_text("mine")
    said = valk("init")
    assert said.code == 2
    assert "evals/hello/eval.yaml" in said.err
    assert "--force" in said.err
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]
    assert valk("init", "--force").code == 0
    assert mine.read_text() != "mine"


def test_elsewhere_and_for_machines(valk: Valk, tmp_path: Path) -> None:
    said = valk("init", "deep/er", "--ci", "github", "--json")
    assert said.json["kind"] == "eval_project_created"
    for file in said.json["files"]:
        assert (tmp_path / "deep/er" / file).is_file()
    assert ".github/workflows/evals.yml" in said.json["files"]


def test_a_folder_that_cannot_be_written_is_said(valk: Valk, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = valk("init", "file/below")
    assert said.code == 2
    assert "file" in said.err


def steps(text: str) -> list[str]:
    """Every `run:` of a workflow's one job, as GitHub would take them."""
    document: dict[Any, Any] = yaml.safe_load(text)
    (job,) = document["jobs"].values()
    assert job["runs-on"]
    assert all(("run" in step) != ("uses" in step) for step in job["steps"])
    return [step["run"] for step in job["steps"] if "run" in step and "pip install" not in step["run"]]


@pytest.mark.slow
def test_the_workflows_commands_run(valk: Valk, tmp_path: Path) -> None:
    valk("init", "--ci", "github")
    summary = tmp_path / "summary.md"
    env = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "VALKYRIE_HOME": str(tmp_path / ".valkyrie"),
        "VALKYRIE_CONFIG_PATH": str(tmp_path / "config" / "valkyrie.yaml"),
        "EVAL_NAME": "evals-0123",
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    commands = steps((tmp_path / ".github/workflows/evals.yml").read_text())
    assert len(commands) == 3
    for again in (False, True):  # the second time goes on with the first, which is done already
        for command in commands:
            ran = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", command],
                cwd=tmp_path,
                env=env,
                capture_output=True,
                text=True,
                timeout=280,
            )
            assert ran.returncode == 0, f"{again} {command}\n{ran.stdout}{ran.stderr}"
    assert json.loads((tmp_path / "lint.sarif").read_text())["version"] == "2.1.0"
    assert "hello" in summary.read_text()
    assert len(list((tmp_path / "eval-results").glob("*/eval-results.junit.xml"))) == 1


def test_the_page_shows_the_workflow_that_is_written() -> None:
    page = (ROOT / "docs/how-to/evals-in-ci.md").read_text()
    written = (ROOT / "src/valkyrie/evals/starter/files/github.yaml").read_text()
    assert f"```yaml\n{written}```" in page
