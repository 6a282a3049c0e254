"""`${NAME}` in specs."""

from __future__ import annotations

from pathlib import Path

import pytest

from valkyrie.config.permissions import Allowance
from valkyrie.specs.model import SpecError
from valkyrie.specs.reader import read_spec, read_text

FILE = Path(__file__).parent / "fixtures" / "evals" / "params.eval.yaml"
PARAMS = {"PROJECT_NAME": "our", "RUNS": "4", "MODEL": "m", "ENVIRONMENT": "workshop", "SERVICE": "api"}


def test_parameters_are_filled_in_everywhere() -> None:
    found = read_spec(FILE, params=PARAMS)
    (stimulus,) = found.spec.stimuli
    assert found.spec.name == "our params"
    assert (found.spec.defaults.runs, found.spec.defaults.model) == (4, "m")
    assert stimulus.prompt == "Deploy api, then print ${HOME} and leave ${other} alone."
    assert stimulus.graders[0].config == {"pattern": "api$"}
    assert "saw" in stimulus.environment.mcp_servers
    assert stimulus.tags == {}


def test_an_unknown_name_in_a_prompt_stays_and_is_told() -> None:
    (warning,) = read_spec(FILE, params=PARAMS).findings
    assert warning.code == "unset-variable"
    assert "--param other=VALUE" in warning.message


def test_the_environment_fills_settings_but_never_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PARAMS.items():
        monkeypatch.setenv(name, value)
    spec = read_spec(FILE, allowed=Allowance(tuple(PARAMS))).spec
    assert spec.name == "our params"
    assert spec.stimuli[0].prompt.startswith("Deploy ${SERVICE},")


def test_a_parameter_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL", "of the environment")
    assert read_spec(FILE, params=PARAMS).spec.defaults.model == "m"


def test_every_name_without_a_value_is_an_error_that_says_what_to_do() -> None:
    with pytest.raises(SpecError) as caught:
        read_spec(FILE, params={"RUNS": "4"})
    told = [finding.message for finding in caught.value.findings if finding.code == "unset-variable"]
    assert len(told) == 3
    for name, message in zip(("PROJECT_NAME", "MODEL", "ENVIRONMENT"), told, strict=True):
        assert f"--param {name}=VALUE" in message


def test_the_environment_fills_nothing_unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in PARAMS.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SpecError, match="--pass-env PROJECT_NAME"):
        read_spec(FILE)


def test_a_default_stands_in_for_a_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNS", "7")
    text = (
        "name: x\ndefaults:\n  runs: ${RUNS=5}\n"
        "stimuli: [{name: a, prompt: 'as ${WHO=me}', graders: [{type: completed}]}]"
    )
    spec = read_text(text, FILE).spec
    assert (spec.defaults.runs, spec.stimuli[0].prompt) == (5, "as me")
    spec = read_text(text, FILE, params={"WHO": "you"}, allowed=Allowance(("RUNS",))).spec
    assert (spec.defaults.runs, spec.stimuli[0].prompt) == (7, "as you")


def test_a_value_is_never_read_as_a_variable_again() -> None:
    text = 'stimuli: [{name: "${A}", prompt: x, graders: [{type: completed}]}]'
    spec = read_text(text, FILE, params={"A": "${B}", "B": "no"}).spec
    assert spec.stimuli[0].name == "${B}"
