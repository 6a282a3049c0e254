"""Addresses of git repositories, and one repository fetched shallow, executed by nobody and bounded."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from benchmark_runner.archive import DEEPEST, ArchiveLimits
from valkyrie.config import values
from valkyrie.errors import AccessError, BundleError, InfrastructureError, UnknownError, UsageError, UserError
from valkyrie.git.command import GitCommand, Progress, hide_credentials
from valkyrie.git.local import COMMIT, check_ref, link_repository, object_format
from valkyrie.text import did_you_mean

FORMS = "https://host/owner/repository, git@host:owner/repository, or either with /tree/BRANCH/FOLDER behind"
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SCP = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*:(?!//)(?P<path>[^-:].*)")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
_BARE = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+/.+")


@dataclass(frozen=True, slots=True)
class GitSource:
    """A repository, and what of it is wanted."""

    url: str
    protocols: tuple[str, ...]
    """What git may speak to get it."""
    repository: str
    """Its name."""
    ref: str | None = None
    """Branch, tag or commit that was asked for."""
    tree: tuple[str, ...] = ()
    """What stood behind `/tree/`: a branch and a folder; only the repository knows where one ends."""

    def folder_url(self, ref: str, folder: str) -> str:
        """Return how to name a folder of this repository."""
        short = self.repository_path.count("/") == 1 or self.url.endswith(".git")
        return f"{self.url}/{'tree' if short else '-/tree'}/{ref}/{folder}"

    @property
    def folder(self) -> Path | None:
        """The folder it is on this machine; None for one on a host."""
        return Path(unquote(self.url.removeprefix("file://"))) if self.protocols == ("file",) else None

    @property
    def host(self) -> str | None:
        """The host it is on; None for a folder of this machine."""
        if self.folder is not None:
            return None
        if "://" in self.url:
            return urlsplit(self.url).hostname
        return self.url.partition(":")[0].rpartition("@")[2]

    @property
    def repository_path(self) -> str:
        """The path of its address, on its host."""
        plain = re.sub(r"^[a-z]+://[^/]*/", "", self.url)
        return plain if plain != self.url else self.url.partition(":")[2]


def parse_source(text: str, ref: str | None = None) -> GitSource:
    """The repository `text` names; UsageError when it names none, or names it in a way git must not see."""
    text = text.strip().rstrip("/") or text.strip()
    if ref is not None:
        check_ref(ref)
    if text.startswith(("/", ".", "~")) and text.isprintable():
        return _from_folder(text, ref)
    if not text or text.startswith("-") or not text.isprintable() or " " in text:
        raise UsageError(f"{hide_credentials(text)!r} is no address of a repository; name it as {FORMS}.")
    if text.startswith(("https://", "http://", "ssh://")):
        return _from_url(text, ref)
    if text.startswith("file:///"):
        _check_path(text.removeprefix("file:///"), text)
        return _from_segments(text, ("file",), ref)
    if Path(text).is_dir():
        return _from_folder(text, ref)
    if (match := _SCP.fullmatch(text)) and "://" not in text:
        _check_path(match["path"].lstrip("/"), text)
        return _from_segments(text, ("ssh",), ref)
    hint = f" Did you mean https://{text}?" if _BARE.fullmatch(text) else ""
    raise UsageError(f"{hide_credentials(text)!r} is no address of a repository; name it as {FORMS}.{hint}")


def _from_url(text: str, ref: str | None) -> GitSource:
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as error:
        raise UsageError(f"{hide_credentials(text)} is no URL: {error}.") from None
    _check_login(parts, text)
    if not _HOST.fullmatch(parts.hostname or ""):
        raise UsageError(f"{hide_credentials(text)} names no host.")
    _check_path(parts.path.lstrip("/"), text)
    # A user's own git settings may turn one of the two into the other (`url.….insteadOf`).
    protocols = ("http", "https") if parts.scheme == "http" else ("https", "ssh")
    return _from_segments(text, protocols, ref)


def _check_login(parts: SplitResult, text: str) -> None:
    """An address is shown and recorded: nothing secret may be in it."""
    if parts.scheme == "ssh" and parts.password is None:
        if parts.username is not None and not _USER.fullmatch(parts.username):
            raise UsageError(f"{hide_credentials(text)} names no user git could log in as.")
    elif "@" in parts.netloc:
        raise UsageError(
            f"{hide_credentials(text)} has credentials in it, and addresses are recorded. Leave them out: "
            "git's own credential helpers are asked (`git config --global credential.helper`)."
        )


def _check_path(path: str, text: str) -> None:
    shown = hide_credentials(text)
    if "?" in path or "#" in path or "?" in text or "#" in text:
        raise UsageError(f"{shown}: a repository's address has no query and no fragment.")
    if not path or any(part in ("", ".", "..") for part in path.split("/")):
        raise UsageError(f"{shown} names no repository; {FORMS} does.")


def _from_folder(text: str, ref: str | None) -> GitSource:
    path = Path(text).expanduser().resolve()
    if not path.is_dir():
        raise UsageError(f"{text}: there is no such folder; name a repository as {FORMS}.")
    if not (path / ".git").exists() and not ((path / "HEAD").is_file() and (path / "objects").is_dir()):
        raise UsageError(f"{text} is no git repository. `valk agent push {text}` takes a folder as it is.")
    return GitSource(path.as_uri(), ("file",), path.name.removesuffix(".git"), ref)


def _from_segments(text: str, protocols: tuple[str, ...], ref: str | None) -> GitSource:
    """Split what stands behind `/tree/` (or GitLab's `/-/tree/`) from the repository's address."""
    segments = text.split("/")
    # owner/repository: where the path begins, two further on.
    owner = 0 if "://" not in text else 3
    for at in (at for at, segment in enumerate(segments) if segment == "tree" and at > owner):
        gitlab = segments[at - 1] == "-"
        if gitlab or segments[at - 1].endswith(".git") or (at == owner + 2 and protocols != ("file",)):
            url = "/".join(segments[: at - 1 if gitlab else at])
            tree = tuple(unquote(segment) for segment in segments[at + 1 :])
            return _with_tree(url, protocols, tree, ref)
    return GitSource(text, protocols, _name(text), ref)


def _with_tree(url: str, protocols: tuple[str, ...], tree: tuple[str, ...], ref: str | None) -> GitSource:
    for part in tree:
        if part in ("", ".", "..") or part.lower() == ".git" or "/" in part or "\\" in part:
            raise UsageError(f"{'/'.join(tree)!r} is no branch and folder of {url}.")
        if not part.isprintable() or len(part.encode()) > 255:
            raise UsageError(f"{'/'.join(tree)!r} is no branch and folder of {url}.")
    if not tree:
        raise UsageError(f"{url}/tree names no branch.")
    if ref is None:
        return GitSource(url, protocols, _name(url), None, tree)
    start = tuple(ref.split("/"))
    if tree[: len(start)] != start:
        raise UsageError(f"The address names {'/'.join(tree)!r} and --ref {ref!r}; leave one of them out.")
    return GitSource(url, protocols, _name(url), ref, tree)


def _name(url: str) -> str:
    return re.split(r"[/:]", url)[-1].removesuffix(".git")


# One commit of a repository: found by what people call it, listed before its files come, checked out.

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
