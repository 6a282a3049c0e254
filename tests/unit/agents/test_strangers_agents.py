"""What someone who is not on this machine may name as an agent."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmark_runner.agent_bundle.bundle import pack
from valkyrie import agents, plugins
from valkyrie.agents.catalog import Nop
from valkyrie.agents.library import AgentLibrary
from valkyrie.errors import BundleError, ContractValidationError, UnknownError, UsageError

HELLO = Path(__file__).parents[3] / "examples" / "agents" / "hello"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AgentLibrary:
    monkeypatch.chdir(HELLO.parent)
    return AgentLibrary(tmp_path / "library")


@pytest.mark.parametrize(
    "spec",
    [
        "./hello",
        str(HELLO),
        "..",
        ".",
        "~",
        "~root/x",
        "hello.zip",
        "touching:Touch",
        "touching.a:B.c",
        "upload:abc",
    ],
)
def test_this_machines_own_is_refused_before_it_is_touched(
    spec: str, library: AgentLibrary, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "touching.py").write_text(f"open({str(tmp_path / 'touched')!r}, 'w')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UsageError, match="not taken from elsewhere"):
        agents.open_agent(spec, library=library, trusted=False)
    assert not (tmp_path / "touched").exists()


def test_a_folder_of_the_server_is_no_agent_by_its_bare_name(library: AgentLibrary) -> None:
    assert agents.open_agent("hello", library=library).name == "hello"
    with pytest.raises(UsageError, match="no agent is called 'hello'") as caught:
        agents.open_agent("hello", library=library, trusted=False)
    assert "path" not in str(caught.value)


def test_what_may_be_named(library: AgentLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    library.push(HELLO, "mine")
    for spec in ("oracle", "nop", "mine"):
        assert agents.open_agent(spec, library=library, trusted=False).name == spec
    monkeypatch.setattr(plugins, "names", lambda group: ["installed"])
    monkeypatch.setattr(plugins, "load", lambda name, group: Nop)
    assert agents.open_agent("installed", library=library, trusted=False).name == "nop"


def test_an_upload(library: AgentLibrary, tmp_path: Path) -> None:
    pack(HELLO, "hello", tmp_path / "sent.zip")

    def uploads(digest: str) -> Path:
        if digest != "a" * 64:
            raise UnknownError("nothing was uploaded as that")
        return tmp_path / "sent.zip"

    def opened(digest: str, trusted: bool = False) -> agents.PreparedAgent:
        return agents.open_agent(f"upload:{digest}", library=library, trusted=trusted, uploads=uploads)

    here = agents.open_agent(str(HELLO), library=library)
    assert (opened("a" * 64).name, opened("a" * 64).digest) == (here.name, here.digest)
    assert opened("a" * 64, trusted=True).digest == here.digest
    with pytest.raises(UnknownError, match="nothing was uploaded"):
        opened("b" * 64)
    frozen = agents.freeze(opened("a" * 64), tmp_path / "run")
    assert agents.open_frozen(frozen, tmp_path / "run", tmp_path / "cache").digest == here.digest
    (tmp_path / "sent.zip").write_bytes(b"no zip")
    with pytest.raises(BundleError, match=r"^the uploaded agent is no usable zip"):
        opened("a" * 64)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "contract.yaml").write_text("name: x\nextra: 1\n")
    pack(tmp_path / "bad", "x", tmp_path / "sent.zip")
    with pytest.raises(ContractValidationError, match=r"^the uploaded agent/contract\.yaml"):
        opened("a" * 64)
