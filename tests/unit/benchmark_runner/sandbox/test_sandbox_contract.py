"""Contracts as the runner uses them; how they are read and filled is tested in `agent_bundle`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmark_runner.sandbox.setup import AgentContract, format_run_cmd, load_contract, resolve_all

ROOT = Path(__file__).parents[4]
RUN = "agent {problem_statement_path}"


@pytest.mark.parametrize("agent", ["hello", "trivia-answerer", "pycode-writer"])
def test_the_platforms_contracts_are_read_as_they_are(agent: str) -> None:
    folder = ROOT / "examples" / "agents" / agent
    assert load_contract(folder) == load_contract(folder / "contract.yaml")
    assert load_contract(folder).name == agent


@pytest.mark.parametrize(
    "text", ["- name", "name: [", f"name: a/b\nrun_cmd: '{RUN}'", "a: &a [x]\nb: [*a, *a]"]
)
def test_what_is_wrong_is_a_value_error_with_its_place(tmp_path: Path, text: str) -> None:
    path = tmp_path / "contract.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match=rf"^{path}"):
        load_contract(path)


def test_no_contract(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no contract\.yaml"):
        load_contract(tmp_path)
    with pytest.raises(ValueError, match=r"gone\.yaml: No such file"):
        load_contract(tmp_path / "gone.yaml")


def test_values_come_from_the_run_then_the_command_then_the_contract() -> None:
    contract = AgentContract.model_validate(
        {
            "name": "a",
            "run_cmd": RUN,
            "defaults": {"model": {"type": "str", "required": True}, "depth": 3, "loud": True},
            "kwargs": {"effort": {"type": "str", "default": "low", "choices": ["low", "high"]}},
        }
    )
    assert resolve_all(contract, "m", {"effort": "high"}).values == {
        "model": "m",
        "depth": "3",
        "loud": "true",
        "effort": "high",
    }
    with pytest.raises(ValueError, match="one of low, high"):
        resolve_all(contract, "m", {"effort": "most"})
    with pytest.raises(ValueError, match=r"`efort` is no parameter.*'effort'.* Known: depth, effort, loud"):
        resolve_all(contract, "m", {"efort": "low"})


def test_what_each_task_fills_is_left() -> None:
    command = "a --model {model} {problem_statement_path} --id {task_id} ${HOME} { echo; } # {old}"
    assert format_run_cmd(command, {"model": "x/y"}) == command.replace("{model}", "'x/y'")


@pytest.mark.parametrize("word", ["efort", "max-steps"])
def test_a_leftover_placeholder_is_an_error(word: str) -> None:
    with pytest.raises(ValueError, match=rf"nothing fills \{{{word}\}}"):
        format_run_cmd(f"{RUN} {{{word}}}", {"model": "m"})
    with pytest.raises(ValueError, match=rf"nothing fills \{{{word}\}}"):
        resolve_all(AgentContract(name="a", run_cmd=f"{RUN} {{{word}}}"), "m", {})


@pytest.mark.parametrize(
    "script", ["cat <<E\n{v}\nE", "echo `echo {v}`", 'echo "$(echo {v})"', "# don't\necho {v}"]
)
def test_a_command_the_platform_fills_is_filled(script: str) -> None:
    filled = format_run_cmd(script, {"v": "two words; id"})
    told = subprocess.run(["bash", "-c", filled], capture_output=True, text=True, check=True)
    assert told.stdout == "two words; id\n"


def test_a_value_that_reads_like_a_placeholder_stays_that_text() -> None:
    contract = AgentContract.model_validate(
        {"name": "a", "run_cmd": "cat {problem_statement_path} {style}", "kwargs": {"style": {}}}
    )
    resolved = resolve_all(contract, "m", {"style": "{task_id}"})
    assert resolved.command("/p", "t1") == "cat '/p' '{task_id}'"
