"""Sources of secret values, and the lookup of all that a run needs before it starts."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shlex
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from benchmark_service.environment import Dotenv, is_redirecting, parse_dotenv, redirection
from valkyrie.errors import MissingSecretError, UsageError, UserError
from valkyrie.trust import foreign_owner, is_trusted_folder


class SecretSource(Protocol):
    """A place to look a secret up in. A value never appears in an error, a repr or a log."""

    @property
    def place(self) -> str:
        """Where this is, for people: `the environment`, `/home/me/.env`."""
        ...

    @property
    def by_variable(self) -> bool:
        """Whether names here are names of environment variables; then the variable's own name counts too."""
        ...

    @property
    def remote(self) -> bool:
        """Whether it is a service elsewhere, which keeps secrets under the names that are asked for."""
        ...

    def get(self, name: str) -> str | None:
        """The value, or None when there is none. An empty value is none."""
        ...

    @property
    def problems(self) -> Sequence[str]:
        """What could not be read, for the message when a secret is missing."""
        ...


# Secrets that hold several values: a JSON object, of which `name#key` names one.


def split_name(name: str) -> tuple[str, str | None]:
    """A secret's name and the key in it: `openai#dev` is (`openai`, `dev`)."""
    secret, mark, key = name.partition("#")
    return secret, key if mark else None


def parts_of(text: str) -> dict[str, str] | None:
    """The values of a JSON object by key, as texts; None when it is no such object."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        held = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return {key: _as_text(value) for key, value in held.items() if value is not None}


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


# A mapping of secrets that does not tell them by accident.


class Secrets(Mapping[str, str]):
    """Environment variable → value. Printing it shows the names only; it cannot be pickled."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Secrets({', '.join(f'{name}=***' for name in self._values)})"

    def __reduce__(self) -> str:
        raise TypeError("secrets are handed over the control socket, never pickled")


# The secret store: one JSON file only its owner can read.

