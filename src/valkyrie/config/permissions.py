"""What a user allows other people's files to take: variables by name, paths outside their folder.

Nothing is allowed by the files themselves. The command line (`--pass-env`, `--allow-path`) and the user's own
config file (`pass_env`) are the only places that allow something.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmark_service.environment import REDIRECTING, RedirectionKind, is_redirecting, redirection
from valkyrie.errors import UsageError

__all__ = [
    "REDIRECTING",
    "Allowance",
    "RedirectionKind",
    "allowed_names",
    "configured_names",
    "is_redirecting",
    "outside",
    "redirection",
]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Allowance:
    """What the user lets other people's files take."""

    names: tuple[str, ...] = ()
    """Variables, of `--pass-env`, of `-s` and of the config file."""
    paths: tuple[str, ...] = ()
    """Files and folders outside the project, of `--allow-path`; absolute."""

    def variables(self) -> dict[str, str]:
        """Return the allowed variables that are set, with their values."""
        return {name: os.environ[name] for name in self.names if name in os.environ}


def allowed_names(flags: Iterable[str], config: str | Iterable[str] | None = None) -> frozenset[str]:
    """Return the variables that may be given to what asks: of `--pass-env` and of the config file."""
    configured = config.split(",") if isinstance(config, str) else config or ()
    words = [word.strip() for word in (*flags, *configured)]
    for word in words:
        if word and not _NAME.fullmatch(word):
            raise UsageError(f"--pass-env {word!r}: this is not the name of an environment variable.")
    return frozenset(filter(None, words))


def configured_names(text: str) -> str:
    """Return a list of variables with commas in one form; ValueError when one of them is no name."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if wrong := next((word for word in words if not _NAME.fullmatch(word)), None):
        raise ValueError(f"{wrong!r} is not the name of an environment variable")
    return ",".join(dict.fromkeys(words))


def outside(path: Path, *roots: Path) -> Path | None:
    """Return where `path` really leads when that is in none of the `roots`, links followed; else None."""
    try:
        real = path.resolve()
    except (OSError, RuntimeError, ValueError):
        return path.absolute()  # a loop of links, or no path at all
    return None if any(real.is_relative_to(root.resolve()) for root in roots) else real
