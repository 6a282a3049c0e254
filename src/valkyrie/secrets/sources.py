"""The environment, and `.env` in the folder one stands in."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from benchmark_service.dotenv import Dotenv, parse
from valkyrie.secrets.protocol import SecretSource
from valkyrie.secrets.store import SecretStore


class EnvironmentSource:
    """Environment variables of this process."""

    place = "the environment"
    by_variable = True
    problems: Sequence[str] = ()

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = os.environ if environment is None else environment

    def get(self, name: str) -> str | None:
        return self._environment.get(name) or None


class DotenvSource:
    """A `.env` file; a missing one holds nothing. It is read once, when first asked."""

    by_variable = True

    def __init__(self, file: Path) -> None:
        self.file = file

    @property
    def place(self) -> str:
        return str(self.file)

    def get(self, name: str) -> str | None:
        return self._read[0].values.get(name) or None

    @property
    def problems(self) -> Sequence[str]:
        parsed, unreadable = self._read
        lines = [f"{self.file}:{line}: not NAME=value, skipped" for line in parsed.bad_lines]
        return [unreadable] if unreadable else lines

    @cached_property
    def _read(self) -> tuple[Dotenv, str]:
        try:
            return parse(self.file.read_text(encoding="utf-8")), ""
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            return Dotenv({}), ""
        except (OSError, UnicodeDecodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            return Dotenv({}), f"{self.file}: cannot be read ({why})"


def default_sources(store: SecretStore, folder: Path | None = None) -> list[SecretSource]:
    """In the order they are asked: environment, `.env` of `folder` (default: the current one), store."""
    return [EnvironmentSource(), DotenvSource((folder or Path.cwd()) / ".env"), store]
