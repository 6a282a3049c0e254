"""Run git on a stranger's repository: nothing of it is executed, and time and disk are bounded.

Of the settings on this machine only those are taken over that say how to reach a host and log in there
(`credential.*`, `http.*`, `url.*`, `core.sshCommand`, `ssh.variant`), so that private repositories work as
they do in the user's own hands. Everything else (hooks, filters, aliases, templates) stays out.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from valkyrie.archives.limits import ArchiveLimits
from valkyrie.errors import BundleError, InfrastructureError, UserError
from valkyrie.git.address import hide_credentials

OLDEST = (2, 32)
"""The first that can be told to pass over the user's settings."""
MOST_OUTPUT = 64 * 1024**2
_LOOK_EVERY_S = 0.1
_REACHING = r"^(credential\.|http\.|url\.|core\.sshcommand$|ssh\.variant$)"
_KEPT = re.compile(r"GIT_(SSH|SSH_COMMAND|SSH_VARIANT|ASKPASS|SSL_\w+|PROXY_SSL_\w+|HTTP_\w+)")
_SETTINGS = {
    "core.hooksPath": os.devnull,
    "core.attributesFile": os.devnull,
    "core.fsmonitor": "false",
    "core.autocrlf": "false",
    "core.symlinks": "true",
    "core.protectHFS": "true",
    "core.protectNTFS": "true",
    "core.bigFileThreshold": "16m",
    "fetch.fsckObjects": "true",
    "transfer.fsckObjects": "true",
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
class Ended:
    """What became of one git command."""

    code: int
    output: bytes
    said: tuple[str, ...]
    """Lines of its messages, printable and without credentials."""


class GitCommand:
    """Runs git in a private folder: `git` is the repository, `out` the files, `said` what it prints."""

    def __init__(
        self,
        folder: Path,
        protocols: Sequence[str],
        timeout: float,
        progress: Progress | None = None,
        *,
        trusted: Path | None = None,
    ) -> None:
        """`trusted`: a repository of this machine that may be read though it is someone else's."""
        self.repository = folder / "git"
        self.files = folder / "out"
        self._said = folder / "said"
        for made in (self.repository, self.files, self._said):
            made.mkdir()
        self._timeout = timeout
        self._deadline = time.monotonic() + timeout
        self._limits = ArchiveLimits.from_environment()
        self._settings = folder / "settings" if trusted else Path(os.devnull)
        if trusted:
            listed = "".join(f'\tdirectory = "{_escaped(path)}"\n' for path in (trusted, trusted / ".git"))
            self._settings.write_text(f"[safe]\n{listed}")
        self._progress = progress
        self._program = _find_git()
        self._environment = _plain_environment()
        self._check_version()
        self._environment = self._reaching_environment(protocols)

    def run(self, *words: str) -> Ended:
        """Run git to its end; it is killed with everything it started when it takes too long or too much."""
        output, messages = self._said / "output", self._said / "messages"
        with output.open("wb") as stdout, messages.open("wb") as stderr:
            process = subprocess.Popen(
                [self._program, *words],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=self.files,
                env=self._environment,
                start_new_session=True,
            )
            try:
                self._watch(process)
            finally:
                if process.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        self._check_room()
        return Ended(process.returncode, output.read_bytes(), _lines(messages))

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
                f"{said.strip() or self._program} is too old: this takes git "
                f"{'.'.join(map(str, OLDEST))} or newer."
            )

    def _reaching_environment(self, protocols: Sequence[str]) -> dict[str, str]:
        """The environment of all further commands."""
        ended = self.run("config", "--includes", "-z", "--get-regexp", _REACHING)
        if ended.code > 1:
            raise UserError(f"git cannot read its settings: {' '.join(ended.said)[:300]}")
        settings = [_setting(line) for line in ended.output.decode(errors="replace").split("\0") if line]
        settings += _SETTINGS.items()
        numbered: dict[str, str] = {"GIT_CONFIG_COUNT": str(len(settings))}
        for number, (key, value) in enumerate(settings):
            numbered |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
        kept = {
            name: value
            for name, value in self._environment.items()
            if not name.startswith("GIT_") or _KEPT.fullmatch(name)
        }
        return {
            **kept,
            **numbered,
            "GIT_DIR": str(self.repository),
            "GIT_WORK_TREE": str(self.files),
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": str(self._settings),
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_ALLOW_PROTOCOL": ":".join(protocols),
            "GIT_TERMINAL_PROMPT": "0",
        }


def _escaped(path: Path) -> str:
    """A path between the quotes of a settings file."""
    return str(path).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _find_git() -> str:
    found = shutil.which("git")
    if found is None:
        raise UserError(
            "git is not installed here. Install it, or fetch the folder yourself and name it instead "
            "(an agent's with `valk agent push FOLDER`).",
            cause="no_git",
        )
    return found


def _plain_environment() -> dict[str, str]:
    """This process's environment, without what ties git to some repository; its messages in English."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith("GIT_CONFIG") or _KEPT.fullmatch(name)
    }
    kept.pop("LANGUAGE", None)
    return {**kept, "LC_ALL": "C", "GIT_DIR": os.devnull}


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
