"""Compare grids with the expected ones and write the reward. A file of the task's tests."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent
ANSWER = Path("/app/answer.json")
MAX_ANSWER = 1 << 20
ATTEMPTS = ("attempt_1", "attempt_2")


def main() -> None:
    expected = json.loads((TESTS / "expected.json").read_text())
    given = read_answer()
    if not isinstance(given, list) or len(given) != len(expected):
        sys.stdout.write(f"{ANSWER} is missing, or no list with one entry per test input\n")
        given = [None] * len(expected)
    solved = [is_solved(entry, grid) for entry, grid in zip(given, expected)]  # noqa: B905 - old Pythons grade too
    rewards = {"reward": float(all(solved)), "pair_fraction": sum(solved) / len(solved)}
    folder = Path(os.environ.get("VERIFIER_DIR", "/logs/verifier"))
    (folder / "reward.json").write_text(json.dumps(rewards) + "\n")


def read_answer() -> Any:
    try:
        # A link could lead to the expected grids, which are here by now.
        if ANSWER.is_symlink() or not ANSWER.is_file() or ANSWER.stat().st_size > MAX_ANSWER:
            return None
        return json.loads(ANSWER.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None


def is_solved(entry: Any, grid: list[list[int]]) -> bool:
    """One of the two attempts is the grid: same size, same cells, each a plain integer."""
    if not isinstance(entry, dict):
        return False
    return any(is_grid(entry.get(name)) and entry[name] == grid for name in ATTEMPTS)


def is_grid(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(row, list) and all(type(cell) is int for cell in row) for row in value
    )


if __name__ == "__main__":
    main()
