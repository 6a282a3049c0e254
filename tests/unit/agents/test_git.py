"""Agents out of real repositories: over HTTP from loopback, and from files."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.git_repository import CONTRACT, Repository, git, served
from valkyrie.agents.library import AgentLibrary, Checkout, checked_out
from valkyrie.errors import (
    AccessError,
    BundleError,
    ContractValidationError,
    InfrastructureError,
    UnknownError,
    UsageError,
    UserError,
)
from valkyrie.git.repository import parse_source


@pytest.fixture(autouse=True)
def own_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No setting of whoever runs the tests; a test may write its own."""
    settings = tmp_path / ".gitconfig"
    settings.touch()
    monkeypatch.delenv("GIT_CONFIG_GLOBAL", raising=False)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("HOME", str(tmp_path))
    return settings


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "served"


@pytest.fixture
def web(root: Path) -> Iterator[str]:
    with served(root) as url:
        yield url


def refused(text: str, ref: str | None = None, name: str | None = None) -> UserError | InfrastructureError:
    with (
        pytest.raises((UserError, InfrastructureError)) as caught,
        checked_out(parse_source(text, ref), name),
    ):
        pass
    return caught.value


def taken(text: str, ref: str | None = None) -> tuple[Checkout, set[str]]:
    with checked_out(parse_source(text, ref)) as found:
        names = {str(path.relative_to(found.folder)) for path in found.folder.rglob("*")}
    assert not found.folder.exists(), "nothing is left"
    return found, names


def test_a_repository_over_http(root: Path, web: str) -> None:
    commit = Repository(root / "o" / "my-agent.git").commit(
        {"contract.yaml": CONTRACT, "run.sh": ("100755", "#!/bin/sh\n"), "lib/x.py": "x"}
    )
    with checked_out(parse_source(f"{web}/o/my-agent.git")) as found:
        assert (found.name, found.commit) == ("my-agent", commit)
        assert found.origin == f"{web}/o/my-agent.git@{commit}"
        assert stat.S_IMODE((found.folder / "run.sh").stat().st_mode) & 0o111
        assert sorted(path.name for path in found.folder.iterdir()) == ["contract.yaml", "lib", "run.sh"]
        assert found.notices == []


def test_a_folder_of_a_branch_with_slashes(root: Path, web: str) -> None:
    repository = Repository(root / "o" / "r.git")
    repository.commit({"contract.yaml": CONTRACT, "nest/sub/contract.yaml": CONTRACT}, "feature")
    short = repository.commit({"x/sub/contract.yaml": CONTRACT, "other": "o"}, "release/1")
    git(repository.path, "update-ref", "-d", "refs/heads/feature")
    long = repository.commit({"sub/contract.yaml": CONTRACT, "sub/only": "here"}, "feature/x")
    found, names = taken(f"{web}/o/r.git/tree/feature/x/sub")
    assert (found.name, found.commit, names) == ("sub", long, {"contract.yaml", "only"})
    assert found.origin == f"{web}/o/r.git/sub@{long}"
    assert taken(f"{web}/o/r.git/tree/release/1/x/sub")[0].commit == short


@pytest.mark.parametrize("filtered", ["true", "false"])
def test_branches_tags_and_commits(root: Path, filtered: str) -> None:
    repository = Repository(root / "r.git")
    git(repository.path, "config", "uploadpack.allowFilter", filtered)
    first = repository.commit({"contract.yaml": CONTRACT, "n": "1"})
    git(repository.path, "-c", "tag.gpgSign=false", "tag", "-a", "v1", "-m", "one", first)
    git(repository.path, "update-ref", "refs/pull/7/head", first)
    second = repository.commit({"contract.yaml": CONTRACT, "n": "2"})
    assert taken(repository.url)[0].commit == second
    for ref in ("v1", first, "refs/pull/7/head"):
        assert taken(repository.url, ref)[0].commit == first, ref
    assert taken(repository.url, "main")[0].commit == second
    assert taken(str(repository.path))[0].origin == f"{repository.url}@{second}", "a path will do"
    assert taken(f"{repository.url}/tree/HEAD")[0].commit == second
    assert taken(f"{repository.url}/tree/{first}")[0].commit == first
    assert "Did you mean 'main'" in str(refused(repository.url, "mian"))
    assert "all of its digits" in str(refused(repository.url, first[:10]))
    assert isinstance(refused(repository.url, "0" * 40), UnknownError)


def test_files_come_out_as_they_were_committed(root: Path) -> None:
    repository = Repository(root / "r.git")
    attributes = "* text eol=crlf ident filter=evil\n*.txt working-tree-encoding=UTF-16\n"
    repository.commit({"contract.yaml": CONTRACT, ".gitattributes": attributes, "a.txt": "a\n$Id$\n"})
    with checked_out(parse_source(repository.url)) as found:
        assert (found.folder / "a.txt").read_bytes() == b"a\n$Id$\n"