LONGEST_VALUE = 64 << 10
"""Bytes of a secret's value."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./+=@-]{0,255}")


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} cannot name a secret: letters, digits and _ . / + = @ -, up to 256.")


def check_value(name: str, value: str) -> None:
    if not value:
        raise UsageError(f"the value of {name} is empty; nothing was stored.")
    if "\0" in value:
        raise UsageError(f"the value of {name} holds a NUL character, which no environment variable can.")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise UsageError(f"the value of {name} is not UTF-8 text; nothing was stored.") from None
    if size > LONGEST_VALUE:
        raise UsageError(
            f"the value of {name} has more than {LONGEST_VALUE >> 10} KiB; nothing was stored. A secret is a "
            "key or a password: bring larger things in a file of the agent's or the task's folder."
        )


class SecretStore:
    """Names and values in `path` (mode 0600, in a folder of mode 0700), replaced whole on every change."""

    by_variable = False
    remote = False
    problems: Sequence[str] = ()

    def __init__(self, path: Path) -> None:
        self.path = path

    def __repr__(self) -> str:
        return f"SecretStore({str(self.path)!r})"

    @property
    def place(self) -> str:
        return f"the secret store ({self.path})"

    def get(self, name: str) -> str | None:
        """The value kept under this name."""
        return self._read().get(name) or None

    def list(self) -> Sequence[str]:
        return sorted(self._read())

    def set(self, name: str, value: str) -> None:
        """Keep a value under a name, over an earlier one."""
        check_name(name)
        check_value(name, value)
        with self._locked():
            self._write(self._read() | {name: value})

    def remove(self, name: str) -> None:
        with self._locked():
            values = self._read()
            if name not in values:
                known = ", ".join(sorted(values)) or "none"
                raise UsageError(f"no secret is stored as {name!r}. Stored: {known}.")
            del values[name]
            self._write(values)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """One writer at a time, so that two `secret set` at once keep both values."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self.path.parent.chmod(0o700)
            lock = os.open(self.path.with_name(f".{self.path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise UserError(f"{self.path.parent} cannot be written: {error.strerror}.") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _read(self) -> dict[str, str]:
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise UserError(
                f"{self.path} cannot be read: {error.strerror}. It must be a plain file."
            ) from None
        with open(handle, encoding="utf-8") as file:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
                raise UserError(f"{self.path} is not a plain file of yours; it is not read.")
            if status.st_mode & 0o077:
                raise UserError(
                    f"{self.path} can be read by others; it is not used. Close it with: chmod 600 {self.path}"
                )
            try:
                values = json.load(file)
            except (ValueError, RecursionError):
                values = None
        if not isinstance(values, dict) or not all(isinstance(value, str) for value in values.values()):
            # Neither the text nor the parser's message is shown: either may hold a secret.
            raise UserError(f"{self.path} is damaged: not a JSON object of texts. Repair it or move it away.")
        return values

    def _write(self, values: dict[str, str]) -> None:
        part = ""
        try:
            # mkstemp makes files of mode 0600: at no time can others read this one.
            handle, part = tempfile.mkstemp(dir=self.path.parent, prefix=f".{self.path.name}-")
            with open(handle, "w", encoding="utf-8") as file:
                json.dump(values, file, indent=1, sort_keys=True)
                file.flush()
                os.fsync(handle)
            Path(part).replace(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                Path(part).unlink()
            raise UserError(
                f"{self.path} cannot be written: {error.strerror}. Nothing was changed."
            ) from None


# The environment, and `.env` in the folder one stands in.

_ADDRESS = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")


class EnvironmentSource:
    """Environment variables of this process."""

    place = "the environment"
    by_variable = True
    remote = False
    problems: Sequence[str] = ()

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment

    def get(self, name: str) -> str | None:
        return self._environment.get(name) or None


class DotenvSource:
    """A `.env` file; a missing one holds nothing. It is read once, when first asked.

    Whoever wrote the folder's files may have written it: it gives values for names that were asked for, and
    no addresses, proxies, variables of loaders and interpreters, or settings of this program. Those come
    from the environment, so that nobody else says where the user's keys go.
    """

    by_variable = True
    remote = False

    def __init__(self, file: Path) -> None:
        self.file = file
        self._refused: dict[str, str] = {}

    @property
    def place(self) -> str:
        return str(self.file)

    def get(self, name: str) -> str | None:
        value = self._read[0].values.get(name) or None
        return None if self.refused(name) else value

    def refused(self, name: str) -> str | None:
        """Return why the file's value of this name is not taken; None when it is, or when there is none."""
        value = self._read[0].values.get(name)
        kind = value and _redirection_in(name, value)
        if not kind:
            return None
        why = f"{self.file}: {name} is not taken from a .env file ({kind}); `export {name}=…` if you want it"
        self._refused[name] = why
        return why

    @property
    def problems(self) -> Sequence[str]:
        parsed, unreadable = self._read
        lines = [f"{self.file}:{line}: not NAME=value, skipped" for line in parsed.bad_lines]
        return [*([unreadable] if unreadable else lines), *self._refused.values()]

    @cached_property
    def _read(self) -> tuple[Dotenv, str]:
        try:
            owner = foreign_owner(self.file)
            if owner is not None and not is_trusted_folder(self.file.parent):
                folder = shlex.quote(str(self.file.absolute().parent))
                return Dotenv(
                    {}
                ), f"{self.file}: not read, it belongs to {owner}; `valk trust {folder}` allows it"
            return parse_dotenv(self.file.read_text(encoding="utf-8")), ""
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return Dotenv({}), ""
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            return Dotenv({}), f"{self.file}: cannot be read ({why})"


def _redirection_in(name: str, value: str) -> str | None:
    """Return what a value would redirect: by its name, as an address, or in one of its parts."""
    if kind := redirection(name) or ("address" if _ADDRESS.match(value) else None):
        return kind
    parts = parts_of(value) or {}
    return next((found for one, text in parts.items() if (found := _redirection_in(one, text))), None)


def default_sources(store: SecretStore, folder: Path | None = None) -> list[SecretSource]:
    """In the order they are asked: environment, `.env` of `folder` (default: the current one), store."""
    return [EnvironmentSource(), DotenvSource((folder or Path.cwd()) / ".env"), store]


# Look up every secret a run needs, before it starts.


@dataclass(frozen=True, slots=True)
class Resolution:
    """All values, and what a person should know about where they came from."""

    secrets: Secrets
    notices: tuple[str, ...] = ()


def resolve(wanted: Mapping[str, str], sources: Sequence[SecretSource]) -> Resolution:
    """Find a value for each (environment variable → secret name).

    Sources are asked in order for the secret's name; only when none has it, those keyed by environment
    variables are asked for the variable. Of a secret that is a JSON object, `name#key` is one value, and
    `name` the value of the variable's name, if it has one. All missing ones are named in one
    MissingSecretError.
    """
    values: dict[str, str] = {}
    notices: list[str] = []
    missing: list[tuple[str, str]] = []
    for variable, name in wanted.items():
        asked = _sources_for(variable, sources)
        found = [
            (source, value) for source in asked if (value := _look_up(source, name, variable)) is not None
        ] or [(source, value) for source in asked if source.by_variable and (value := source.get(variable))]
        if not found:
            missing.append((variable, name))
            continue
        (winner, values[variable]), *others = found
        if variable != name and not winner.by_variable and (keys := parts_of(values[variable])):
            notices.append(
                f"{variable}: all of {name} ({winner.place}), a JSON object without a key {variable}; "
                f"one value of it is {name}#{next(iter(keys))}."
            )
        for other, value in others:
            if not other.by_variable and value != values[variable]:
                notices.append(
                    f"{variable}: taken from {winner.place}; {other.place} has another value for {name}."
                )
    if missing:
        raise MissingSecretError(_explain(missing, sources), missing=dict(missing))
    return Resolution(Secrets(values), tuple(notices))


def _sources_for(variable: str, sources: Sequence[SecretSource]) -> Sequence[SecretSource]:
    """Return where a variable may come from: one that redirects never from a file of the folder."""
    if not is_redirecting(variable):
        return sources
    return [source for source in sources if not isinstance(source, DotenvSource)]


def _look_up(source: SecretSource, name: str, variable: str) -> str | None:
    value = source.get(name)
    if value is not None:
        return (parts_of(value) or {}).get(variable) or value
    secret, key = split_name(name)
    held = source.get(secret) if key else None
    return (parts_of(held) or {}).get(key or "") or None if held else None


def _explain(missing: Sequence[tuple[str, str]], sources: Sequence[SecretSource]) -> str:
    lines = [f"{len(missing)} secret{'s' * (len(missing) > 1)} without a value:"]
    places = dict.fromkeys(source.place for source in sources if source.remote)
    for variable, name in missing:
        export = name if name.isidentifier() else variable
        filled = "" if variable == name else f" (fills {variable})"
        lines.append(
            f"  {name}{filled}: `export {export}=…`, or {export}=… in .env, or `valk secret set {name}`"
            + "".join(f", or {name} in {place}" for place in places)
        )
    lines += [f"  note: {problem}" for source in sources for problem in source.problems]
    return "\n".join(lines)
