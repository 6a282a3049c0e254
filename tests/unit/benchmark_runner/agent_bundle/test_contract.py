"""Reading contracts: what is taken, and what is said about what is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmark_runner.agent_bundle.contract import load_contract
from benchmark_runner.agent_bundle.resolution import resolve
from benchmark_runner.errors import ContractValidationError

BASE = "name: a\ninstall_cmd: 'true'\nrun_cmd: run {problem_statement_path}\n"
FULL = """\
name: full
install_cmd: |
  pip install .
run_cmd: cat {problem_statement_path} | agent --model "{model}" --n {n} --task '{task_id}'
final_output: /logs
output_artifacts:
  - metrics.json
  - {path: out/model.patch, source: "/tmp/{task_id}/*.patch", required: false}
egress_allowlist: ["https://api.example.com"]
secrets: {OPENAI_API_KEY: openai-prod}
defaults:
  model: {type: str, required: true, choices: [big, small]}
kwargs:
  n: {type: int, default: 3, description: how many}
  ratio: {type: float, default: 1}
  flags: {type: dict, default: {a: 1}}
provided: [anything, {goes: here}]
ingest_lambda: docent
"""


def test_every_field_is_read() -> None:
    contract = load_contract(FULL)
    assert contract.name == "full"
    assert contract.install_cmd == "pip install .\n"
    assert [artifact.source_path for artifact in contract.output_artifacts] == [
        "/tmp/valkyrie/metrics.json",
        "/tmp/{task_id}/*.patch",
    ]
    assert [artifact.required for artifact in contract.output_artifacts] == [True, False]
    assert contract.secrets == {"OPENAI_API_KEY": "openai-prod"}
    assert list(contract.parameters) == ["model", "n", "ratio", "flags"]
    assert contract.provided is None
    assert contract.ingest_lambda == "docent"


@pytest.mark.parametrize("file", ["contract.yaml", "contract.yml"])
def test_a_folder_has_one_contract(tmp_path: Path, file: str) -> None:
    with pytest.raises(ContractValidationError, match=r"has no contract\.yaml"):
        load_contract(tmp_path)
    (tmp_path / file).write_text(BASE)
    assert load_contract(tmp_path).name == "a"
    (tmp_path / "contract.yaml").write_text(BASE)
    (tmp_path / "contract.yml").write_text(BASE)
    with pytest.raises(ContractValidationError, match="keep one"):
        load_contract(tmp_path)


def test_a_python_contract_is_pointed_to_yaml(tmp_path: Path) -> None:
    (tmp_path / "contract.py").write_text("")
    with pytest.raises(ContractValidationError, match=r"contract\.py is no longer read"):
        load_contract(tmp_path)


def test_errors_name_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "contract.yaml").write_bytes(b"name: \xff")
    with pytest.raises(ContractValidationError, match=r"contract\.yaml: not UTF-8"):
        load_contract(tmp_path)
    (tmp_path / "contract.yaml").write_text(BASE + "runcmd: x\n")
    with pytest.raises(ContractValidationError) as caught:
        load_contract(tmp_path)
    assert f"{tmp_path}/contract.yaml:4: runcmd: unknown key. Did you mean 'run_cmd'?" in str(caught.value)


def test_all_problems_come_at_once() -> None:
    text = (
        "run_cmd: echo\ninstall_cmd: 5\nfinal_output: logs\nkwargs:\n  n:\n    typ: int\n    type: integer\n"
    )
    with pytest.raises(ContractValidationError) as caught:
        load_contract(text, where="c.yaml")
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[:2] for line in lines] == [
        ["c.yaml:1", "name"],
        ["c.yaml:2", "install_cmd"],
        ["c.yaml:1", "run_cmd"],
        ["c.yaml:3", "final_output"],
        ["c.yaml:7", "kwargs.n.type"],
        ["c.yaml:6", "kwargs.n.typ"],
    ]
    assert "missing" in lines[0]
    assert "must be text, is 5" in lines[1]
    assert "{problem_statement_path}" in lines[2]
    assert "must be one of str, int, float, bool, dict, is 'integer'" in lines[4]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "must be keys and values"),
        ("- a\n", "must be keys and values"),
        ("name: [a\n", r"c\.yaml:2:1: not valid YAML"),
        ("name: a\n\tx: 1\n", r"c\.yaml:2:1: not valid YAML.*[Ii]ndent with spaces"),
        (BASE + "name: b\n", r"c\.yaml:4:1: `name` is given twice \(first on line 1\)"),
        (BASE + "kwargs:\n  n: {type: int}\n  n: {type: str}\n", r"c\.yaml:6:3: `n` is given twice"),
        (BASE + "provided: &a [1]\nsecrets: *a\n", "aliases"),
        (BASE + "---\nname: b\n", "another document"),
        ("name: a\x00b\n", r"c\.yaml:1: not valid YAML"),
        ("[" * 5000, "nested too deeply|not valid YAML"),
        ("x" * (1024 * 1024 + 1), "too large"),
        (
            "name: a\ninstall_cmd: x\nrun_cmd: {problem_statement_path}\n",
            "run_cmd: must be text, is keys and",
        ),
        ("name: a\ninstall_cmd: x\nrun_cmd: {{problem_statement_path}}\n", "a key must be plain text"),
        ("name: a\ninstall_cmd: x\nrun_cmd: 'run # {problem_statement_path}'\n", "outside comments"),
        ("name: a\ninstall_cmd: x\nrun_cmd: run ${problem_statement_path}\n", "must contain"),
        ("name: a\ninstall_cmd: ''\nrun_cmd: run {problem_statement_path}\n", "install_cmd: is empty"),
        (
            "name: a\ninstall_cmd:\nrun_cmd: run {problem_statement_path}\n",
            "install_cmd: must be text, is empty",
        ),
        (
            "name: a/b\ninstall_cmd: x\nrun_cmd: run {problem_statement_path}\n",
            "'a/b' must be 1 to 64 letters",
        ),
        (
            f"name: a\ninstall_cmd: {'x' * 70_000}\nrun_cmd: r {{problem_statement_path}}\n",
            "put the script into a",
        ),
        (BASE + "conversation: {}\n", "conversation: not supported by this version"),
        (BASE + "finalize_cmd: x\n", "finalize_cmd: not supported by this version"),
        (BASE + "final_output: /\n", "not `/`"),
        (BASE + "final_output: /logs/../etc\n", r"without `\.\.`"),
        (BASE + "output_artifacts: x\n", "output_artifacts: must be a list"),
        (BASE + "output_artifacts: [/abs]\n", r"output_artifacts\[0\]\.path: '/abs' must be a relative"),
        (BASE + "output_artifacts: [a/../b]\n", "relative path"),
        (BASE + "output_artifacts: [./a]\n", "relative path"),
        (BASE + "output_artifacts: [a//b]\n", "relative path"),
        (BASE + "output_artifacts: ['']\n", "relative path"),
        (BASE + "output_artifacts: [a, a]\n", "'a' is listed twice"),
        (BASE + "output_artifacts: [a, a/b]\n", "a file and a folder"),
        (BASE + f"output_artifacts: {[f'f{n}' for n in range(11)]}\n", "lists 11 artifacts; 10 are allowed"),
        (BASE + "output_artifacts: [{path: a, source: b}]\n", "absolute path in the sandbox"),
        (BASE + "output_artifacts: [{path: a, source: '/*/b'}]\n", "must name a folder before its first"),
        (BASE + "output_artifacts: [{path: a, sorce: /b}]\n", "Did you mean 'source'"),
        (BASE + "output_artifacts: [{source: /b}]\n", r"output_artifacts\[0\]\.path: missing"),
        (BASE + "output_artifacts: [{path: a, required: maybe}]\n", "must be true or false"),
        (BASE + "egress_allowlist: [api.example.com]\n", "write it like https://"),
        (BASE + "egress_allowlist: ['http://[bad']\n", "write it like https://"),
        (BASE + "secrets: [A]\n", "secrets: must be keys and values, is a list"),
        (BASE + "secrets: {A-B: x}\n", "'A-B' is no name of an environment variable"),
        (BASE + "secrets: {A: 5}\n", r"secrets\.A: must be text, is 5"),
        (BASE + "required_env: [A-B]\n", "'A-B' is no name of an environment variable"),
        (BASE + "defaults: {n: [1]}\n", r"defaults\.n: must be keys and values, is a list"),
        (f"{BASE}x: &a 1\n".replace("run {", "$(" * 3000 + "run {"), "nested too deeply"),
        (BASE + "kwargs: {task_id: {type: str}}\n", "filled in by the platform"),
        (BASE + "kwargs: {'a b': {type: str}}\n", "starting with a letter"),
        (BASE + "kwargs: {n: {type: int, default: x}}\n", "the default 'x' is no whole number"),
        (BASE + "kwargs: {n: {type: int, default: true}}\n", "the default True is no whole number"),
        (BASE + "kwargs: {n: {type: str, default: c, choices: [a, b]}}\n", "not among the choices"),
        (BASE + "kwargs: {n: {type: str, choices: []}}\n", "`choices` is empty"),
        (BASE + "kwargs: {n: {type: int, choices: [a]}}\n", "'a' is no whole number"),
        (BASE + "kwargs: {n: {type: str, choices: [[a]]}}\n", r"kwargs\.n\.choices\[0\]"),
        (BASE + "kwargs: {n: 5}\n", r"kwargs\.n: must be keys and values, is 5"),
        (BASE + "defaults: {model: {type: int}}\n", "`model` must be of type str"),
        (BASE + "defaults: {n: {}}\nkwargs: {n: {}}\n", "n in both `defaults` and `kwargs`"),
    ],
)
def test_bad_contracts(text: str, says: str) -> None:
    with pytest.raises(ContractValidationError, match=says) as caught:
        load_contract(text, where="c.yaml")
    assert str(caught.value).startswith("c.yaml")
    assert caught.value.exit_code == 2


def test_nothing_needs_to_be_installed() -> None:
    contract = load_contract("name: a\nrun_cmd: run {problem_statement_path}\n")
    assert contract.install_cmd is None
    assert resolve(contract, None, {}).install_cmd is None


def test_variables_that_are_needed_besides_the_secrets() -> None:
    contract = load_contract(BASE + "secrets: {KEY: vault-key, URL: vault-url}\nrequired_env: [HOST, KEY]\n")
    assert contract.environment == {"HOST": "HOST", "KEY": "vault-key", "URL": "vault-url"}
    assert resolve(contract, None, {}).secrets == contract.environment


def test_a_bare_default_is_a_parameter_of_its_type() -> None:
    contract = load_contract(BASE + "defaults: {model: big, depth: 3, ratio: 0.5, loud: true}\n")
    assert {name: (one.type, one.default) for name, one in contract.parameters.items()} == {
        "model": ("str", "big"),
        "depth": ("int", 3),
        "ratio": ("float", 0.5),
        "loud": ("bool", True),
    }


@given(st.text(max_size=60) | st.builds(lambda tail: BASE + tail, st.text(max_size=40)))
def test_no_text_breaks_the_reader(text: str) -> None:
    try:
        load_contract(text)
    except ContractValidationError:
        pass
