"""What of an agent's folder stays at home."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmark_runner.agent_bundle.bundle import digest_folder, list_folder
from benchmark_runner.errors import BundleError

FILES = "contract.yaml data/a.json data/deep/b.json lib/data/c.json notes/one.md notes/two.txt run.sh"


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    for name in FILES.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def bundled(agent: Path, patterns: str) -> set[str]:
    (agent / ".valkyrieignore").write_text(patterns)
    return {name for name, _ in list_folder(agent)} - {".valkyrieignore"}


@pytest.mark.parametrize(
    ("patterns", "gone"),
    [
        ("", ""),
        ("# data\n\n", ""),
        ("data\n", "data/a.json data/deep/b.json lib/data/c.json"),
        ("data/\n", "data/a.json data/deep/b.json lib/data/c.json"),
        ("/data\n", "data/a.json data/deep/b.json"),
        ("data/deep", "data/deep/b.json"),
        ("  *.md  \r\nrun.sh", "notes/one.md run.sh"),
        ("notes/*.txt", "notes/two.txt"),
    ],
)
def test_patterns_name_names_or_paths(agent: Path, patterns: str, gone: str) -> None:
    assert set(FILES.split()) - bundled(agent, patterns) == set(gone.split())


def test_what_stays_at_home_does_not_make_another_agent(agent: Path) -> None:
    (agent / ".valkyrieignore").write_text("/results\n")
    before = digest_folder(agent)
    (agent / "results").mkdir()
    (agent / "results" / "score.json").write_text("1")
    (agent / ".mypy_cache").mkdir()
    assert digest_folder(agent) == before


def test_a_link_to_what_stays_at_home_is_refused(agent: Path) -> None:
    (agent / ".valkyrieignore").write_text("/data\n")
    (agent / "z.json").symlink_to("data/deep/b.json")
    with pytest.raises(BundleError, match="never bundled"):
        list(list_folder(agent))


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"a\n!b\n", "line 2: a pattern cannot"), (b"\xff", "cannot be read"), (b"x" * 70_000, "larger than")],
)
def test_a_file_that_cannot_be_followed_is_refused(agent: Path, content: bytes, said: str) -> None:
    (agent / ".valkyrieignore").write_bytes(content)
    with pytest.raises(BundleError, match=said):
        list(list_folder(agent))


def test_only_a_plain_file_is_read(agent: Path) -> None:
    os.mkfifo(agent / ".valkyrieignore")
    with pytest.raises(BundleError, match="must be a plain file"):
        list(list_folder(agent))
    (agent / ".valkyrieignore").unlink()
    (agent / ".valkyrieignore").symlink_to("run.sh")
    with pytest.raises(BundleError, match="must be a plain file"):
        list(list_folder(agent))
