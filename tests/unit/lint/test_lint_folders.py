"""Tasks, benchmarks, agents and experiments: their own readers speak, with places."""

from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.agents.scaffold import init_agent
from valkyrie.benchmarks.scaffold import init_benchmark
from valkyrie.evals.lint.linter import Kind, Linter, LintTarget
from valkyrie.specs.model import Finding


def lint(kind: Kind, path: Path) -> list[Finding]:
    (checked,) = Linter().check([LintTarget(kind, path)])
    return list(checked.findings)


def test_what_the_scaffolds_write_is_fine(tmp_path: Path) -> None:
    assert lint("agent", init_agent("mine", tmp_path)) == []
    benchmark = init_benchmark("bench", tmp_path)
    assert lint("benchmark", benchmark) == []
    assert lint("task", benchmark / "count-lines") == []


def test_a_task_that_cannot_run(tmp_path: Path) -> None:
    benchmark = init_benchmark("bench", tmp_path)
    task = benchmark / "count-lines"
    (task / "tests" / "test.sh").unlink()
    (task / "instruction.md").write_text(" \n")
    found = lint("task", task)
    assert [finding.code for finding in found] == ["task", "task"]
    assert [finding.place.file.name for finding in found if finding.place] == [
        "count-lines",
        "instruction.md",
    ]
    assert [finding.code for finding in lint("benchmark", benchmark)] == ["task", "task"]


def test_unknown_keys_of_a_task_are_warnings(tmp_path: Path) -> None:
    benchmark = init_benchmark("bench", tmp_path)
    toml = benchmark / "count-lines" / "task.toml"
    toml.write_text(f"surprise = 1\n{toml.read_text()}\n[solution]\nenvv = 1\n")
    found = lint("benchmark", benchmark)
    assert [(one.code, one.severity) for one in found] == [("unknown-key", "warning")] * 2
    assert "unknown key surprise is ignored" in found[0].message
    assert "solution.envv" in found[1].message and "Did you mean 'env'?" in found[1].message
    assert found[0].place and found[0].place.file == toml


def test_a_manifest_that_names_no_task(tmp_path: Path) -> None:
    benchmark = init_benchmark("bench", tmp_path)
    (benchmark / "benchmark.toml").write_text('[datasets]\nsmoke = ["count-lins"]\n')
    (found,) = lint("benchmark", benchmark)
    assert found.code == "benchmark"
    assert "Did you mean 'count-lines'?" in found.message


def test_a_contract_with_places(tmp_path: Path) -> None:
    agent = init_agent("mine", tmp_path)
    (agent / "contract.yaml").write_text("name: mine\ninstall_cmd: 'true'\nrun_cmd: ls\nsecret: {}\n")
    found = lint("agent", agent)
    assert [(one.code, one.place and one.place.line) for one in found] == [
        ("agent-contract", 3),
        ("agent-contract", 4),
    ]
    assert "Did you mean 'secrets'?" in found[1].message
    assert str(agent) not in found[1].message


def test_a_slip_in_a_contract_is_a_warning(tmp_path: Path) -> None:
    agent = init_agent("mine", tmp_path)
    text = "name: mine\ninstall_cmd: 'true'\nrun_cmd: x {problem_statement_path} {task_di}\n"
    (agent / "contract.yaml").write_text(text)
    assert [(one.code, one.severity) for one in lint("agent", agent)] == [("agent-notice", "warning")]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("name: x\nevals: [gone/*.yaml]\nvariants: {a: {}}\n", "no-evals"),
        ("name: x\nevals: [eval.yaml]\nvariants: {a: {}}\nbaseline: b\n", "unknown-baseline"),
        (
            "name: x\nevals: [eval.yaml]\nvary: [/environment/skills]\n"
            "variants: {a: {}, b: {defaults: {model: m}}}\n",
            "drift",
        ),
        ("name: x\nevals: [eval.yaml]\nvariants: {a: {}}\nbase: a\n", "unknown-key"),
    ],
)
def test_experiments(tmp_path: Path, text: str, code: str) -> None:
    (tmp_path / "eval.yaml").write_text(
        "name: t\nstimuli: [{name: s, prompt: p, graders: [{type: run-command, config: {command: ls}}]}]\n"
    )
    file = tmp_path / "x.experiment.yaml"
    file.write_text(text)
    assert code in [finding.code for finding in lint("experiment", file)]
