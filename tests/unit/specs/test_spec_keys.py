"""The reader and the published JSON Schema know the same keys of every part of a file."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from valkyrie.specs.experiment import read_experiment
from valkyrie.specs.project import examine_project
from valkyrie.specs.reader import examine
from valkyrie.specs.schema import ELSEWHERE, json_schema
from valkyrie.specs.stimuli import GRADER_KEYS
from valkyrie.specs.yaml_nodes import Fields

SPEC = """
defaults: {executor: {name: mock}}
scoring: {}
environment:
  files: [{src: a, dest: b}]
  git: {source: .}
  mcpServers: {x: {command: y}}
grading_environment: {files: []}
constraints: {max_turns: 1}
artifacts: {include: a}
stimuli:
  - name: a
    prompt: b
    config: {runs: 1}
    attachments: [{path: a}]
    golden_patch: {content: x}
    golden_command: {command: x}
    golden_trajectory: {path: x}
    graders: [{type: completed, config: {}}]
"""
PROJECT = "paths: {}\nsuites: {a: {evals: x}}\nenvironments: {a: {}}\nplugins: {}\n"
EXPERIMENT = "name: a\nevals: x\nexecution: {workers: 1}\noverrides: {}\n"
VARIANTS = EXPERIMENT + "vary: [/defaults]\nbaseline: a\nvariants: {a: {defaults: {}}}\n"
MATRIX = EXPERIMENT + "matrix: {m: {path: /defaults/model, values: [a]}}\n"

PARTS = {
    r"eval spec": "",
    r"defaults|.*: defaults|.*: overrides": "defaults",
    r"executor": "defaults/properties/executor/anyOf/1",
    r"scoring": "scoring",
    r"environment|environment 'a'": "environment",
    r".*: `git`": "environment/properties/git/anyOf/0",
    r"MCP server 'x'": "environment/properties/mcpServers/additionalProperties",
    r"An entry of `files`": "files/items",
    r"grading_environment": "grading_environment/anyOf/0",
    r".*constraints.*": "constraints/anyOf/0",
    r"artifacts": "stimulus/properties/artifacts/anyOf/0",
    r"stimulus 'a'": "stimulus",
    r"stimulus 'a': `config`": "stimulus/properties/config/anyOf/0",
    r"stimulus 'a': an attachment": "stimulus/properties/attachments/items/anyOf/1",
    r"stimulus 'a': `golden_patch`": "stimulus/properties/golden_patch/anyOf/1",
    r"stimulus 'a': `golden_command`": "stimulus/properties/golden_command/anyOf/1",
    r"stimulus 'a': `golden_trajectory`": "stimulus/properties/golden_trajectory/anyOf/1",
    r"\.vally\.yaml": "project",
    r"paths": "project/properties/paths/anyOf/0",
    r"suite 'a'": "project/properties/suites/additionalProperties",
    r"plugins": "project/properties/plugins/anyOf/0",
    r"experiment": "experiment",
    r"variant 'a'": "experiment/properties/variants/additionalProperties/anyOf/0",
    r"execution": "experiment/properties/execution/anyOf/0",
    r"matrix axis 'm'": "experiment/properties/matrix/additionalProperties",
}
"""How the reader calls a part in its messages → where `$defs` of the schema describes it."""
OLDER_NAMES = {
    "project/properties/paths/anyOf/0": {"eval_filenames"},
    "project/properties/plugins/anyOf/0": {"grader", "executor", "eval", "reporter"},
    "stimulus/properties/attachments/items/anyOf/1": {"file", "name"},
    "stimulus/properties/golden_patch/anyOf/1": {"file"},
    "stimulus/properties/golden_trajectory/anyOf/1": {"file", "inline", "path"},
}
"""What the reader takes and editors do not offer: other spellings, and parts the schema leaves open."""
IGNORED = {"project": {"backend"}, "project/properties/suites/additionalProperties": {"metadata"}}
"""What the schema lets stand and the reader says it does not use."""
TRANSLATED = {"agent_environment", "config"}
"""Keys that are rewritten before a map is read: into `environment` and `defaults`."""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """Part → the keys the reader asked for, in files that have every part."""
    read: list[Fields] = []
    finish = Fields.finish

    def note(self: Fields, **others: Any) -> None:
        read.append(self)
        finish(self, **others)

    monkeypatch.setattr(Fields, "finish", note)
    for name, text in {
        ".vally.yaml": PROJECT,
        "eval.yaml": SPEC,
        "v.yaml": VARIANTS,
        "m.yaml": MATRIX,
    }.items():
        (tmp_path / name).write_text(text)
    _, findings = examine(tmp_path / "eval.yaml")
    assert [one for one in findings if one.code in ("unknown-key", "wrong-type")] == []
    examine_project(tmp_path / ".vally.yaml")
    for name in ("v.yaml", "m.yaml"):
        read_experiment(tmp_path / name)
    found: dict[str, set[str]] = defaultdict(set)
    for fields in read:
        part = next((part for what, part in PARTS.items() if re.fullmatch(what, fields.what)), None)
        assert part is not None, f"the reader reads {fields.what!r}, which PARTS does not name"
        found[part] |= fields.asked
    return found


def test_reader_and_schema_have_the_same_keys(asked: dict[str, set[str]]) -> None:
    assert set(asked) == set(PARTS.values())
    for part, keys in asked.items():
        properties = _properties(part)
        offered = {key for key, form in properties.items() if form is not ELSEWHERE} - TRANSLATED
        taken = keys - OLDER_NAMES.get(part, set()) - TRANSLATED
        assert taken == offered - IGNORED.get(part, set()), part or "the top of the file"


def test_a_graders_entry_has_the_same_keys() -> None:
    assert set(GRADER_KEYS) == set(json_schema()["$defs"]["grader"]["properties"])


def _properties(part: str) -> dict[str, Any]:
    form: Any = json_schema()
    for name in ("$defs/" + part).split("/") if part else ():
        form = form[int(name) if isinstance(form, list) else name]
    return dict(form.get("properties", {}))
