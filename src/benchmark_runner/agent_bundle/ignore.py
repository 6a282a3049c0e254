"""`.valkyrieignore`: what of an agent's folder stays at home."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from pathlib import Path

from benchmark_runner.errors import BundleError

FILE = ".valkyrieignore"
LARGEST = 64 * 1024
ALWAYS = (
    "__pycache__",
    ".git",
    ".venv",
    "venv",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".DS_Store",
    ".env",
    ".env.*",
    "*.egg-info",
    "*.pyc",
    "*.pyo",
    "*.pyd",
)
"""Names that are never bundled, whatever the file says."""


@dataclass(frozen=True, slots=True)
class IgnoredPaths:
    """What is left out: names anywhere in the folder, and paths below it."""

    names: tuple[str, ...] = ALWAYS
    paths: tuple[str, ...] = ()

    def leaves_out(self, path: str) -> bool:
        """Whether the file or folder at `path`, relative and with `/`, stays at home."""
        name = path.rpartition("/")[2]
        return any(fnmatch.fnmatchcase(name, pattern) for pattern in self.names) or any(
            fnmatch.fnmatchcase(path, pattern) for pattern in self.paths
        )


def read_ignored(folder: Path) -> IgnoredPaths:
    """What the folder's own file says, one pattern a line, and what is never bundled."""
    file = folder / FILE
    if file.is_symlink() or (file.exists() and not file.is_file()):
        raise BundleError(f"{file} must be a plain file.")
    try:
        with file.open("rb") as opened:
            text = opened.read(LARGEST + 1).decode("utf-8")
    except FileNotFoundError:
        return IgnoredPaths()
    except (OSError, UnicodeDecodeError) as error:
        raise BundleError(f"{file} cannot be read: {error}.") from None
    if len(text) > LARGEST:
        raise BundleError(f"{file} is larger than {LARGEST >> 10} KiB.")
    names: list[str] = [*ALWAYS]
    paths: list[str] = []
    for number, line in enumerate(text.splitlines(), 1):
        pattern = line.strip()
        if not pattern or pattern.startswith("#"):
            continue
        if pattern.startswith("!"):
            raise BundleError(f"{file}, line {number}: a pattern cannot be taken back with `!`.")
        anchored = pattern.rstrip("/").lstrip("/")
        (paths if "/" in pattern.rstrip("/") else names).append(anchored)
    return IgnoredPaths(tuple(names), tuple(paths))
