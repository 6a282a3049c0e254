"""What a command line says about linting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from valkyrie.errors import UsageError
from valkyrie.permissions import Allowance


@dataclass(frozen=True, slots=True)
class LintOptions:
    """Everything besides the files themselves that decides what is found."""

    grader_plugins: tuple[str, ...] = ()
    executor_plugins: tuple[str, ...] = ()
    unloaded_graders: tuple[str, ...] = ()
    unloaded_executors: tuple[str, ...] = ()
    """Plugins of the project, which lint does not load: what they add is not known."""
    params: Mapping[str, str] = field(default_factory=dict)
    allowed: Allowance = field(default_factory=Allowance)
    known_domains: tuple[str, ...] | None = None
    """Addresses skills may point to; None: not looked at."""
    allowed_deps: frozenset[str] | None = None
    """What skills may lean on outside themselves, as `type:name:detail`; None: not looked at."""


def read_entries(file: Path) -> tuple[str, ...]:
    """The lines of an allow list; blank lines and lines that begin with `#` say nothing."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{file} is not UTF-8 text (byte {error.start})") from error
    stripped = (line.strip() for line in lines)
    return tuple(line for line in stripped if line and not line.startswith("#"))
