"""Filling a contract in from the command line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark_runner.agent_bundle.contract import load_contract
from benchmark_runner.agent_bundle.resolution import ResolvedContract, misspelt, resolve
from benchmark_runner.errors import ContractValidationError


def contract(parameters: str = "", run: str = "run {problem_statement_path}") -> Any:
    return load_contract(f"name: a\ninstall_cmd: x\nrun_cmd: {json.dumps(run)}\n{parameters}")


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("str", "05", "05"),
        ("str", "", ""),
        ("int", "-3", -3),
        ("int", " 7 ", 7),
        ("float", "1e-3", 0.001),
        ("float", "2", 2.0),
        ("bool", "true", True),
        ("bool", "No", False),
        ("bool", "1", True),
        ("bool", "0", False),
        ("bool", "YES", True),
        ("dict", '{"a": [1]}', {"a": [1]}),
    ],
)
def test_words_become_values(type_: str, text: str, value: object) -> None:
    resolved = resolve(contract(f"kwargs: {{v: {{type: {type_}}}}}"), None, {"v": text})
    assert resolved.kwargs == {"v": value}
    assert type(resolved.kwargs["v"]) is type(value)


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("int", "1.5"),
        ("int", ""),
        ("int", "1_000"),
        ("int", "٣"),
        ("float", "nan"),
        ("float", "inf"),
        ("float", "x"),
        ("float", "1_0.0"),
        ("bool", "maybe"),
        ("bool", ""),
        ("dict", "[1]"),
        ("dict", "{a: 1}"),
        ("dict", ""),
        ("dict", "[" * 100_000),
        ("int", "9" * 5000),
    ],
)
def test_words_of_the_wrong_type(type_: str, text: str) -> None:
    with pytest.raises(ContractValidationError, match="agent a: `v` must be a"):
        resolve(contract(f"kwargs: {{v: {{type: {type_}}}}}"), None, {"v": text})


@pytest.mark.parametrize(
    ("parameters", "run", "model", "kwargs", "says"),
    [
        ("kwargs: {effort: {type: str}}", "", None, {"efort": "1"}, "Did you mean 'effort'. Known: effort"),
        ("", "", None, {"x": "1"}, "`x` is no parameter of it. Known: none"),
        (
            "kwargs: {n: {type: int, required: true, description: how many}}",
            "",
            None,
            {},
            r"`n` is required \(how many\): give -k n VALUE",
        ),
        (
            "kwargs: {n: {choices: [low, high]}}",
            "",
            None,
            {"n": "hihg"},
            "must be one of low, high, not 'hihg'. Did you mean 'high'",
        ),
        ("defaults: {model: {choices: [big]}}", "", "small", {}, "`model` must be one of big, not 'small'"),
        ("defaults: {model: {required: true}}", "", None, {}, "`model` is required: give --model MODEL"),
        ("", " {model}", None, {}, "`model` is used by run_cmd but has no value: give --model"),
        (
            "kwargs: {n: {type: int}}",
            " {n}",
            None,
            {},
            "`n` is used by run_cmd but has no value: give -k n VALUE",
        ),
        ("kwargs: {n: {type: str}}", " $(( {n} ))", None, {"n": "x"}, "arithmetic"),
        ("kwargs: {n: {type: str}}", " {n}", None, {"n": "a\0"}, "NUL"),
    ],
)
def test_what_does_not_fit(
    parameters: str, run: str, model: str | None, kwargs: dict[str, str], says: str
) -> None:
    with pytest.raises(ContractValidationError, match=says):
        resolve(contract(parameters, "run {problem_statement_path}" + run), model, kwargs)


def test_all_problems_come_at_once() -> None:
    with pytest.raises(ContractValidationError) as caught:
        resolve(contract("kwargs: {a: {type: int}, b: {required: true}}"), None, {"a": "x", "c": "1"})
    assert all(f"`{name}`" in str(caught.value) for name in "abc")


def test_defaults_and_model() -> None:
    agent = contract(
        "defaults: {model: {default: small, choices: [big, small]}}\n"
        "kwargs: {n: {type: int, default: 3}, r: {type: float, default: 1}, o: {type: str}}",
        "run {problem_statement_path} {model} {n} {r}",
    )
    resolved = resolve(agent, None, {})
    assert (resolved.model, resolved.kwargs) == ("small", {"n": 3, "r": 1.0})
    assert resolved.run_cmd == "run {problem_statement_path} 'small' '3' '1.0'"
    assert resolve(agent, "big", {}).model == "big"
    assert resolve(agent, "big", {"model": "small"}).model == "small", "-k model beats --model"


def test_a_model_nobody_uses_is_recorded() -> None:
    assert resolve(contract(), "any", {}).model == "any"
    assert resolve(contract(), None, {}).model is None


def test_choices_are_compared_as_values() -> None:
    agent = contract("kwargs: {n: {type: int, choices: [1, 2]}, b: {type: bool, choices: [yes]}}")
    assert resolve(agent, None, {"n": "02", "b": "true"}).kwargs == {"n": 2, "b": True}


def test_values_are_written_as_a_program_reads_them() -> None:
    agent = contract("kwargs: {b: {type: bool}, d: {type: dict}}", "run {problem_statement_path} {b} {d}")
    resolved = resolve(agent, None, {"b": "yes", "d": '{"k":"it\'s"}'})
    assert resolved.command("/p", "t") == "run '/p' 'true' '{\"k\": \"it'\\''s\"}'"


@given(
    st.text().filter(lambda text: "\0" not in text and text.isprintable()),
    st.text(st.characters(codec="utf-8")),
)
def test_json_and_back(model: str, note: str) -> None:
    agent = contract(
        "kwargs: {note: {type: str}, d: {type: dict, default: {a: [1]}}}\noutput_artifacts: [a]\n"
        "secrets: {A: b}\nfinal_output: /logs\negress_allowlist: ['https://a.b']"
    )
    resolved = resolve(agent, model, {"note": note})
    plain = json.loads(json.dumps(resolved.to_json()))
    assert ResolvedContract.from_json(plain) == resolved
    assert plain["run_cmd"] == resolved.run_cmd


def test_a_value_that_looks_like_a_placeholder_stays_text() -> None:
    agent = contract("kwargs: {note: {type: str}}", "run {problem_statement_path} {note} {task_id}")
    resolved = resolve(agent, None, {"note": "{task_id}"})
    assert resolved.command("/p", "t/1") == "run '/p' '{task_id}' 't/1'"


def test_a_misspelt_placeholder_is_noted() -> None:
    found = misspelt(contract(run="run {problem_statement_path} {problem_statement} {mdel} ${model} {zzz}"))
    assert [note.partition(" in run_cmd")[0] for note in found] == [
        "Agent a: {problem_statement}",
        "Agent a: {mdel}",
    ]
    assert "Did you mean 'model'?" in found[1]
    assert misspelt(contract(run="run {problem_statement_path} {model} {a,b} ${mdel}")) == []
