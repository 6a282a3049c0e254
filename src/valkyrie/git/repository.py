"""One commit of a repository: found by what people call it, listed before its files come, checked out."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmark_runner.archive import DEEPEST, ArchiveLimits
from valkyrie.config import values
from valkyrie.errors import AccessError, BundleError, InfrastructureError, UnknownError, UserError
from valkyrie.git.address import COMMIT, GitSource, check_ref
from valkyrie.git.command import GitCommand, Progress
from valkyrie.git.local import link_repository, object_format
from valkyrie.text import did_you_mean

TIMEOUT_S = 300.0
MOST_NAMED = 5
_FETCH = ("--quiet", "--depth=1", "--filter=blob:none", "--no-tags", "--no-recurse-submodules")
# Files come out as they were committed: no filter program, no other line ends, no other encoding.
_ATTRIBUTES = "* -text !eol -ident !filter !working-tree-encoding\n"
_LARGE_FILE = b"version https://git-lfs.github.com/spec/"
_EMPTY_WORDS = re.compile("Could not read from remote repos|correct access rights|and the repository exists")
_LOGIN = re.compile(
    "could not read (Username|Password)|Authentication failed|Permission denied|terminal prompts disabled|"
    "requested URL returned error: 40[13]|Host key verification"
)
_LACKING = re.compile(
    "missing (blob|tree|commit|object)|bad object|unable to read|could not fetch|promisor", re.I
)
_ABSENT = re.compile("not found|does not appear to be a git repos|does not exist|not a git repos", re.I)
_UNREACHABLE = re.compile(
    "resolve host|connect|timed out|early EOF|hung up|RPC failed|unable to access|returned error: 5", re.I
)


@dataclass(frozen=True, slots=True)
class WantedCommit:
    """What of a repository is meant."""

    what: str
    """What git fetches: a full ref, HEAD, or a commit."""
    folder: str
    word: str
    """The same as people say it."""


class Repository:
    """A repository being fetched, in a private folder; `files` is where its files come out."""

    def __init__(self, git: GitCommand, source: GitSource, *, logins: bool = True) -> None:
        self.git = git
        self._logins = logins
        self.source = source
        self.files = git.files
        linked = link_repository(source.folder, git.origin) if source.folder else None
        kind = object_format(linked) if linked else "sha1"
        self._must("init", "--quiet", "--template=", f"--object-format={kind}")
        self._must("config", "remote.origin.url", linked.as_uri() if linked else source.url)

    def resolve(self) -> WantedCommit:
        """Return what to fetch, and the folder in it; branches may have `/` in their names: the longest
        fits."""
        source = self.source
        if source.ref is None and not source.tree:
            return WantedCommit("HEAD", "", "HEAD")
        if source.ref is not None:
            parts = source.tree or tuple(source.ref.split("/"))
            lengths: Sequence[int] = (source.ref.count("/") + 1,)
        else:
            parts, lengths = source.tree, range(len(source.tree), 0, -1)
        tried = [("/".join(parts[:length]), "/".join(parts[length:])) for length in lengths]
        for word, folder in tried:
            if word == "HEAD" or word.startswith("refs/") or COMMIT.fullmatch(word):
                return WantedCommit(check_ref(word), folder, word)
        known = self._branches_and_tags()
        for word, folder in tried:
            for kind in ("refs/heads/", "refs/tags/"):
                if kind + word in known:
                    return WantedCommit(check_ref(kind + word), folder, word)
        asked = source.ref or "/".join(source.tree)
        hint = did_you_mean(tried[-1][0], [re.sub("^refs/(heads|tags)/", "", ref) for ref in known])
        if re.fullmatch("[0-9a-f]{7,39}", tried[-1][0]):
            hint += " A commit is named by all of its digits."
        raise UnknownError(f"{source.url} has no branch or tag {asked!r}.{hint}")

    def fetch(self, wanted: WantedCommit, options: Sequence[str] = _FETCH) -> str:
        """Fetch one commit and its folders' lists, no file yet; the commit's full name.

        Other `options` of git's may ask for more of it.
        """
        ended = self.git.run("fetch", *options, "origin", wanted.what)
        if ended.code != 0:
            said = " ".join(ended.said)
            if re.search("not our ref|find remote ref|unadvertised object|no such remote ref", said, re.I):
                what = "is empty" if wanted.what == "HEAD" else f"has no {wanted.word}"
                raise UnknownError(f"{self.source.url} {what}: there is nothing to install.")
            raise self._explained(ended.said)
        commit = self.git.run("rev-parse", "--verify", "--quiet", "FETCH_HEAD^{commit}")
        if commit.code != 0:
            raise UserError(f"{wanted.word} of {self.source.url} is no commit.")
        return commit.output.decode().strip()

    def tree(self, commit: str, folder: str) -> str:
        """The object of a folder at a commit; UnknownError when there is none."""
        found = self.git.run("rev-parse", "--verify", "--quiet", f"{commit}:{folder}")
        tree = found.output.decode().strip()
        if found.code == 0 and (not folder or self.git.run("cat-file", "-t", tree).output.strip() == b"tree"):
            return tree
        folders = [path for _, path in self.entries(commit, "-d")]
        raise UnknownError(
            f"{self.source.url} has no folder {folder!r} at {commit[:12]}.{did_you_mean(folder, folders)}"
        )

    def entries(self, tree: str, *options: str) -> list[tuple[str, str]]:
        """(mode, path) of everything below a tree."""
        listed = self._must("ls-tree", "-r", "-z", *options, tree).decode("utf-8", "surrogateescape")
        rows = (line.partition("\t") for line in listed.split("\0") if line)
        return [(about.split(" ")[0], path) for about, _, path in rows]

    def check_listing(self, tree: str) -> list[tuple[str, str]]:
        """The listing of a tree whose files may be fetched; BundleError when it is too much or too deep."""
        entries = self.entries(tree)
        limits = ArchiveLimits.from_environment()
        if len(entries) > limits.entries:
            raise BundleError(f"{self.source.url} holds {len(entries):,} files; {limits.entries_hint}")
        for _, path in entries:
            if path.count("/") + 2 > DEEPEST or len(os.fsencode(path)) > 3000:
                raise BundleError(f"{self.source.url}: {path[:100]!r}… is too long a path.")
        return entries

    def joined(self, trees: Mapping[str, str]) -> str:
        """One tree that holds others, each under its own folder name."""
        self._must("read-tree", "--empty")
        for name, tree in trees.items():
            self._must("read-tree", f"--prefix={name}/", tree)
        return self._must("write-tree", "--missing-ok").decode().strip()

    def check_out(self, tree: str) -> None:
        """The files of a tree, fetched at once, below `files`."""
        (self.git.repository / "info").mkdir(exist_ok=True)
        (self.git.repository / "info" / "attributes").write_text(_ATTRIBUTES)
        self._must("read-tree", "--reset", "-u", "--no-recurse-submodules", tree)

    def _branches_and_tags(self) -> set[str]:
        listed = self._must("ls-remote", "--quiet", "--heads", "--tags", "origin")
        return {line.partition("\t")[2] for line in listed.decode(errors="replace").splitlines()}

    def _explained(self, said: Sequence[str]) -> UserError | InfrastructureError:
        return _explained(self.source, said, logins=self._logins)

    def _must(self, *words: str) -> bytes:
        ended = self.git.run(*words)
        if ended.code != 0:
            raise self._explained(ended.said)
        return ended.output


def may_log_in(source: GitSource) -> bool:
    """Return whether git may act as the user at the host of an address that the user did not type."""
    allowed = str(values.effective("git_logins").value or "").lower().split(",")
    return (source.host or "").lower() in {one.strip() for one in allowed if one.strip()}


def without_login(source: GitSource) -> GitSource:
    """Return an address as it may be fetched where a stranger named it: over https, and nothing else.

    Raise AccessError for one that is reached otherwise.
    """
    if source.folder is not None:
        return source
    if source.url.startswith("http://"):
        raise AccessError(
            f"{source.url} is reached over plain http, which anyone on the way can change. "
            f"Name it with https, or `valk config set git_logins {source.host}` takes that host as it is."
        )
    if not source.url.startswith("https://"):
        raise AccessError(f"{source.url} is reached over ssh, which logs in as you. {login_hint(source)}")
    return replace(source, protocols=("https",))


def login_hint(source: GitSource) -> str:
    """Return how to allow what the user's own git may do at a host."""
    return (
        "Repositories that a spec or a registry names are fetched without your logins; "
        f"`valk config set git_logins {source.host}` allows them at that host."
    )


