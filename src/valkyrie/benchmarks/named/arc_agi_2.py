"""ARC-AGI-2: one task per puzzle, two attempts per test input."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from valkyrie.benchmarks.named import conversion
from valkyrie.benchmarks.named.conversion import ConverterOptions, TaskDraft, fenced, fill
from valkyrie.benchmarks.named.graders import file_solution, python_tests
from valkyrie.errors import UsageError

ANSWER = "/app/answer.json"
LARGEST = 30
_INSTRUCTION = """\
Below are pairs of grids, input and output. One rule turns each input into its output. Find the rule and
apply it to the test inputs.

A grid is a list of rows, a row a list of integers from 0 to 9 (colours), at most 30 by 30. An output may be
of another size than its input. The same data is in `/app/puzzle.json`.

Write `@ANSWER@`: a JSON list with one entry per test input, in their order, each with one or two guesses:

@FORM@

A test input counts as solved when one of its two guesses is right in size and in every cell.

## Pairs

@PAIRS@

## Test inputs

@INPUTS@
"""
_FORM = '[{"attempt_1": [[0, 1], [2, 3]], "attempt_2": [[0, 0], [2, 3]]}]'


def convert(source: Path, options: ConverterOptions) -> Iterator[TaskDraft]:
    """One file per puzzle, named by its id: `{"train": [{input, output}…], "test": [{input, output}…]}`."""
    _ = options
    for file in conversion.files_of(source, "data/evaluation", "evaluation"):
        puzzle = conversion.read_json(file)
        train, test = _pairs(puzzle, "train", file), _pairs(puzzle, "test", file)
        shown = {"train": train, "test": [{"input": pair["input"]} for pair in test]}
        expected = [pair["output"] for pair in test]
        gold = [{"attempt_1": grid} for grid in expected]
        yield TaskDraft(
            id=file.name.partition(".")[0],
            source_id=file.name.partition(".")[0],
            record_sha256=conversion.digest_of(puzzle),
            instruction=fill(
                _INSTRUCTION,
                answer=ANSWER,
                form=fenced(_FORM, "json"),
                pairs=fenced(_lines(train), "json"),
                inputs=fenced(_lines([pair["input"] for pair in test]), "json"),
            ),
            tests=python_tests("grids", {"expected.json": expected}),
            solution=file_solution(ANSWER, json.dumps(gold) + "\n"),
            environment={"puzzle.json": json.dumps(shown) + "\n"},
            config={"environment": {"memory_mb": 1024, "storage_mb": 2048}},
            metadata={"test_inputs": len(test)},
            keywords=("reasoning",),
        )


def _pairs(puzzle: Any, part: str, file: Path) -> list[dict[str, Any]]:
    """The pairs of a part, nothing but their grids."""
    pairs = puzzle.get(part) if isinstance(puzzle, dict) else None
    if not isinstance(pairs, list) or not pairs:
        raise UsageError(f"{file}: a puzzle has a list {part!r} of pairs of grids; this has none.")
    for number, pair in enumerate(pairs, 1):
        for side in ("input", "output"):
            if not (isinstance(pair, dict) and _is_grid(pair.get(side))):
                raise UsageError(
                    f"{file}: pair {number} of {part!r} has no {side!r} that is a grid "
                    f"(rows of integers 0 to 9, at most {LARGEST} by {LARGEST})."
                )
    return [{"input": pair["input"], "output": pair["output"]} for pair in pairs]


def _is_grid(value: Any) -> bool:
    if not isinstance(value, list) or not 1 <= len(value) <= LARGEST:
        return False
    rows_fit = all(isinstance(row, list) and 1 <= len(row) <= LARGEST for row in value)
    return rows_fit and all(type(cell) is int and 0 <= cell <= 9 for row in value for cell in row)


def _lines(items: list[Any]) -> str:
    return "[\n" + ",\n".join(json.dumps(item) for item in items) + "\n]"
