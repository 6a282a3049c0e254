"""What spans the specs of a project."""

from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.evals.lint.linter import Linter, LintTarget, targets_of

SPEC = """\
name: {name}
tags: {{tier: {tier}}}
stimuli:
  - name: s
    prompt: Do it
    environment: {environment}
    graders: [{{type: run-command, config: {{command: pytest}}}}]
"""


def lint(tmp_path: Path, project: str, **specs: str) -> list[tuple[str, int]]:
    (tmp_path / ".vally.yaml").write_text(project)
    for name, text in specs.items():
        folder = tmp_path / "evals" / name
        folder.mkdir(parents=True)
        (folder / "eval.yaml").write_text(text)
    (checked,) = Linter().check([LintTarget("project", tmp_path / ".vally.yaml")])
    return [(one.code, one.place.line) for one in checked.findings if one.place]


def spec(name: str = "a", tier: str = "smoke", environment: str = "{}") -> str:
    return SPEC.format(name=name, tier=tier, environment=environment)


def test_a_good_project(tmp_path: Path) -> None:
    text = "suites:\n  quick: {filter: {tier: smoke}}\nenvironments:\n  base: {commands: [ls]}\n"
    assert lint(tmp_path, text, a=spec(environment="base")) == []


@pytest.mark.parametrize(
    ("project", "code", "line"),
    [
        ("suites:\n  quick: {filter: {tier: fast}}\n", "suite-chooses-nothing", 2),
        ("suites:\n  quick: {evals: [evals/gone/eval.yaml]}\n", "suite-chooses-nothing", 2),
        ("suites:\n  quick: {}\n", "empty-suite", 2),
        ("suites:\n  quick: {filter: {area: x}}\n", "unused-tag", 1),
        ("environments:\n  base: {commands: [ls]}\n", "unused-environment", 2),
        ("paths:\n  skills: skils/\n", "project-path-missing", 2),
        ("pathes: {}\n", "unknown-key", 1),
        ("paths: [\n", "yaml", 2),
    ],
)
def test_what_is_wrong(tmp_path: Path, project: str, code: str, line: int) -> None:
    assert (code, line) in lint(tmp_path, project, a=spec())


def test_an_environment_named_by_a_variable_may_be_any(tmp_path: Path) -> None:
    text = "environments:\n  base: {commands: [ls]}\n"
    found = lint(tmp_path, text, a=spec(environment="${WHICH}"))
    assert "unused-environment" not in [code for code, _ in found]


def test_two_evals_of_one_name(tmp_path: Path) -> None:
    assert [code for code, _ in lint(tmp_path, "{}", a=spec("same"), b=spec("same"))] == [
        "duplicate-eval-name"
    ]


def test_a_broken_project_is_said_of_it_and_its_specs_survive(tmp_path: Path) -> None:
    (tmp_path / ".vally.yaml").write_text("suites: [\n")
    file = tmp_path / "eval.yaml"
    file.write_text(spec(environment="base"))
    project, of_spec = Linter().check(
        [LintTarget("project", tmp_path / ".vally.yaml"), LintTarget("spec", file)]
    )
    assert [one.code for one in project.findings] == ["yaml"]
    assert of_spec.findings == []  # the same finding, told once
    file.write_text(spec())
    assert [one.code for one in Linter().check([LintTarget("spec", file)])[0].findings] == []


def test_specs_by_other_names_are_found_through_the_project(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evals").mkdir()
    (tmp_path / "evals" / "stimuli.yml").write_text(spec())
    (tmp_path / ".vally.yaml").write_text("paths: {evalFilenames: [stimuli.yml]}\n")
    assert LintTarget("spec", Path("evals/stimuli.yml")) in targets_of(Path())
