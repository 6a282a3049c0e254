"""The environment, and `.env` in the folder one stands in."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from benchmark_service.dotenv import Dotenv, parse
from valkyrie.permissions import redirection
from valkyrie.secrets.parts import parts_of
from valkyrie.secrets.protocol import SecretSource
from valkyrie.secrets.store import SecretStore
from valkyrie.trust import foreign_owner, is_trusted_folder

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
            return parse(self.file.read_text(encoding="utf-8")), ""
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
