"""`agent install`: what it prints, and what it says the second time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.git_repository import CONTRACT, Repository
from tests.unit.cli.command_result import CommandResult

Valk = Callable[..., CommandResult]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return Repository(tmp_path / "served" / "my-agent.git")


def test_installing_again_says_what_changed(valk: Valk, repository: Repository) -> None:
    first = repository.commit({"contract.yaml": CONTRACT})
    said = valk("agent", "install", repository.url)
    assert said.code == 0
    assert said.out.startswith("Installed my-agent")
    assert f"From {repository.url}@{first}" in said.out
    assert "valk run start --agent my-agent" in said.out
    assert "the commit that was installed before" not in said.out
    assert "It is the commit that was installed before." in valk("agent", "install", repository.url).out
    second = repository.commit({"contract.yaml": CONTRACT, "more": "x"})
    said = valk("agent", "install", repository.url)
    assert f"The commit changed: {first[:12]} before, {second[:12]} now.\n" in said.out
    repository.commit({"contract.yaml": CONTRACT, "more": "x", ".env": "left out"})
    assert "now. Its files are the same." in valk("agent", "install", repository.url).out


def test_for_machines(valk: Valk, repository: Repository) -> None:
    commit = repository.commit({"agents/one/contract.yaml": CONTRACT, "agents/one/sub": ("160000", "1" * 40)})
    url = f"{repository.url}/tree/main/agents/one"
    said = valk("agent", "install", url, "-n", "mine", "--json")
    assert said.json["agent"]["name"] == "mine"
    assert said.json["agent"]["origin"] == f"{repository.url}/agents/one@{commit}"
    assert (said.json["commit"], said.json["changed"], said.json["previous_origin"]) == (commit, True, None)
    assert "submodules are not fetched" in said.err
    again = valk("agent", "install", url, "-n", "mine", "--json").json
    assert (again["changed"], again["previous_origin"]) == (False, said.json["agent"]["origin"])
    assert [agent["origin"] for agent in valk("agent", "list", "--json").json["agents"]] == [
        said.json["agent"]["origin"]
    ]


def test_in_place_of_another(valk: Valk, repository: Repository, tmp_path: Path) -> None:
    repository.commit({"contract.yaml": CONTRACT})
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "contract.yaml").write_text(CONTRACT)
    valk("agent", "push", "plain", "--name", "my-agent")
    assert "It takes the place of one pushed before." in valk("agent", "install", repository.url).out


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--upload-pack=touch x"], 2, "No such option"),
        (["--", "--upload-pack=touch x"], 2, "no address of a repository"),
        (["https://me:hush@example.com/o/r"], 2, "has credentials in it"),
        (["URL", "--ref", "nope"], 2, "has no branch or tag 'nope'"),
        (["URL", "--name", "../x"], 2, "cannot be an agent's name"),
        (["URL", "--timeout", "0"], 2, "is not in the range"),
        (["URL"], 1, "There is one in 'sub'"),
    ],
)
def test_what_goes_wrong(valk: Valk, repository: Repository, words: list[str], code: int, says: str) -> None:
    repository.commit({"sub/contract.yaml": CONTRACT})
    said = valk("agent", "install", *(repository.url if word == "URL" else word for word in words))
    assert (said.code, said.out) == (code, "")
    assert says in said.err
    assert "hush" not in said.err
