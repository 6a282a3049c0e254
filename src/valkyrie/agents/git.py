"""An agent's folder out of a git repository, at one commit: shallow, nothing executed, bounded."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from valkyrie.agents.git_command import GitCommand, Progress
from valkyrie.agents.git_source import COMMIT, GitSource, check_ref
from valkyrie.agents.library import check_name
from valkyrie.agents.unpack import CONTRACTS
from valkyrie.archives.limits import ArchiveLimits
from valkyrie.archives.reading import DEEPEST
from valkyrie.archives.telling import told_as
from valkyrie.errors import AccessError, BundleError, InfrastructureError, UnknownError, UserError
from valkyrie.suggest import did_you_mean

TIMEOUT_S = 300.0
_FETCH = ("--quiet", "--depth=1", "--filter=blob:none", "--no-tags", "--no-recurse-submodules")
# Files come out as they were committed: no filter program, no other line ends, no other encoding.
_ATTRIBUTES = "* -text !eol -ident !filter !working-tree-encoding\n"
_LARGE_FILE = b"version https://git-lfs.github.com/spec/"
_MOST_NAMED = 5
_EMPTY_WORDS = re.compile("Could not read from remote repos|correct access rights|and the repository exists")
_LOGIN = re.compile(
    "could not read (Username|Password)|Authentication failed|Permission denied|terminal prompts disabled|"
    "requested URL returned error: 40[13]|Host key verification"
)
_ABSENT = re.compile("not found|does not appear to be a git repos|does not exist|not a git repos", re.I)
_UNREACHABLE = re.compile(
    "resolve host|connect|timed out|early EOF|hung up|RPC failed|unable to access|returned error: 5", re.I
)


@dataclass(frozen=True, slots=True)
class Checkout:
    """An agent's folder as the repository has it at one commit."""

    folder: Path
    name: str
    """What to keep it under."""
    commit: str
    origin: str
    """`address[/folder]@commit`."""
    notices: Sequence[str] = ()
    """What is not as its author meant it, and keeps nothing from running."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    what: str
    """What git fetches: a full ref, HEAD, or a commit."""
    folder: str
    word: str
    """The same as people say it."""


@contextmanager
def checked_out(
    source: GitSource,
    name: str | None = None,
    *,
    timeout: float = TIMEOUT_S,
    progress: Progress | None = None,
) -> Iterator[Checkout]:
    """The agent's folder, there while the context lasts; it has a contract, which is not read yet."""
    with tempfile.TemporaryDirectory(prefix="valkyrie-install-") as private:
        git = GitCommand(Path(private), source.protocols, timeout, progress)
        _must(git, source, "init", "--quiet", "--template=")
        _must(git, source, "config", "remote.origin.url", source.url)
        wanted = _resolve(git, source)
        chosen = check_name(name or PurePosixPath(wanted.folder).name or source.repository)
        commit = _fetch(git, source, wanted)
        tree = _find_tree(git, source, commit, wanted.folder)
        modules = _check_listing(git, source, commit, tree, wanted)
        (git.repository / "info").mkdir(exist_ok=True)
        (git.repository / "info" / "attributes").write_text(_ATTRIBUTES)
        _must(git, source, "read-tree", "--reset", "-u", "--no-recurse-submodules", tree)
        place = f"{source.url}/{wanted.folder}" if wanted.folder else source.url
        notices = [*_about_modules(modules), *_about_large_files(git.files)]
        with told_as({git.files: place}):
            yield Checkout(git.files, chosen, commit, f"{place}@{commit}", notices)


def _must(git: GitCommand, source: GitSource, *words: str) -> bytes:
    ended = git.run(*words)
    if ended.code != 0:
        raise _explained(source, ended.said)
    return ended.output


def _resolve(git: GitCommand, source: GitSource) -> _Wanted:
    """What to fetch, and the folder in it; names of branches may have `/` in them, so the longest fits."""
    if source.ref is None and not source.tree:
        return _Wanted("HEAD", "", "HEAD")
    if source.ref is not None:
        parts = source.tree or tuple(source.ref.split("/"))
        lengths: Sequence[int] = (source.ref.count("/") + 1,)
    else:
        parts, lengths = source.tree, range(len(source.tree), 0, -1)
    tried = [("/".join(parts[:length]), "/".join(parts[length:])) for length in lengths]
    for word, folder in tried:
        if word == "HEAD" or word.startswith("refs/") or COMMIT.fullmatch(word):
            return _Wanted(check_ref(word), folder, word)
    known = _branches_and_tags(git, source)
    for word, folder in tried:
        for kind in ("refs/heads/", "refs/tags/"):
            if kind + word in known:
                return _Wanted(check_ref(kind + word), folder, word)
    asked = source.ref or "/".join(source.tree)
    hint = did_you_mean(tried[-1][0], [re.sub("^refs/(heads|tags)/", "", ref) for ref in known])
    if re.fullmatch("[0-9a-f]{7,39}", tried[-1][0]):
        hint += " A commit is named by all of its digits."
    raise UnknownError(f"{source.url} has no branch or tag {asked!r}.{hint}")


def _branches_and_tags(git: GitCommand, source: GitSource) -> set[str]:
    listed = _must(git, source, "ls-remote", "--quiet", "--heads", "--tags", "origin")
    return {line.partition("\t")[2] for line in listed.decode(errors="replace").splitlines()}


