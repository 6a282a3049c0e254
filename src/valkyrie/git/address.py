"""What people call a git repository, read into what git is given: address, branch, folder."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from valkyrie.errors import UsageError

FORMS = "https://host/owner/repository, git@host:owner/repository, or either with /tree/BRANCH/FOLDER behind"
COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SCP = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*@)?[A-Za-z0-9][A-Za-z0-9.-]*:(?!//)(?P<path>[^-:].*)")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
_BARE = re.compile(r"[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+/.+")
_CREDENTIALS = re.compile(r"://[^/@\s]*@")
_REF = re.compile(r"(?![-/.])[^\x00-\x20\x7f~^:?*\[\\]{1,250}")


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


def hide_credentials(text: str) -> str:
    """The text without what stands before the @ of a URL."""
    return _CREDENTIALS.sub("://***@", text)


def check_ref(ref: str) -> str:
    """A name a branch or tag can have, or a commit; UsageError otherwise."""
    wrong = ".." in ref or "@{" in ref or "//" in ref or ref.endswith(("/", ".", ".lock")) or "/." in ref
    if not _REF.fullmatch(ref) or wrong:
        raise UsageError(f"{ref!r} is no branch, tag or commit.")
    return ref


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
