"""What had changed in a workspace when a turn but the last had ended, in files beside `workspace.patch`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

MOST_PATCH = 16 << 20
_NAME = re.compile(r"workspace\.turn-([0-9]{1,5})\.patch")


def turn_patch(number: int) -> str:
    """The name of a turn's file."""
    return f"workspace.turn-{number}.patch"


def turn_patches(folder: Path) -> Mapping[int, Path]:
    """Turn → its file, of those in a folder; links are passed over."""
    if not folder.is_dir():
        return {}
    named = ((_NAME.fullmatch(path.name), path) for path in sorted(folder.iterdir()))
    return {
        int(match[1]): path for match, path in named if match and path.is_file() and not path.is_symlink()
    }


def read_turn_patches(folder: Path) -> Mapping[int, str]:
    """Turn → what had changed by then."""
    found = {}
    for number, path in turn_patches(folder).items():
        with path.open("rb") as file:
            found[number] = file.read(MOST_PATCH + 100).decode("utf-8", "replace")
    return found