def _fetch(git: GitCommand, source: GitSource, wanted: _Wanted) -> str:
    """Fetch one commit and its folders' lists, no file yet; the commit's full name."""
    ended = git.run("fetch", *_FETCH, "origin", wanted.what)
    if ended.code != 0:
        said = " ".join(ended.said)
        if re.search("not our ref|find remote ref|unadvertised object|no such remote ref", said, re.I):
            what = "is empty" if wanted.what == "HEAD" else f"has no {wanted.word}"
            raise UnknownError(f"{source.url} {what}: there is nothing to install.")
        raise _explained(source, ended.said)
    commit = git.run("rev-parse", "--verify", "--quiet", "FETCH_HEAD^{commit}")
    if commit.code != 0:
        raise UserError(f"{wanted.word} of {source.url} is no commit.")
    return commit.output.decode().strip()


def _find_tree(git: GitCommand, source: GitSource, commit: str, folder: str) -> str:
    found = git.run("rev-parse", "--verify", "--quiet", f"{commit}:{folder}")
    tree = found.output.decode().strip()
    if found.code == 0 and (not folder or git.run("cat-file", "-t", tree).output.strip() == b"tree"):
        return tree
    folders = [path for _, path in _list(git, source, commit, "-d")]
    raise UnknownError(
        f"{source.url} has no folder {folder!r} at {commit[:12]}.{did_you_mean(folder, folders)}"
    )


def _list(git: GitCommand, source: GitSource, tree: str, *options: str) -> list[tuple[str, str]]:
    """(mode, path) of everything below a tree."""
    listed = _must(git, source, "ls-tree", "-r", "-z", *options, tree).decode("utf-8", "surrogateescape")
    rows = (line.partition("\t") for line in listed.split("\0") if line)
    return [(about.split(" ")[0], path) for about, _, path in rows]


def _check_listing(git: GitCommand, source: GitSource, commit: str, tree: str, wanted: _Wanted) -> list[str]:
    """Refuse what cannot be an agent before its files are fetched; the submodules in it."""
    entries = _list(git, source, tree)
    limits = ArchiveLimits.from_environment()
    if len(entries) > limits.entries:
        raise BundleError(f"{source.url} holds {len(entries):,} files; {limits.entries_hint}")
    for _, path in entries:
        if path.count("/") + 2 > DEEPEST or len(os.fsencode(path)) > 3000:
            raise BundleError(f"{source.url}: {path[:100]!r}… is too long a path.")
    if not any(path in CONTRACTS for _, path in entries):
        raise _no_contract(git, source, commit, wanted)
    return [path for mode, path in entries if mode == "160000"]


def _no_contract(git: GitCommand, source: GitSource, commit: str, wanted: _Wanted) -> BundleError:
    """Say where contracts are, if there are any."""
    where = f"folder {wanted.folder!r} of {source.url}" if wanted.folder else source.url
    paths = [PurePosixPath(path) for _, path in _list(git, source, commit)]
    folders = [str(path.parent) for path in paths if path.name in CONTRACTS and str(path.parent) != "."]
    said = f"{where} has no contract.yaml at {commit[:12]}"
    if len(folders) == 1:
        url = source.folder_url(wanted.word, folders[0])
        return BundleError(f"{said}. There is one in {folders[0]!r}: valk agent install {url}")
    if folders:
        more = f" and {len(folders) - _MOST_NAMED} more" if len(folders) > _MOST_NAMED else ""
        return BundleError(
            f"{said}; these folders have one: {', '.join(folders[:_MOST_NAMED])}{more}. "
            f"Name one: {source.folder_url(wanted.word, 'FOLDER')}"
        )
    return BundleError(f"{said}, and no other folder of it has; an agent is a folder with one.")


def _about_modules(modules: Sequence[str]) -> list[str]:
    if not modules:
        return []
    return [f"submodules are not fetched; these folders are empty: {', '.join(modules[:_MOST_NAMED])}"]


def _about_large_files(folder: Path) -> list[str]:
    """Files kept elsewhere (Git LFS) come as a few lines that say where."""
    found = []
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            if path.is_symlink() or path.stat().st_size > 1024:
                continue
            with path.open("rb") as file:
                if file.read(len(_LARGE_FILE)) == _LARGE_FILE:
                    found.append(str(path.relative_to(folder)))
    if not found:
        return []
    return [f"files in Git LFS are not fetched, only their pointers: {', '.join(found[:_MOST_NAMED])}"]


def _explained(source: GitSource, said: Sequence[str]) -> UserError | InfrastructureError:
    """Git's own words, sorted by who can do something about it."""
    text = " ".join(said)
    telling = [line for line in said if not _EMPTY_WORDS.search(line)] or ["it gave no reason"]
    first = next((line for line in telling if line.startswith(("fatal: ", "error: "))), telling[-1])
    reason = re.sub("^(fatal|error): ", "", first).rstrip(".")
    if _LOGIN.search(text):
        return AccessError(
            f"{source.url} is not there, or needs a login: {reason}. Private repositories are reached with "
            "git's own credential helpers or an SSH agent; try `git ls-remote` on it."
        )
    if _ABSENT.search(text):
        return UnknownError(f"there is no repository at {source.url}: {reason}.")
    if _UNREACHABLE.search(text):
        return InfrastructureError(f"{source.url} cannot be reached: {reason}.", cause="git")
    return UserError(f"git could not fetch {source.url}: {reason}.", cause="git")