def test_what_is_not_fetched_is_said(root: Path) -> None:
    repository = Repository(root / "r.git")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n"
    repository.commit({"contract.yaml": CONTRACT, "w/model.bin": pointer, "dep": ("160000", "1" * 40)})
    found, _ = taken(repository.url)
    assert [notice.rpartition(": ")[2] for notice in found.notices] == ["dep", "w/model.bin"]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"README": "x"}, "no other folder of it has"),
        (
            {"agents/a/contract.yaml": CONTRACT},
            r"There is one in 'agents/a': valk agent install .*/HEAD/agents/a$",
        ),
        ({"a/contract.yaml": CONTRACT, "b/contract.yml": CONTRACT}, "these folders have one: a, b"),
    ],
)
def test_no_contract(root: Path, files: dict[str, str], says: str) -> None:
    repository = Repository(root / "r.git")
    repository.commit(files)
    error = refused(repository.url)
    with pytest.raises(BundleError, match=says):
        raise error


def test_the_suggested_command_works(root: Path) -> None:
    repository = Repository(root / "r.git")
    repository.commit({"agents/a/contract.yaml": CONTRACT})
    suggested = str(refused(repository.url)).split()[-1]
    assert taken(suggested)[0].name == "a"


def test_what_is_not_there(root: Path, web: str) -> None:
    repository = Repository(root / "o" / "r.git")
    assert "is empty" in str(refused(repository.url))
    repository.commit({"agents/contract.yaml": CONTRACT, "file": "x"})
    for text, says in (
        (f"{web}/o/none.git", "there is no repository"),
        (f"file://{root}/none.git", "there is no repository"),
        (f"{web}/o/r.git/tree/nope/x", "no branch or tag 'nope/x'"),
        (f"{web}/o/r.git/tree/main/agent", "no folder 'agent' .* Did you mean 'agents'"),
        (f"{web}/o/r.git/tree/main/file", "no folder 'file'"),
    ):
        with pytest.raises(UnknownError, match=says):
            raise refused(text)
    with pytest.raises(InfrastructureError, match="cannot be reached"):
        raise refused("http://127.0.0.1:1/o/r")


def test_names(root: Path) -> None:
    repository = Repository(root / "-x.git")
    repository.commit({"contract.yaml": CONTRACT})
    assert "cannot be an agent's name" in str(refused(repository.url))
    with checked_out(parse_source(repository.url), "fine") as found:
        assert found.name == "fine"
    assert isinstance(refused(repository.url, name="oracle"), UsageError)


def test_a_bad_contract_is_told_of_the_repository(root: Path, tmp_path: Path) -> None:
    repository = Repository(root / "r.git")
    repository.commit({"contract.yaml": "name: a\nextra: 1\n"})
    library = AgentLibrary(tmp_path / "library")
    with pytest.raises(ContractValidationError, match="unknown key") as caught:
        with checked_out(parse_source(repository.url)) as found:
            library.push(found.folder, found.name, origin=found.origin)
    assert f"{repository.url}/contract.yaml" in str(caught.value)
    assert "valkyrie-install" not in str(caught.value)


class Guarded:
    """Lets nobody in without the password, and remembers who tried."""

    def __init__(self) -> None:
        self.seen: list[str | None] = []

    def __call__(self, request: BaseHTTPRequestHandler) -> bool:
        given = request.headers.get("Authorization")
        self.seen.append(given)
        if given == "Basic bWU6aHVzaC1odXNo":  # me:hush-hush
            return True
        request.send_response(401)
        request.send_header("WWW-Authenticate", 'Basic realm="x"')
        request.send_header("Content-Length", "0")
        request.end_headers()
        return False


def test_private_repositories_are_reached_with_the_users_credential_helper(root: Path, own_git: Path) -> None:
    Repository(root / "o" / "r.git").commit({"contract.yaml": CONTRACT})
    guard = Guarded()
    with served(root, guard) as url:
        with pytest.raises(AccessError, match="needs a login"):
            raise refused(f"{url}/o/r.git")
        own_git.write_text(
            '[credential]\n\thelper = "!f() { echo username=me; echo password=hush-hush; }; f"\n'
        )
        found, names = taken(f"{url}/o/r.git")
    assert names == {"contract.yaml"}
    assert "hush" not in found.origin
    own_git.write_text("[broken\n")
    with pytest.raises(UserError, match=r"git does not work here: .*bad config line"):
        raise refused(f"{url}/o/r.git")


def test_without_git(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(UserError, match=r"git is not installed here.*valk agent push"):
        raise refused("https://github.com/o/r")
    (tmp_path / "bin" / "git").write_text("#!/bin/sh\necho git version 2.17.1\n")
    (tmp_path / "bin" / "git").chmod(0o755)
    with pytest.raises(UserError, match=r"git version 2\.17\.1 is too old.*2\.32"):
        raise refused("https://github.com/o/r")


def test_being_in_another_repository_changes_nothing(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = Repository(root / "r.git")
    repository.commit({"contract.yaml": CONTRACT})
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE"):
        monkeypatch.setenv(name, "/nonexistent")
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "false")
    assert taken(repository.url)[1] == {"contract.yaml"}
