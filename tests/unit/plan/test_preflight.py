"""What stands in the way of a run is said before anything starts, all of it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandboxes.cgroups import CgroupSupport
from sandboxes.local import provider, root_filesystem
from tests.unit.plan.premises import embedded
from valkyrie.config import values
from valkyrie.errors import ContractValidationError, InfrastructureError, MissingSecretError
from valkyrie.tracker.checks import refuse
from valkyrie.tracker.prepare import PreparedRun, prepare
from valkyrie.views import RunRequest


@pytest.fixture(params=[root_filesystem.ROOTLESS, root_filesystem.SHIFTED])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(provider, "_found", [provider.Machine(request.param, CgroupSupport())])
    return str(request.param)


def planned(root: Path, toml: str, dockerfile: str = "") -> PreparedRun:
    task = root / "tasks" / "one"
    (task / "tests").mkdir(parents=True)
    (task / "environment").mkdir()
    (task / "task.toml").write_text(f'[environment]\nnetwork_mode = "no-network"\n{toml}')
    (task / "instruction.md").write_text("Do it.")
    (task / "tests" / "test.sh").write_text("echo 1 > /logs/verifier/reward.txt\n")
    if dockerfile:
        (task / "environment" / "Dockerfile").write_text(dockerfile)
    request = RunRequest(agent="nop", benchmark=str(root / "tasks"), host_image=bool(dockerfile))
    return prepare(request, *embedded(root / "home"))


@pytest.mark.parametrize("table", ["agent", "verifier"])
@pytest.mark.parametrize("user", ['"nobody"', "1000"])
def test_another_user_needs_root(tmp_path: Path, mode: str, table: str, user: str) -> None:
    problems = planned(tmp_path, f"[{table}]\nuser = {user}\n").problems
    if mode == root_filesystem.SHIFTED:
        assert problems == []
    else:
        (problem,) = problems
        assert "'one'" in problem and user.strip('"') in problem and "Run as root" in problem


@pytest.mark.parametrize("mode", [root_filesystem.SHIFTED], indirect=True)
def test_a_user_nobody_makes_is_told(tmp_path: Path, mode: str) -> None:
    assert mode == root_filesystem.SHIFTED
    (problem,) = planned(tmp_path / "a", '[verifier]\nuser = "marvin"\n').problems
    assert "one: verifier.user = 'marvin': there is no such user" in problem and "setup.sh" in problem
    dockerfile = "FROM debian:12\nRUN useradd marvin\n"
    assert planned(tmp_path / "b", '[verifier]\nuser = "marvin"\n', dockerfile).problems == []


@pytest.mark.parametrize("user", ['"root"', "0"])
def test_root_is_in_every_sandbox(tmp_path: Path, mode: str, user: str) -> None:
    assert planned(tmp_path, f"[agent]\nuser = {user}\n[verifier]\nuser = {user}\n").problems == []


def test_repeating_a_dockerfile_on_a_read_only_system_is_doubtful(tmp_path: Path, mode: str) -> None:
    plan = planned(tmp_path, "", "FROM debian:12\nRUN apt-get install -y jq\n")
    told = [notice for notice in plan.notices if "read-only" in notice]
    assert plan.problems == []
    assert len(told) == (1 if mode == root_filesystem.ROOTLESS else 0)


def test_a_dockerfile_without_commands_is_not(tmp_path: Path, mode: str) -> None:
    plan = planned(tmp_path, "", "FROM debian:12\nWORKDIR /app\nCOPY . .\n")
    assert [notice for notice in plan.notices if "read-only" in notice] == []


CONTRACT = """\
name: choosy
install_cmd: 'true'
run_cmd: echo {problem_statement_path}
secrets: {KEY: nobody-has-this}
defaults:
  model: {type: str, choices: [a/good-one]}
"""


def test_everything_wrong_at_once_is_one_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "choosy").mkdir()
    (tmp_path / "choosy" / "contract.yaml").write_text(CONTRACT)
    (tmp_path / "full").write_text("not a folder")
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "valkyrie.yaml"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/no-engine")
    values.set_value("artifacts_folder", str(tmp_path / "full" / "artifacts"))
    request = RunRequest(
        agent=str(tmp_path / "choosy"), benchmark="http://127.0.0.1:9", model="a/bad-one", provider="docker"
    )
    with pytest.raises(MissingSecretError) as caught:
        prepare(request, *embedded(tmp_path / "home"))
    said = str(caught.value)
    assert said.startswith("6 things stand in the way:"), "artifacts and logs are two"
    assert caught.value.missing == {"KEY": "nobody-has-this"}
    for what in ("a/good-one", "http://127.0.0.1:9", "nobody-has-this", "no-engine", str(tmp_path / "full")):
        assert what in said, said


def test_nothing_is_told_twice() -> None:
    said = str(refuse(["the bucket is gone", "no such model", "the bucket is gone"]))
    assert said.startswith("2 things stand in the way:") and said.count("bucket") == 1
    assert str(refuse(["the bucket is gone"] * 2)) == "the bucket is gone"


@pytest.mark.parametrize(
    ("model", "benchmark", "kind"),
    [
        ("a/bad-one", "quickstart", ContractValidationError),
        ("a/good-one", "http://127.0.0.1:9", InfrastructureError),
    ],
)
def test_a_lone_problem_is_told_as_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str, benchmark: str, kind: type[Exception]
) -> None:
    monkeypatch.setenv("KEY", "a value")
    monkeypatch.setenv("VALKYRIE_CONFIG_PATH", str(tmp_path / "valkyrie.yaml"))
    (tmp_path / "choosy").mkdir()
    (tmp_path / "choosy" / "contract.yaml").write_text(CONTRACT)
    request = RunRequest(
        agent=str(tmp_path / "choosy"), benchmark=benchmark, model=model, provider="null", slice=":1"
    )
    with pytest.raises(kind) as caught:
        prepare(request, *embedded(tmp_path / "home"))
    assert type(caught.value) is kind


def test_fresh_grading_needs_a_provider_that_carries_work(tmp_path: Path) -> None:
    request = RunRequest(agent="nop", benchmark="quickstart", provider="process", verify="fresh")
    plan = prepare(request, *embedded(tmp_path / "home"))
    assert plan.settings.verify == "fresh"
    (problem,) = [problem for problem in plan.problems if "--verify" in problem]
    assert "'process' cannot carry" in problem
