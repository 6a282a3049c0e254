"""Run git on repositories of others: the one place of this project that starts git.

Every git runs on a repository that we made. The settings, hooks, filters and attributes of other repositories
are never read, nothing is fetched on demand by `OfflineGit`, and time and disk are bounded.

`GitCommand` fetches. For an address that the user typed it takes over those settings of this machine that
say how to reach a host and log in there (`credential.*`, `http.*`, `url.*`, `core.sshCommand`,
`ssh.variant`), so that private repositories work as they do in the user's own hands. For an address that a
spec or a registry names it takes over none of them, and the home folder is an empty one.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from benchmark_runner.archive import ArchiveLimits
from valkyrie.errors import BundleError, InfrastructureError, UserError

OLDEST = (2, 32)
"""The first that can be told to pass over the user's settings."""
MOST_OUTPUT = 64 * 1024**2
_LOOK_EVERY_S = 0.1
_REACHING = r"^(credential\.|http\.|url\.|core\.sshcommand$|ssh\.variant$)"
_KEPT = re.compile(r"GIT_(SSH|SSH_COMMAND|SSH_VARIANT|ASKPASS|SSL_\w+|PROXY_SSL_\w+|HTTP_\w+)")
_CONNECTING = re.compile(
    r"(?i:https?|all|no)_proxy|SSL_CERT_(FILE|DIR)|CURL_CA_BUNDLE|GIT_SSL_(CAINFO|CAPATH)|TMPDIR"
)
"""How to get out of this machine's network; who the user is there is not among it."""
SETTINGS: Mapping[str, str] = {
    "core.hooksPath": os.devnull,
    "core.attributesFile": os.devnull,
    "core.excludesFile": os.devnull,
    "core.fsmonitor": "false",
    "core.untrackedCache": "false",
    "core.pager": "cat",
    "core.editor": "false",
    "core.askPass": "",
    # Git would list the references of a repository whose objects are borrowed by running git in there.
    "core.alternateRefsCommand": "true",
    "core.multiPackIndex": "false",
    "core.commitGraph": "false",
    "core.autocrlf": "false",
    "core.symlinks": "true",
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "core.bigFileThreshold": "16m",
    "fetch.fsckObjects": "true",
    "transfer.fsckObjects": "true",
    "transfer.bundleURI": "false",
    "fetch.recurseSubmodules": "false",
    "submodule.recurse": "false",
    "protocol.version": "2",
    "init.defaultBranch": "main",
    "gc.auto": "0",
    "maintenance.auto": "false",
}

Progress = Callable[[int], None]
"""Told now and then how many bytes there are."""


@dataclass(frozen=True, slots=True)
class GitResult:
    """What became of one git command."""

    code: int
    output: bytes
    said: tuple[str, ...]
    """Lines of its messages, printable and without credentials."""


