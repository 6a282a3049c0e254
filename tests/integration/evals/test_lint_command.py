"""`valkyrie lint` as it is typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.git_repository import git
from tests.integration.evals.commands import Valk, valk

__all__ = ["valk"]

SPEC = """\
name: t
stimuli:
  - name: s
    prompt: Do it
    graders:
      - {type: run-command, config: {command: pytest}}
"""
WARNS = SPEC + "scoring: {weights: {run-command: 2}}\n"
WRONG = SPEC + "      - {type: output-contain}\n"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    return tmp_path / "eval.yaml"


@pytest.mark.parametrize(
    ("text", "words", "code"),
    [
        (SPEC, [], 0),
        (SPEC, ["--strict"], 0),
        (WARNS, [], 0),
        (WARNS, ["--strict"], 1),
        (WARNS, ["--strict", "--ignore", "weights-sum"], 0),
        (WRONG, [], 1),
        (WRONG, ["--ignore", "unknown-grader-type"], 0),
        (SPEC, ["gone"], 2),
        (SPEC, ["-e", "gone"], 2),
        (SPEC, ["--ignore", "weight-sum"], 2),
        (SPEC, ["--known-domains", "gone.txt"], 2),
        (SPEC, ["--param", "novalue"], 2),
        (SPEC, ["--format", "xml"], 2),
        (SPEC.replace("Do it", "Do ${WHAT}"), ["--strict"], 1),
        (SPEC.replace("Do it", "Do ${WHAT}"), ["--strict", "--param", "WHAT=it"], 0),
    ],
)
def test_exit_codes(valk: Valk, spec: Path, text: str, words: list[str], code: int) -> None:
    spec.write_text(text)
    assert valk("lint", *words).code == code


def test_people_read_findings_by_file_and_counts_at_the_end(valk: Valk, spec: Path) -> None:
    spec.write_text(WRONG)
    said = valk("lint")
    assert said.out == (
        "eval.yaml\n"
        "  7:9  error    output-contain: there is no grader of type 'output-contain'. "
        "Did you mean 'output-contains'? [unknown-grader-type]\n"
        "\n"
        "1 thing checked: 1 error, 0 warnings\n"
    )


def test_verbose_says_what_is_fine_and_what_is_worth_knowing(valk: Valk, spec: Path) -> None:
    spec.write_text(SPEC)
    assert "eval.yaml  ok (eval spec, 1 stimulus)" in valk("lint", "--verbose").out
    spec.write_text(SPEC + "defaults: {runs: 0}\n")
    assert (
        valk("lint", "--strict").out
        == "1 thing checked: 0 errors, 0 warnings, 1 remark (--verbose shows them)\n"
    )
    assert "[runs-zero]" in valk("lint", "--verbose").out


def test_json(valk: Valk, spec: Path) -> None:
    spec.write_text(WRONG)
    said = valk("lint", "--json")
    assert said.code == 1
    document = said.json
    assert (document["kind"], document["ok"]) == ("lint", False)
    (found,) = document["findings"]
    assert (found["code"], found["severity"], found["file"], found["line"]) == (
        "unknown-grader-type",
        "error",
        "eval.yaml",
        7,
    )
    assert valk("lint", "--format", "json").json == document


def test_sarif_to_a_file(valk: Valk, spec: Path, tmp_path: Path) -> None:
    spec.write_text(WRONG)
    said = valk("lint", "--format", "sarif", "--output", "lint.sarif")
    assert (said.code, said.out) == (1, "")
    run = json.loads((tmp_path / "lint.sarif").read_text())["runs"][0]
    place = run["results"][0]["locations"][0]["physicalLocation"]
    assert place["artifactLocation"]["uri"] == "eval.yaml"


def test_annotations(valk: Valk, spec: Path) -> None:
    spec.write_text(WARNS)
    assert valk("lint", "--format", "github").out.startswith(
        "::warning file=eval.yaml,line=7,col=11,title=weights-sum::"
    )


def test_eval_spec_leaves_the_rest_of_the_folder_alone(valk: Valk, spec: Path, tmp_path: Path) -> None:
    spec.write_text(SPEC)
    (tmp_path / "skills" / "s").mkdir(parents=True)
    (tmp_path / "skills" / "s" / "SKILL.md").write_text("no front matter")
    assert valk("lint", "-e", "eval.yaml").code == 0
    assert valk("lint", "skills").code == 1
    assert valk("lint", "-e", "eval.yaml", "skills").code == 1


def test_what_a_file_says_cannot_write_to_the_terminal(valk: Valk, spec: Path) -> None:
    spec.write_text(SPEC + '"\\u001b[31mred": 1\n')
    assert "\x1b" not in valk("lint").out


def test_a_repository_is_found_from_the_spec_whichever_way_that_is_named(
    valk: Valk, spec: Path, tmp_path: Path
) -> None:
    git(tmp_path, "init", "--quiet", "--initial-branch=main", "repo")
    git(tmp_path / "repo", "commit", "--quiet", "--allow-empty", "-m", "first")
    source = "    environment: {git: {type: worktree, source: repo, ref: main}}\n"
    spec.write_text(SPEC.replace("    graders:\n", f"{source}    graders:\n"))
    for words in ([], ["-e", "eval.yaml"], ["-e", str(spec)]):
        assert valk("lint", *words).code == 0
    spec.write_text(spec.read_text().replace("source: repo", "source: gone"))
    assert f"`source` is relative to {tmp_path}." in valk("lint", "-e", "eval.yaml").out


def test_files_for_graders_alone_are_not_to_be_found_in_the_history(
    valk: Valk, spec: Path, tmp_path: Path
) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "answer.txt").write_text("42")
    hidden = "grading_environment: {files: [{src: hidden/answer.txt, dest: answer.txt}]}\n"
    spec.write_text(SPEC + hidden)
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    assert valk("lint", "-e", spec, "--strict").code == 0
    git(tmp_path, "add", "hidden")
    git(tmp_path, "commit", "--quiet", "-m", "first")
    said = valk("lint", "-e", "eval.yaml", "--strict")
    assert said.code == 1 and "[grading-file-in-history]" in said.out
    spec.write_text(spec.read_text().replace("    prompt", "    environment: {commands: [ls]}\n    prompt"))
    assert valk("lint", "-e", "eval.yaml", "--strict").code == 0


def test_strict_makes_notes_of_guesses(valk: Valk, tmp_path: Path) -> None:
    (tmp_path / "eval.yaml").write_text(
        "name: t\ndefaults: {executor: claude-code}\nstimuli:\n  - name: s\n    prompt: Explain a mutex.\n"
        "    graders: [{type: output-contains, config: {substring: mutex}}]\n"
    )
    mild, strict = valk("lint", "-e", "eval.yaml"), valk("lint", "-e", "eval.yaml", "--strict")
    assert mild.code == 0 and "warning  an agent that repeats the prompt" in mild.out, mild.out
    assert strict.code == 0 and "info     an agent that repeats the prompt" in strict.out, strict.out
