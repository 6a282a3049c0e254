"""What a user allows other people's files to take: variables by name, paths outside their folder.

Nothing is allowed by the files themselves. The command line (`--pass-env`, `--allow-path`) and the user's own
config file (`pass_env`) are the only places that allow something.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


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


def outside(path: Path, *roots: Path) -> Path | None:
    """Return where `path` really leads when that is in none of the `roots`, links followed; else None."""
    try:
        real = path.resolve()
    except (OSError, RuntimeError, ValueError):
        return path.absolute()  # a loop of links, or no path at all
    return None if any(real.is_relative_to(root.resolve()) for root in roots) else real