@dataclass(frozen=True, slots=True)
class OfflineGit:
    """Runs git on a repository of ours that holds what others wrote: no host, no helper, no other settings.

    `scratch` is an existing folder for what git prints; `settings` are added to ours.
    """

    repository: Path
    scratch: Path
    timeout: float
    settings: tuple[tuple[str, str], ...] = ()

    def run(
        self,
        *words: str,
        stdin: BinaryIO | None = None,
        work_tree: Path | None = None,
        most: int = MOST_OUTPUT,
    ) -> GitResult:
        """Run git to its end and return at most `most` bytes of its output."""
        with tempfile.TemporaryDirectory(dir=self.scratch) as private:
            home, output, messages = Path(private, "home"), Path(private, "output"), Path(private, "messages")
            home.mkdir()
            environment = {
                **_bare_environment(home),
                **_sealed(self.repository, [*SETTINGS.items(), *self.settings], protocols=()),
                "GIT_NO_LAZY_FETCH": "1",
            }
            if work_tree:
                environment["GIT_WORK_TREE"] = str(work_tree)
            with output.open("wb") as stdout, messages.open("wb") as stderr:
                code = self._finish(_start(words, environment, work_tree or home, stdin, stdout, stderr))
            with output.open("rb") as file:
                return GitResult(code, file.read(most), _lines(messages))

    def _finish(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(self.timeout)
        except subprocess.TimeoutExpired:
            raise InfrastructureError(
                f"git was not done within {self.timeout:g} s and was stopped.", cause="git_timeout"
            ) from None
        finally:
            _end(process)


class GitCommand:
    """Runs git in a private folder: `git` is the repository, `out` the files, `said` what it prints."""

    def __init__(
        self,
        folder: Path,
        protocols: Sequence[str],
        timeout: float,
        progress: Progress | None = None,
        *,
        logins: bool = True,
    ) -> None:
        """Find git. Without `logins` it knows nothing by which it could act as the user at a host."""
        self.repository = folder / "git"
        self.files = folder / "out"
        self.origin = folder / "origin"
        """Room for a readable copy of a repository of this machine."""
        self._said = folder / "said"
        self._home = folder / "home"
        for made in (self.repository, self.files, self._said, self._home):
            made.mkdir()
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._limits = ArchiveLimits.from_environment()
        self._progress = progress
        self._environment = _user_environment() if logins else _bare_environment(self._home)
        self._check_version()
        settings = [*(self._reaching_settings() if logins else ()), *SETTINGS.items()]
        if not logins:
            settings += [("credential.helper", ""), ("http.cookieFile", ""), ("http.emptyAuth", "false")]
            self._environment |= _chosen(os.environ, _CONNECTING)
        kept = {
            name: value
            for name, value in self._environment.items()
            if not name.startswith("GIT_") or _KEPT.fullmatch(name)
        }
        self._environment = {
            **kept,
            **_sealed(self.repository, settings, protocols),
            "GIT_WORK_TREE": str(self.files),
        }

    def run(self, *words: str) -> GitResult:
        """Run git to its end; it is killed with everything it started when it takes too long or too much."""
        output, messages = self._said / "output", self._said / "messages"
        with output.open("wb") as stdout, messages.open("wb") as stderr:
            process = _start(words, self._environment, self.files, None, stdout, stderr)
            try:
                self._watch(process)
            finally:
                _end(process)
        self._check_room()
        return GitResult(process.returncode, output.read_bytes(), _lines(messages))

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        pause = _LOOK_EVERY_S
        while True:
            try:
                process.wait(max(0.0, min(pause, self._deadline - time.monotonic())))
                return
            except subprocess.TimeoutExpired:
                pass
            if time.monotonic() >= self._deadline:
                raise InfrastructureError(
                    f"git was not done within {self._timeout:g} s and was stopped; --timeout allows more.",
                    cause="git_timeout",
                )
            began = time.monotonic()
            self._check_room()
            pause = max(_LOOK_EVERY_S, 5 * (time.monotonic() - began))

    def _check_room(self) -> None:
        fetched, objects = _measure(self.repository)
        printed, _ = _measure(self._said)
        written, files = _measure(self.files)
        if self._progress:
            self._progress(fetched + written)
        if fetched > self._limits.upload_bytes:
            raise BundleError(f"the repository is too large: {self._limits.upload_hint}")
        if written > self._limits.expanded_bytes:
            raise BundleError(f"the repository's files are too large: {self._limits.expanded_hint}")
        if max(objects, files) > self._limits.entries or printed > MOST_OUTPUT:
            raise self._too_many()

    def _too_many(self) -> BundleError:
        return BundleError(
            f"the repository holds more than {self._limits.entries:,} files; {self._limits.entries_hint}"
        )

    def _check_version(self) -> None:
        ended = self.run("version")
        if ended.code != 0:
            raise UserError(f"git does not work here: {' '.join(ended.said)[:300]}")
        said = ended.output.decode(errors="replace")
        found = re.search(r"(\d+)\.(\d+)", said)
        if not found or (int(found[1]), int(found[2])) < OLDEST:
            raise UserError(
                f"{said.strip() or 'git'} is too old: this takes git {'.'.join(map(str, OLDEST))} or newer."
            )

    def _reaching_settings(self) -> list[tuple[str, str]]:
        """Return the user's settings that say how hosts are reached."""
        ended = self.run("config", "--includes", "-z", "--get-regexp", _REACHING)
        if ended.code > 1:
            raise UserError(f"git cannot read its settings: {' '.join(ended.said)[:300]}")
        return [_setting(line) for line in ended.output.decode(errors="replace").split("\0") if line]


def find_git() -> str:
    """Return the path of git, or raise UserError."""
    found = shutil.which("git", path=_absolute_path())
    if found is None:
        raise UserError(
            "git is not installed here. Install it, or fetch the folder yourself and name it instead "
            "(an agent's with `valk agent push FOLDER`).",
            cause="no_git",
        )
    return found


def _start(
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    stdin: BinaryIO | None,
    stdout: BinaryIO,
    stderr: BinaryIO,
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [find_git(), "--no-pager", *words],
        stdin=stdin or subprocess.DEVNULL,
        stdout=stdout,
        stderr=stderr,
        cwd=folder,
        env=environment,
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _sealed(
    repository: Path, settings: Iterable[tuple[str, str]], protocols: Sequence[str]
) -> dict[str, str]:
    """Return the variables that tie git to one repository, these settings and these protocols."""
    numbered: dict[str, str] = {}
    count = 0
    for count, (key, value) in enumerate(settings, 1):
        numbered |= {f"GIT_CONFIG_KEY_{count - 1}": key, f"GIT_CONFIG_VALUE_{count - 1}": value}
    return {
        **numbered,
        "GIT_CONFIG_COUNT": str(count),
        "GIT_DIR": str(repository),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_ALLOW_PROTOCOL": ":".join(protocols) or "none",
        "GIT_TERMINAL_PROMPT": "0",
    }


def _bare_environment(home: Path) -> dict[str, str]:
    """Return the environment of a git that knows nothing of the user; its messages are in English."""
    return {
        "PATH": _absolute_path(),
        "HOME": str(home),
        "XDG_CONFIG_HOME": str(home),
        "LC_ALL": "C",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_DIR": os.devnull,
        "GIT_ALLOW_PROTOCOL": "none",
    }


def _user_environment() -> dict[str, str]:
    """Return this process's environment without what ties git to some repository."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith("GIT_CONFIG") or _KEPT.fullmatch(name)
    }
    kept.pop("LANGUAGE", None)
    return {**kept, "PATH": _absolute_path(), "LC_ALL": "C", "GIT_DIR": os.devnull}


def _absolute_path() -> str:
    """Return PATH without folders that depend on where a program is started."""
    given = os.environ.get("PATH", os.defpath).split(os.pathsep)
    return os.pathsep.join(one for one in given if one.startswith(os.sep)) or os.defpath


def _chosen(environment: Mapping[str, str], names: re.Pattern[str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if names.fullmatch(name)}


def _setting(line: str) -> tuple[str, str]:
    """One `key\\nvalue` of git's; a key alone is true."""
    key, given, value = line.partition("\n")
    return key, value if given else "true"


def _measure(folder: Path) -> tuple[int, int]:
    """(bytes, files and folders) below a folder, while it changes."""
    size, count = 0, 0
    waiting = [os.fspath(folder)]
    while waiting:
        with suppress(FileNotFoundError, NotADirectoryError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    with suppress(FileNotFoundError):
                        size += entry.stat(follow_symlinks=False).st_size
    return size, count


def _lines(messages: Path) -> tuple[str, ...]:
    """The end of what git said; the other side may have had a word in it."""
    with messages.open("rb") as file:
        file.seek(max(0, messages.stat().st_size - 8192))
        text = file.read().decode(errors="replace")
    lines = ("".join(char for char in line if char.isprintable()) for line in re.split(r"[\r\n]+", text))
    return tuple(hide_credentials(line.strip())[:300] for line in lines if line.strip())


_CREDENTIALS = re.compile(r"://[^/@\s]*@")


def hide_credentials(text: str) -> str:
    """The text without what stands before the @ of a URL."""
    return _CREDENTIALS.sub("://***@", text)
