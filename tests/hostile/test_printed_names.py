"""Names and texts of strangers' specs, tasks and agents: printed as text by every command that shows them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from benchmark_runner.terminal import printable, printable_json
from tests.hostile.test_results_files import CONTROLS, HOSTILE, assert_harmless
from tests.integration.evals.commands import Said, Valk, valk
from valkyrie.cli.job import write_yaml

__all__ = ["valk"]

PATH_NAME = "::set-output name=a::b\r::error::c\n##vso[task.setvariable]x\x1b[2J\u202e"


def write_spec(folder: Path) -> Path:
    """Make an eval every text of which attacks whoever prints it."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = {
        "name": HOSTILE,
        "description": HOSTILE,
        HOSTILE: HOSTILE,
        "environment": {"files": [{"src": HOSTILE, "dest": HOSTILE}]},
        "stimuli": [
            {
                "name": HOSTILE,
                "prompt": HOSTILE,
                "tags": {HOSTILE: [HOSTILE]},
                HOSTILE: 1,
                "graders": [
                    {"type": HOSTILE, "name": HOSTILE, "config": {HOSTILE: HOSTILE}},
                    {"type": "output-contains", "name": HOSTILE, "config": {"value": 3}},
                ],
            }
        ],
    }
    file = folder / "eval.yaml"
    file.write_text(yaml.safe_dump(spec, allow_unicode=False), encoding="utf-8")
    return file


def write_fair_spec(folder: Path) -> Path:
    """Make one that can be planned, with such names."""
    folder.mkdir(parents=True, exist_ok=True)
    grader = {"type": "output-contains", "name": HOSTILE, "config": {"value": HOSTILE}}
    spec = {"name": HOSTILE, "stimuli": [{"name": HOSTILE, "prompt": HOSTILE, "graders": [grader]}]}
    file = folder / "eval.yaml"
    file.write_text(yaml.safe_dump(spec, allow_unicode=False), encoding="utf-8")
    return file


@pytest.mark.parametrize(
    "words",
    [
        ("lint", "bad"),
        ("lint", "bad", "--json"),
        ("lint", "bad", "--format", "sarif"),
        ("lint", "bad", "--verbose"),
        ("lint", f"bad/{PATH_NAME}"),
        ("lint", "-e", "bad/eval.yaml", "--ignore", HOSTILE),
        ("eval", "--eval-spec", "bad/eval.yaml", "--dry-run"),
        ("eval", "--eval-spec", "fair/eval.yaml", "--dry-run", "--executor", "nop"),
        ("eval", "--eval-spec", "fair/eval.yaml", "--dry-run", "--executor", HOSTILE),
        ("eval", "--eval-spec", f"{PATH_NAME}.yaml", "--dry-run"),
        ("export", "--eval-spec", "bad/eval.yaml", "--exporter", "csv"),
        ("export", "--eval-spec", "fair/eval.yaml", "--exporter", "csv", "--output-dir", "out"),
        ("export", "--eval-spec", "fair/eval.yaml", "--exporter", "harbor", "--output-dir", "out"),
        ("compare", HOSTILE, HOSTILE),
        ("run", "start", "--agent", HOSTILE, "--benchmark", HOSTILE, "--dry-run"),
        ("job", "run", "--agent", HOSTILE, "--benchmark", HOSTILE, "--dry-run"),
        ("experiment", "run", HOSTILE),
        (HOSTILE,),
        ("run", HOSTILE),
        ("run", "list", f"--{HOSTILE}"),
        ("run", "list", "--state", HOSTILE),
    ],
)
def test_names_of_a_spec_are_printed_as_text(valk: Valk, tmp_path: Path, words: tuple[str, ...]) -> None:
    write_spec(tmp_path / "bad")
    write_fair_spec(tmp_path / "fair")
    said = valk(*words)
    assert_harmless(said)
    assert "bug in Valkyrie" not in said.err


@given(st.text(st.sampled_from("\x1b[]0;2Jm\x07\x9b\r\n\t :#vso\xa0\u2028\u202e\u200bx"), max_size=40))
def test_whatever_stands_in_a_line_it_is_printed_as_text(text: str) -> None:
    for colors in (True, False):
        shown = printable(text, colors=colors)
        assert printable(shown, colors=colors) == shown
        assert not CONTROLS.search(re.sub(r"\x1b\[(0|2)m", "", shown) if colors else shown)
        assert not re.search(r"^\s*::|##\w*\[", shown, re.MULTILINE)
    assert json.loads(printable_json(json.dumps(text, ensure_ascii=False))) == text


@given(st.text(st.sampled_from("\x1b[]\x07\x9b\r\n\t :#vso\xa0\u2028\u202e\u200bx'\"\\"), max_size=60))
def test_a_yaml_document_has_no_line_that_is_obeyed(text: str) -> None:
    document = {"name": text, text: [text, {"long": f"{'word ' * 60}{text}"}]}
    said = write_yaml(document)
    assert yaml.safe_load(said) == document
    assert_harmless(Said(0, said, ""))


def test_annotations_for_github_are_one_line_each(valk: Valk, tmp_path: Path) -> None:
    write_spec(tmp_path / "bad")
    said = valk("lint", "bad", "--format", "github")
    for line in re.split(r"[\n\r]", said.out):
        if line.strip().startswith("::"):
            assert re.match(r"::(error|warning|notice) (file=|title=)", line), line
            assert line.count("::set-output") == 0 or line.index("::set-output") > 3
    assert "\x1b" not in said.out


def test_names_of_tasks_and_agents_are_printed_as_text(valk: Valk, tmp_path: Path) -> None:
    task = tmp_path / "bench" / PATH_NAME.replace("/", "")
    (task / "environment").mkdir(parents=True)
    (task / "tests").mkdir()
    (task / "instruction.md").write_text(HOSTILE, encoding="utf-8")
    (task / "task.toml").write_text(
        f"[metadata]\nauthor = {json.dumps(HOSTILE)}\nodd = 1\n", encoding="utf-8"
    )
    (task / "tests" / "test.sh").write_text("exit 0\n", encoding="utf-8")
    agent = tmp_path / "agent"
    agent.mkdir()
    contract = {"name": HOSTILE, "description": HOSTILE, HOSTILE: 1, "command": HOSTILE}
    (agent / "agent.yaml").write_text(yaml.safe_dump(contract), encoding="utf-8")
    (agent / "contract.yaml").write_text(yaml.safe_dump(contract), encoding="utf-8")
    for words in (
        ("lint", "bench"),
        ("lint", "agent"),
        ("benchmark", "tasks", "./bench"),
        ("benchmark", "show", "./bench"),
        ("benchmark", "check", "./bench"),
        ("agent", "show", "./agent"),
        ("agent", "check", "./agent"),
        ("run", "start", "--agent", "nop", "--benchmark", "./bench", "--dry-run"),
        ("run", "start", "--agent", "./agent", "--benchmark", "./bench", "--dry-run"),
    ):
        said = valk(*words)
        assert_harmless(said)
        assert "bug in Valkyrie" not in said.err, words
