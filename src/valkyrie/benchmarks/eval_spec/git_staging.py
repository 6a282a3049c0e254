"""The repository a workspace starts from, fetched once and laid out with a `.git` of its own.

The source is only read. Nothing in it is executed: no hooks, no filters, no settings of its own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sandboxes.threads import uninterrupted
from valkyrie.errors import AccessError, BundleError, InfrastructureError, UsageError
from valkyrie.git.address import COMMIT, parse_source
from valkyrie.git.address import GitSource as Address
from valkyrie.git.command import GitCommand
from valkyrie.git.fetching import TIMEOUT_S, Repository, Wanted, may_log_in, open_in, without_login
from valkyrie.git.local import commit_in, git_dir_of, object_in
from valkyrie.specs.model import Finding, GitSource

# CI systems make shallow clones, and workspaces start from those.
_FETCH = ("--quiet", "--no-tags", "--no-recurse-submodules", "--update-shallow")
_CONFIG = """\
[core]
\trepositoryformatversion = {version}
\tfilemode = true
\tbare = false
\tlogallrefupdates = true
{sparse}[user]
\tname = agent
\temail = agent@localhost
{remote}{extensions}"""
_SHA256 = "[extensions]\n\tobjectFormat = sha256\n"
_REMOTE = """\
[remote "origin"]
\turl = {url}
\tfetch = +refs/heads/*:refs/remotes/origin/*
"""


def git_problems(source: GitSource) -> Iterator[Finding]:
    """What keeps a repository from being laid out, as far as it shows without the network."""
    try:
        address = _address(source)
        if source.folder is not None:
            commit_of(source)
        elif not may_log_in(address):
            without_login(address)
    except AccessError as error:
        yield Finding("environment-git", "warning", f"environment.git: {error}", source.place)
    except (UsageError, InfrastructureError) as error:
        yield Finding("environment-git", "error", f"environment.git: {error}", source.place)
    for path in source.sparse:
        if not path.strip("/") or ".." in path.split("/") or "\n" in path:
            message = f"environment.git: sparse path {path!r} must be a path in the repository"
            yield Finding("environment-git", "error", message, source.place)


def commit_of(source: GitSource) -> str | None:
    """The commit of a source on this machine, or one named in full; None when only its host knows."""
    path = source.folder
    if path is None:
        return source.ref if source.ref and COMMIT.fullmatch(source.ref) else None
    found = commit_in(path, source.ref or "HEAD")
    if found is None:
        what = f"no branch, tag or commit {source.ref!r}" if source.ref else "no commit yet"
        raise UsageError(f"{path} has {what}.")
    return found


def is_committed(path: Path) -> bool:
    """Whether the repository around a file or folder has it in its last commit."""
    whole = path.resolve()
    for folder in whole.parents:
        try:
            if git_dir_of(folder) is not None:
                return object_in(folder, f"HEAD:{whole.relative_to(folder).as_posix()}") is not None
        except (UsageError, InfrastructureError, OSError):
            return False  # it leads elsewhere or cannot be read: nothing is known of its history
    return False


def _address(source: GitSource) -> Address:
    path = source.folder
    if path is None:
        return parse_source(source.source, source.ref)
    if not path.is_dir():
        raise UsageError(
            f"there is no folder {os.path.normpath(path)}; `source` is relative to {source.base.absolute()}."
        )
    if git_dir_of(path) is None:
        raise UsageError(f"{os.path.normpath(path)} is no git repository.")
    return parse_source(str(path.resolve()), None)


@dataclass(slots=True)
class Checkouts:
    """Repositories as they were laid out here, each fetched once for all trials that start from it.

    Without a folder to lay them out in, they are in a temporary one until `close`.
    """

    folder: Path | None = None
    _temporary: tempfile.TemporaryDirectory[str] | None = None
    _made: dict[tuple[object, ...], Path] = field(default_factory=dict)
    _making: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def of(self, source: GitSource) -> Path:
        """The folder with the repository's files and its `.git`; not to be changed."""
        key = (source.type, source.source, source.base, source.ref, source.shallow, source.sparse)
        # Who waits for someone else's fetch waits here, and not in one of the few threads.
        async with self._making:
            if key not in self._made:
                self._made[key] = await uninterrupted(asyncio.to_thread(self._lay_out, source))
            return self._made[key]

    def _lay_out(self, source: GitSource) -> Path:
        private = Path(tempfile.mkdtemp(dir=self._place()))
        try:
            return lay_out_repository(source, private)
        except BaseException:
            shutil.rmtree(private, ignore_errors=True)
            raise

    def close(self) -> None:
        """Remove them."""
        self._made.clear()
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def _place(self) -> Path:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            return self.folder
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="valkyrie-git-")
        return Path(self._temporary.name)


def lay_out_repository(source: GitSource, private: Path) -> Path:
    """Fetch a repository into an empty private folder; return the folder with its files and its `.git`."""
    try:
        address = _address(source)
        repository = open_in(private, address, TIMEOUT_S, logins=False)
        git = repository.git
        wanted = _wanted(source, repository)
        options = (*_FETCH, "--depth=1") if source.shallow else _FETCH
        commit = repository.fetch(wanted, options)
        if source.sparse:
            _make_sparse(git, source.sparse)
        repository.check_listing(commit)
        repository.check_out(commit)
        _settle(git, source, address, wanted, commit)
    except BundleError as error:
        hint = "" if source.shallow else " `shallow: true` in environment.git fetches one commit only."
        raise BundleError(f"{error}{hint}", cause="task_setup_failed") from error
    return git.files


def _wanted(source: GitSource, repository: Repository) -> Wanted:
    """For a repository of this machine, what its own git takes the word for: short commits, `HEAD~2`."""
    if source.folder is None:
        return repository.resolve()
    commit = commit_of(source)
    assert commit is not None, "a local source has a commit, or is refused"
    return Wanted(commit, "", source.ref or "HEAD")


def _make_sparse(git: GitCommand, paths: tuple[str, ...]) -> None:
    info = git.repository / "info"
    info.mkdir(exist_ok=True)
    (info / "sparse-checkout").write_text("".join(f"/{path.strip('/')}\n" for path in paths))
    git.run("config", "core.sparseCheckout", "true")


def _settle(git: GitCommand, source: GitSource, address: Address, wanted: Wanted, commit: str) -> None:
    """Make the private repository the workspace's own: on its branch, with plain settings."""
    branch = _branch(source, wanted)
    git.run("update-ref", "--no-deref", f"refs/heads/{branch}" if branch else "HEAD", commit)
    if branch:
        git.run("symbolic-ref", "HEAD", f"refs/heads/{branch}")
    for name in ("FETCH_HEAD", "info/attributes"):
        (git.repository / name).unlink(missing_ok=True)
    remote = _REMOTE.format(url=address.url) if source.folder is None else ""
    sparse = "\tsparseCheckout = true\n" if source.sparse else ""
    sha256 = len(commit) == 64
    extensions = _SHA256 if sha256 else ""
    (git.repository / "config").write_text(
        _CONFIG.format(version=int(sha256), sparse=sparse, remote=remote, extensions=extensions)
    )
    git.repository.rename(git.files / ".git")


def _branch(source: GitSource, wanted: Wanted) -> str | None:
    """The branch the workspace is on; None leaves it at a commit."""
    if wanted.what.startswith("refs/heads/"):
        return wanted.what.removeprefix("refs/heads/")
    path = source.folder
    if wanted.word == "HEAD":
        return "main"
    is_branch = path is not None and commit_in(path, f"refs/heads/{wanted.word}") is not None
    return wanted.word if is_branch else None
