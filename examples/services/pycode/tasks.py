"""The tasks: what is asked, what the agent begins with, and how what its code returned is judged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

TASKS = Path(__file__).parent / "tasks.json"
FAILED = {"the function": "raised"}
"""Stands for the value of a call that raised; equal to nothing that is expected."""


@dataclass(frozen=True)
class Task:
    """One function to write."""

    function: str
    text: str
    arguments: list[list[Any]] = field(repr=False)
    expected: list[Any] = field(repr=False)

    @property
    def statement(self) -> str:
        """What the agent reads."""
        return f"Write a Python function in solution.py, in the folder you are in.\n\n{self.text}\n"

    @property
    def starter(self) -> str:
        """The file the agent finds."""
        return f"def {self.function}(*arguments):\n    raise NotImplementedError\n"

    def grade(self, returned: Mapping[int, Any]) -> dict[str, Any]:
        """What the returned values are worth, by number of the test."""
        passed = [
            number
            for number, wanted in enumerate(self.expected)
            if number in returned and canonical(returned[number]) == canonical(wanted)
        ]
        total = len(self.expected)
        return {
            "resolved": len(passed) == total,
            "score": round(len(passed) / total, 4),
            "tests_passed": len(passed),
            "tests": total,
        }


def load() -> dict[str, dict[str, Task]]:
    """Every dataset with its tasks."""
    content = json.loads(TASKS.read_text(encoding="utf-8"))
    return {
        dataset: {
            task_id: Task(
                entry["function"],
                entry["statement"],
                [arguments for arguments, _ in entry["cases"]],
                [expected for _, expected in entry["cases"]],
            )
            for task_id, entry in tasks.items()
        }
        for dataset, tasks in content.items()
    }


def parsed(line: str) -> tuple[int, Any]:
    """Number and value of a line the runner printed; -1 for any other line.

    Code that prints such lines by itself gains nothing: it must know what is expected.
    """
    try:
        said = json.loads(line)
    except (ValueError, RecursionError):
        return -1, None
    if not isinstance(said, dict) or type(said.get("case")) is not int:
        return -1, None
    return said["case"], said.get("value", FAILED)


def canonical(value: Any) -> str:
    """Values compare as JSON, so that 1 is not True and a tuple is a list."""
    return json.dumps(value, sort_keys=True)