@contextmanager
def opened(
    source: GitSource, timeout: float, progress: Progress | None = None, *, logins: bool = True
) -> Iterator[Repository]:
    """A repository to fetch from, everything of it gone when the context ends.

    `logins` lets git act as the user at the host: for addresses that the user typed.
    """
    with tempfile.TemporaryDirectory(prefix="valkyrie-install-") as private:
        yield open_in(Path(private), source, timeout, progress, logins=logins)


def open_in(
    private: Path,
    source: GitSource,
    timeout: float,
    progress: Progress | None = None,
    *,
    logins: bool,
) -> Repository:
    """Return a repository to fetch from that keeps everything in a private folder."""
    logins = logins or may_log_in(source)
    source = source if logins else without_login(source)
    git = GitCommand(private, source.protocols, timeout, progress, logins=logins)
    return Repository(git, source, logins=logins)


def not_fetched(entries: Sequence[tuple[str, str]], folder: Path) -> list[str]:
    """Return what of a checkout is not as its author meant it: submodules, and files kept in Git LFS."""
    modules = [path for mode, path in entries if mode == "160000"]
    pointers = list(_large_files(folder))
    notices = []
    if modules:
        named = ", ".join(modules[:MOST_NAMED])
        notices.append(f"submodules are not fetched; these folders are empty: {named}")
    if pointers:
        named = ", ".join(pointers[:MOST_NAMED])
        notices.append(f"files in Git LFS are not fetched, only their pointers: {named}")
    return notices


