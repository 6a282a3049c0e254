"""The published JSON Schema accepts what the reader accepts, and knows every grader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from valkyrie.grade.protocol import WHERE, built_in
from valkyrie.specs.grader_schema import GRADERS
from valkyrie.specs.model import GraderSpec
from valkyrie.specs.reader import read_spec
from valkyrie.specs.schema import json_schema
from valkyrie.specs.yaml_nodes import load_yaml, parse_yaml

jsonschema_rs: Any = pytest.importorskip("jsonschema_rs")
FIXTURES = Path(__file__).parent / "fixtures"


def problems(data: object, part: str | None = None) -> list[str]:
    schema = json_schema()
    if part:
        schema = {**schema["$defs"][part], "$defs": schema["$defs"]}
    return [str(error) for error in jsonschema_rs.Draft202012Validator(schema).iter_errors(data)]


@pytest.mark.parametrize("file", sorted((FIXTURES / "evals").glob("*.eval.yaml")), ids=lambda file: file.stem)
def test_every_fixture_fits(file: Path) -> None:
    data = load_yaml(file).data()
    data.pop("model", None)  # of older.eval.yaml: the reader takes it, editors should not offer it
    for stimulus in data["stimuli"]:
        for grader in stimulus["graders"]:
            grader.pop("prompt", None)
    assert problems(data) == []


def test_a_project_file_fits() -> None:
    assert problems(load_yaml(FIXTURES / ".vally.yaml").data(), "project") == []
    assert problems({"suites": {"a": {}}}, "project")


def test_an_experiment_fits() -> None:
    text = """
name: a
evals: [x]
vary: [/defaults/model]
variants: {a: {}, b: {overrides: {model: x}, environment: {skills: []}}, c: }
baseline: a
"""
    assert problems(parse_yaml(text, Path("x")).data(), "experiment") == []
    assert problems({"name": "a", "evals": "x"}, "experiment")


STIMULUS = "name: a, prompt: b, graders: [{type: completed}]"


@pytest.mark.parametrize(
    "text",
    [
        "name: x",
        "stimuli: []",
        "stimuli: [{name: a, prompt: b}]",
        "stimuli: [{name: a, prompt: b, graders: []}]",
        "stimuli: [{name: a, graders: [{type: completed}]}]",
        f"stimuli: [{{{STIMULUS}, turns: [c]}}]",
        f"stimuli: [{{{STIMULUS}, timeout: 600}}]",
        f"stimuli: [{{{STIMULUS}, rubrik: [x]}}]",
        f"stimuli: [{{{STIMULUS}}}]\ndefaults: {{runs: -1}}",
        f"stimuli: [{{{STIMULUS}}}]\nscoring: {{threshold: 2}}",
        "stimuli: [{name: a, prompt: b, graders: [{type: output-matches}]}]",
        "stimuli: [{name: a, prompt: b, graders: [{type: output-matches, config: {patern: x}}]}]",
        "stimuli: [{name: a, prompt: b, graders: [{type: wall-time, config: {max: 3}}]}]",
        "stimuli: [{name: a, prompt: b, graders: [{type: prompt, config: {scoring: stars}}]}]",
    ],
)
def test_what_is_wrong_is_shown_in_the_editor(text: str) -> None:
    assert problems(parse_yaml(text, Path("x")).data())


def test_a_plugins_grader_and_variables_are_fine() -> None:
    stimulus = "{name: a, prompt: b, graders: [{type: mine, config: {x: 1}}]}"
    text = "defaults: {runs: '${N}', timeout: '${T}'}\n" + f"stimuli: [{stimulus}]"
    assert problems(parse_yaml(text, Path("x")).data()) == []


def test_the_schema_has_every_type_there_is() -> None:
    assert set(GRADERS) == set(WHERE)


def graders_of_the_fixture() -> list[GraderSpec]:
    spec = read_spec(FIXTURES / "evals" / "every-grader.eval.yaml").spec
    return [grader for stimulus in spec.stimuli for grader in stimulus.graders]


def test_the_fixture_has_every_type() -> None:
    assert {grader.type for grader in graders_of_the_fixture()} == set(WHERE)


@pytest.mark.parametrize("kind", sorted(WHERE))
def test_the_schema_has_the_keys_the_grader_reads(kind: str) -> None:
    made = [built_in(kind)(grader) for grader in graders_of_the_fixture() if grader.type == kind]
    assert set().union(*(grader.config.known for grader in made)) == set(GRADERS[kind].keys)


def test_the_reference_page_has_every_key() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "eval-spec.md").read_text()
    schema = json_schema()
    forms = [schema, *schema["$defs"].values()]
    forms += [option for form in forms for option in form.get("anyOf", ())]
    keys = {key for form in forms for key in form.get("properties", ())}
    missing = [key for key in sorted(keys) if f"{key}`" not in page and f"`{key}" not in page]
    assert missing == []


def test_the_examples_of_the_reference_page_fit() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "eval-spec.md").read_text()
    examples = [block.partition("```")[0] for block in page.split("```yaml\n")[1:]]
    spec, experiment = (parse_yaml(example, Path("x")).data() for example in examples)
    assert problems(spec) == []
    assert problems(experiment, "experiment") == []
