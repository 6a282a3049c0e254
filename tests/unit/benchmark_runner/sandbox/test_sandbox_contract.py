"""Contracts: what is taken, what is refused, and how placeholders are filled."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmark_runner.sandbox.contract import AgentContract, fill, format_run_cmd, load_contract

ROOT = Path(__file__).parents[4]
RUN = "agent {problem_statement_path}"


def written(folder: Path, text: str) -> Path:
    path = folder / "contract.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("agent", ["hello", "trivia-answerer", "pycode-writer"])
def test_the_platforms_contracts_are_read_as_they_are(agent: str) -> None:
    folder = ROOT / "examples" / "agents" / agent
    assert load_contract(folder) == load_contract(folder / "contract.yaml")
    assert load_contract(folder).name == agent


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: a\nrun_cmd: agent", "problem_statement_path"),
        (f"name: a/b\nrun_cmd: '{RUN}'", "name"),
        (f"name: a\nrun_cmd: '{RUN}'\nfinal_output: out", "final_output"),
        (f"name: a\nrun_cmd: '{RUN}'\nfinal_output: /out/../etc", "final_output"),
        (f"name: a\nrun_cmd: '{RUN}'\nsecrets: {{'A-B': x}}", "A-B"),
        (f"name: a\nrun_cmd: '{RUN}'\ninstal_cmd: x", "instal_cmd"),
        ("- name", "not an agent's contract"),
        ("name: [", "no YAML"),
        ("a: &a [x]\nb: [*a, *a]", "aliases"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        load_contract(written(tmp_path, text))


def test_a_folder_without_a_contract(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no contract\.yaml"):
        load_contract(tmp_path)


def test_values_come_from_the_run_then_the_command_then_the_contract() -> None:
    contract = AgentContract(
        name="a",
        run_cmd=RUN,
        defaults={"model": {"type": "str", "required": True}, "depth": 3, "loud": True},
        kwargs={"effort": {"type": "str", "default": "low", "choices": ["low", "high"]}},
    )
    assert contract.parameters("m", {"effort": "high"}) == {
        "model": "m",
        "depth": "3",
        "loud": "true",
        "effort": "high",
    }
    with pytest.raises(ValueError, match="one of low, high"):
        contract.parameters("m", {"effort": "most"})
    with pytest.raises(ValueError, match=r"does not declare efort; it has depth, effort, loud"):
        contract.parameters("m", {"efort": "low"})


def test_a_required_parameter_without_a_value() -> None:
    contract = AgentContract(name="a", run_cmd=RUN, kwargs={"key": {"required": True}})
    with pytest.raises(ValueError, match="-k key VALUE"):
        contract.parameters("m", {})


def test_what_each_task_fills_is_left() -> None:
    command = "a --model {model} {problem_statement_path} --id {task_id} ${HOME} { echo; }"
    assert format_run_cmd(command, {"model": "x/y"}) == command.replace("{model}", "x/y")


def test_a_leftover_placeholder_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"nothing fills \{efort\}"):
        format_run_cmd(f"{RUN} {{efort}}", {"model": "m"})


def test_a_value_that_reads_like_a_placeholder_stays_one_word() -> None:
    assert fill("{a} {b}", {"a": "{b}", "b": "x"}) == "'{b}' x"


@pytest.mark.parametrize("script", ["printf %s {v}", "printf %s '{v}'", 'printf %s "{v}"', "printf %s a{v}b"])
@pytest.mark.parametrize(
    "value", ["plain", "two words", "$(id) `id` $HOME", 'it\'s "so"', "\\", "a;b|c&d", "*"]
)
def test_a_value_arrives_as_it_is(script: str, value: str) -> None:
    told = subprocess.run(
        ["bash", "-c", fill(script, {"v": value})], capture_output=True, text=True, check=True
    )
    assert (
        told.stdout.removeprefix("a" if "a{" in script else "").removesuffix("b" if "a{" in script else "")
        == value
    )


@pytest.mark.parametrize(
    "script", ["cat <<E\n{v}\nE", "echo `echo {v}`", 'echo "$(echo {v})"', "# don't\na {v}"]
)
def test_a_value_that_cannot_be_quoted_is_refused(script: str) -> None:
    assert fill(script, {"v": "plain"}) == script.replace("{v}", "plain")
    with pytest.raises(ValueError, match="cannot be filled"):
        fill(script, {"v": "two words; id"})


def test_unknown_keys_of_the_platform_do_not_disturb() -> None:
    keys: dict[str, Any] = {"output_artifacts": ["a"], "ingest_lambda": "x", "provided": {"any": "thing"}}
    assert AgentContract(name="a", run_cmd=RUN, **keys).egress_allowlist == []