def _large_files(folder: Path) -> Iterator[str]:
    """Files kept elsewhere (Git LFS) come as a few lines that say where."""
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            if path.is_symlink() or path.stat().st_size > 1024:
                continue
            with path.open("rb") as file:
                if file.read(len(_LARGE_FILE)) == _LARGE_FILE:
                    yield str(path.relative_to(folder))


def _explained(source: GitSource, said: Sequence[str], *, logins: bool) -> UserError | InfrastructureError:
    """Git's own words, sorted by who can do something about it."""
    text = " ".join(said)
    telling = [line for line in said if not _EMPTY_WORDS.search(line)] or ["it gave no reason"]
    first = next((line for line in telling if line.startswith(("fatal: ", "error: "))), telling[-1])
    reason = re.sub("^(fatal|error): ", "", first).rstrip(".")
    if _LOGIN.search(text):
        own = (
            "Private repositories are reached with git's own credential helpers or an SSH agent; "
            "try `git ls-remote` on it."
        )
        hint = own if logins else login_hint(source)
        return AccessError(f"{source.url} is not there, or needs a login: {reason}. {hint}")
    if source.folder is not None and _LACKING.search(text):
        return UserError(
            f"{source.folder} is a clone that lacks objects, and nothing is fetched for it here; "
            f"`git -C {source.folder} fetch --refetch --no-filter` completes it. Git said: {reason}."
        )
    if _ABSENT.search(text):
        return UnknownError(f"there is no repository at {source.url}: {reason}.")
    if _UNREACHABLE.search(text):
        return InfrastructureError(f"{source.url} cannot be reached: {reason}.", cause="git")
    return UserError(f"git could not fetch {source.url}: {reason}.", cause="git")
