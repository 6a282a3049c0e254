"""Task directories out of real repositories, over HTTP from loopback and from files."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.git_repository import Repository, git, served
from valkyrie.benchmarks.named.registries import PinnedFolder, fetch, fetch_all, is_repository
from valkyrie.errors import BundleError, UnknownError, UsageError
from valkyrie.git.repository import parse_source

TASK = {"task.toml": "", "instruction.md": "Do it.", "tests/test.sh": ("100755", "exit 0\n")}


def tasks(*names: str) -> dict[str, str | bytes | tuple[str, str]]:
    return {f"{name}/{file}": content for name in names for file, content in TASK.items()}


@pytest.fixture(autouse=True)
def own_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".gitconfig").touch()
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("VALKYRIE_GIT_LOGINS", "127.0.0.1")  # plain http is not taken from a registry


@pytest.fixture
def asked() -> list[str]:
    """Requests for objects."""
    return []


@pytest.fixture
def web(tmp_path: Path, asked: list[str]) -> Iterator[str]:
    def note(handler: BaseHTTPRequestHandler) -> bool:
        if handler.command == "POST":
            asked.append(handler.path)
        return True

    with served(tmp_path / "served", note) as url:
        yield url


def test_a_repository_at_a_commit(tmp_path: Path, web: str, asked: list[str]) -> None:
    repository = Repository(tmp_path / "served" / "o" / "bench.git")
    first = repository.commit(tasks("one"))
    second = repository.commit(tasks("one", "two"))
    address, cache = f"{web}/o/bench.git", tmp_path / "cache"
    found = fetch(parse_source(address, first), cache)
    assert (found.commit, found.origin) == (first, f"{address}@{first}")
    assert [path.name for path in found.folder.iterdir()] == ["one"]
    assert (found.folder / "one/tests/test.sh").stat().st_mode & 0o111
    newest = fetch(parse_source(address), cache)
    assert newest.commit == second and (newest.folder / "two").is_dir()
    asked.clear()
    assert fetch(parse_source(address, first), cache).folder == found.folder
    assert asked == [], "a commit that is here is not asked for"


def test_a_folder_of_a_branch(tmp_path: Path, web: str) -> None:
    repository = Repository(tmp_path / "served" / "o" / "bench.git")
    commit = repository.commit({**tasks("deep/tasks/one"), "readme": "no"}, "release/2")
    found = fetch(parse_source(f"{web}/o/bench.git/tree/release/2/deep/tasks"), tmp_path / "cache")
    assert found.origin == f"{web}/o/bench.git/deep/tasks@{commit}"
    assert [path.name for path in found.folder.iterdir()] == ["one"]


def test_a_clone_with_files_that_were_not_committed(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    clone.mkdir()
    git(clone, "init", "--quiet", "--initial-branch=main")
    (clone / "task.toml").touch()
    git(clone, "add", "-A")
    git(clone, "commit", "--quiet", "-m", "x")
    (clone / "notes").write_text("mine")
    assert is_repository(str(clone)) and not is_repository(str(tmp_path))
    found = fetch(parse_source(str(clone)), tmp_path / "cache")
    assert [path.name for path in found.folder.iterdir()] == ["task.toml"]


def test_several_repositories_and_commits_are_asked_once_each(
    tmp_path: Path, web: str, asked: list[str]
) -> None:
    first, second = (Repository(tmp_path / "served" / "o" / name) for name in ("a.git", "b.git"))
    old, new = first.commit(tasks("t/one", "t/two")), first.commit(tasks("t/one", "t/three"))
    other = second.commit(tasks("one"))
    urls = [f"{web}/o/a.git", f"{web}/o/b.git"]
    wanted = [
        PinnedFolder(urls[0], old, "t/one"),
        PinnedFolder(urls[0], old, "t/two"),
        PinnedFolder(urls[0], new, "t/three"),
        PinnedFolder(urls[1], other, "one"),
    ]
    found, notices = fetch_all(wanted, tmp_path / "cache")
    assert notices == [] and len({*found.values()}) == 4
    assert all((folder / "tests" / "test.sh").is_file() for folder in found.values())
    fetches = len(asked)
    assert fetches <= 3 * 4, "three commits, whatever the number of tasks"
    assert fetch_all(wanted, tmp_path / "cache")[0] == found
    assert len(asked) == fetches
    fetch_all([*wanted, PinnedFolder(urls[0], new, "t/one")], tmp_path / "cache")
    assert {path.split("/")[2] for path in asked[fetches:]} == {"a.git"}, "only what is missing"


def test_what_is_not_there(tmp_path: Path, web: str) -> None:
    repository = Repository(tmp_path / "served" / "o" / "a.git")
    commit = repository.commit(tasks("one"))
    url = f"{web}/o/a.git"
    for at, says in (
        (PinnedFolder(url, commit, "on"), r"no folder 'on'.*one"),
        (PinnedFolder(url, "f" * 40, "one"), "has no f"),
    ):
        with pytest.raises(UnknownError, match=says):
            fetch_all([at], tmp_path / "cache")
    with pytest.raises(UsageError, match="all of its digits"):
        fetch_all([PinnedFolder(url, commit[:12], "one")], tmp_path / "cache")
    assert not list((tmp_path / "cache").rglob("*")), "nothing half is kept"


def test_links_that_lead_out_are_refused(tmp_path: Path, web: str) -> None:
    repository = Repository(tmp_path / "served" / "o" / "a.git")
    for target in ("/etc/passwd", "../../../x"):
        commit = repository.commit({**tasks("one"), "one/environment/x": ("120000", target)})
        with pytest.raises(BundleError, match="outside the folder"):
            fetch(parse_source(f"{web}/o/a.git", commit), tmp_path / "cache")
    inside = repository.commit({**tasks("one"), "one/environment/x": ("120000", "../task.toml")})
    assert (fetch(parse_source(f"{web}/o/a.git", inside), tmp_path / "cache").folder / "one").is_dir()


def test_large_files_are_said_to_be_missing(tmp_path: Path, web: str) -> None:
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    commit = Repository(tmp_path / "served" / "o" / "a.git").commit({**tasks("one"), "one/data": pointer})
    found = fetch(parse_source(f"{web}/o/a.git", commit), tmp_path / "cache")
    assert "Git LFS" in found.notices[0]
