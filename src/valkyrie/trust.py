"""Projects whose own code the user lets run on this machine.

A project's plugins are Python that runs here, outside any sandbox. `valk trust` records the project's folder
with a digest of everything of it that can execute: its `.vally.yaml` and the files of its plugins. Only while
both are the same are they loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from valkyrie.config.values import data_folder
from valkyrie.errors import UsageError, UserError

RECORD = "trusted.json"
MOST_FILES = 5000
_SKIPPED = frozenset(("node_modules", "__pycache__", "site-packages"))


@dataclass(frozen=True, slots=True)
class ProjectCode:
    """What of a project can execute on this machine."""

    file: Path
    """Its `.vally.yaml`."""
    plugins: tuple[str, ...] = ()
    """Specifiers, files by their whole path."""

    @property
    def folder(self) -> Path:
        return self.file.resolve().parent

    def files(self) -> list[Path]:
        """Return the config file, the plugins' files, and the Python files a plugin can import beside it."""
        found = {self.file.resolve()}
        for plugin in self.plugins:
            found.update(self._plugin_files(plugin))
        return sorted(found)

    def digest(self) -> str:
        """Return a digest of names and contents of `files`, and of the plugins' names."""
        whole = hashlib.sha256(json.dumps(self.plugins).encode())
        for file in self.files():
            content = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else "missing"
            whole.update(json.dumps([os.path.relpath(file, self.folder), content]).encode())
        return whole.hexdigest()

    def _plugin_files(self, plugin: str) -> Iterator[Path]:
        name, py, _ = plugin.partition(".py")
        if py:
            file = Path(f"{name}.py").resolve()
            yield file
            if file.is_relative_to(self.folder):
                yield from _beside(file.parent, deep=file.parent != self.folder)
            return
        module = plugin.partition(":")[0].partition(".")[0]
        for place in (self.folder / f"{module}.py", self.folder / module):
            if place.is_file():
                yield place.resolve()
            elif place.is_dir():
                yield from _beside(place, deep=True)


def _beside(folder: Path, *, deep: bool) -> Iterator[Path]:
    """Yield the Python files of a folder, links followed; UserError for more than anyone reads first."""
    count = 0
    seen: set[str] = set()
    for current, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(current)
        hidden = [name for name in folders if name.startswith(".") or name in _SKIPPED]
        cached = current.endswith("__pycache__")
        keep = set(folders) - set(hidden) if deep else set[str]()
        folders[:] = [] if real in seen or cached else sorted(keep | ({"__pycache__"} & set(folders)))
        seen.add(real)
        for name in sorted(names):
            path = Path(current, name)
            if name.endswith((".py", ".so", ".pth")) or (name.endswith(".pyc") and _unchecked(path)):
                count += 1
                yield path
        if count > MOST_FILES:
            raise UserError(
                f"{folder} holds more than {MOST_FILES} Python files; keep plugins in a folder of their own.",
                cause="untrusted",
            )


def _unchecked(compiled: Path) -> bool:
    """Return whether a compiled file is taken without a look at its source's time."""
    with compiled.open("rb") as opened:
        return bool(int.from_bytes(opened.read(8)[4:8], "little") & 1)


@dataclass(frozen=True, slots=True)
class TrustedProject:
    """One entry of the record."""

    folder: Path
    digest: str
    since: str


def trusted_projects() -> list[TrustedProject]:
    """Return everything `valk trust` recorded; UserError for a record that cannot be read."""
    file = data_folder() / RECORD
    try:
        held = json.loads(file.read_text(encoding="utf-8"))
        return [
            TrustedProject(Path(folder), str(entry["digest"]), str(entry["since"]))
            for folder, entry in sorted(held.items())
        ]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{file} cannot be read ({type(error).__name__}); remove it and run `valk trust` again.",
            cause="untrusted",
        ) from None


def is_trusted_folder(folder: Path) -> bool:
    """Return whether `valk trust` was told of this folder or one above it."""
    here = folder.resolve()
    return any(here.is_relative_to(one.folder) for one in trusted_projects())


def record_trust(code: ProjectCode) -> TrustedProject:
    if _kept_inside(code):
        raise UserError(
            f"{data_folder() / RECORD} would lie in the project itself, where anyone who changes the project "
            "can change it; set VALKYRIE_HOME to a folder outside.",
            cause="untrusted",
        )
    entry = TrustedProject(code.folder, code.digest(), datetime.now(UTC).isoformat(timespec="seconds"))
    _write([one for one in trusted_projects() if one.folder != code.folder] + [entry])
    return entry


def remove_trust(folder: Path) -> bool:
    """Forget a folder; False when it was not recorded."""
    known = trusted_projects()
    left = [one for one in known if one.folder != folder.resolve()]
    if len(left) == len(known):
        return False
    _write(left)
    return True


def trust_state(code: ProjectCode) -> Literal["trusted", "changed", "unknown"]:
    """Return whether the project is recorded as it is now."""
    if _kept_inside(code):
        return "unknown"
    entry = next((one for one in trusted_projects() if one.folder == code.folder), None)
    if entry is None:
        return "unknown"
    return "trusted" if entry.digest == code.digest() else "changed"


def check_trusted(code: ProjectCode, why: str) -> None:
    """Raise UsageError with the command that allows it, unless the project is recorded as it is now."""
    state = trust_state(code)
    if state == "trusted":
        return
    known = "was changed since you trusted it" if state == "changed" else "is not trusted"
    raise UsageError(
        f"{why} This project {known}, and its plugins run on this machine outside any sandbox: look at "
        f"{_listed(code)}, then `valk trust {shlex.quote(str(code.folder))}` (in CI: --trust).",
        cause="untrusted",
    )


def home_folder() -> Path | None:
    """Return the user's home folder; None for a user who has none."""
    try:
        return Path.home().resolve()
    except RuntimeError:
        return None


def check_unchanged(code: ProjectCode, digest: str | None) -> None:
    """Raise UserError when the project's code is not what it was when a run was planned."""
    if digest is not None and code.digest() != digest:
        raise UserError(
            f"The plugins of {code.folder} were changed since the run was planned, and are not loaded; start "
            "a new one.",
            cause="untrusted",
        )


def foreign_owner(file: Path) -> str | None:
    """Return the owner of a file when that is neither the user nor root; else None."""
    own = {0, os.geteuid()}
    if os.geteuid() == 0 and (sudo := os.environ.get("SUDO_UID", "")).isdigit():
        own.add(int(sudo))
    for uid in (file.lstat().st_uid, file.stat().st_uid):
        if uid not in own:
            try:
                return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
            except KeyError:
                return f"uid {uid}"
    return None


def _listed(code: ProjectCode) -> str:
    named = [str(code.file), *code.plugins]
    more = f" and {len(named) - 4} more" if len(named) > 4 else ""
    return ", ".join(named[:4]) + more


def _kept_inside(code: ProjectCode) -> bool:
    """Return whether the record lies in the project; a home folder is the user's own, whatever it holds."""
    return code.folder != home_folder() and data_folder().resolve().is_relative_to(code.folder)


def _write(entries: Sequence[TrustedProject]) -> None:
    folder = data_folder()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    held = {str(one.folder): {"digest": one.digest, "since": one.since} for one in entries}
    beside = folder / f".{RECORD}.{os.getpid()}"
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        json.dump(held, opened, indent=2)
    beside.replace(folder / RECORD)
