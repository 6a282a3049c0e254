"""AIME, GSM8K, GPQA Diamond and ARC-AGI-2: questions whose answer is written to a file and compared."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from valkyrie.benchmarks.named import conversion
from valkyrie.benchmarks.named.conversion import (
    ANSWER,
    ConverterOptions,
    TaskDraft,
    answer_solution,
    answer_tests,
    fenced,
    fill,
)
from valkyrie.benchmarks.named.graders import file_solution, python_tests
from valkyrie.errors import UsageError

_AIME = """\
Solve the following problem. Its answer is an integer from 0 to 999.

Write only that integer, in digits, to the file `@ANSWER@`.

## Problem

@PROBLEM@
"""
AIME_RULE = "if [[ $given =~ ^[0-9]{1,3}$ ]] && (( 10#$given == 10#$expected )); then reward=1; fi"
_GSM8K = """\
Solve the following problem. Its answer is a number.

Write only that number, in digits and without a unit, to the file `@ANSWER@`.

## Problem

@PROBLEM@
"""
_FINAL = re.compile(r"#### *(-?[0-9][0-9.,]*)\s*$")
# Both numbers in one form: no commas, no leading zeros, no zeros at the end of a fraction, no sign of 0.
GSM8K_RULE = r"""
canonical() {
    number=
    local text=${1//,/} sign whole part
    [[ $text =~ ^([+-]?)\$?([+-]?)([0-9]*)(\.([0-9]*))?$ ]] || return 1
    sign=${BASH_REMATCH[1]}${BASH_REMATCH[2]} whole=${BASH_REMATCH[3]} part=${BASH_REMATCH[5]}
    [[ -n $whole$part && ${#sign} -le 1 ]] || return 1
    whole=${whole#"${whole%%[!0]*}"}
    part=${part%"${part##*[!0]}"}
    number=${whole:-0}${part:+.$part}
    if [[ $sign == - && $number != 0 ]]; then number=-$number; fi
}
canonical "$expected" || exit 1
expected=$number
if canonical "$given" && [[ $number == "$expected" ]]; then reward=1; fi
"""
_GPQA = """\
Answer the following question. Exactly one of the choices is right; think it through step by step.

Write only its letter (A, B, C or D) to the file `@ANSWER@`.

## Question

@QUESTION@

## Choices

@CHOICES@
"""
GPQA_RULE = 'if [[ ${given^^} =~ ^[ABCD]$ && ${given^^} == "$expected" ]]; then reward=1; fi'
_GPQA_CHOICES = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
SEED = 42


def convert_aime(source: Path, options: ConverterOptions) -> Iterator[TaskDraft]:
    """`id`, `problem`, `answer`, in small letters or with a capital, as published in several places."""
    _ = options
    for file in conversion.files_of(source, "eval/data/aime"):
        for record in conversion.read_records(file):
            number = record.text("id", "ID")
            problem = record.text("problem", "Problem", "question")
            answer = record.text("answer", "Answer").strip()
            if not re.fullmatch("[0-9]{1,3}", answer):
                raise record.problem(f"has the answer {answer[:40]!r}, not an integer from 0 to 999")
            expected = str(int(answer))
            yield TaskDraft(
                id=f"aime_{number.strip().lower()}",
                source_id=number,
                record_sha256=record.sha256,
                instruction=fill(_AIME, answer=ANSWER, problem=problem.strip()),
                tests=answer_tests(expected, AIME_RULE),
                solution=answer_solution(expected),
                config={"agent": {"timeout_sec": 3000.0}},
                keywords=("mathematics",),
            )


def convert_gsm8k(source: Path, options: ConverterOptions) -> Iterator[TaskDraft]:
    """`question` and `answer`, whose last line is `#### NUMBER`. Tasks are numbered by their line."""
    _ = options
    file = conversion.file_of(source, ("test.jsonl*", "test-*"), "grade_school_math/data", "main")
    for number, record in enumerate(conversion.read_records(file)):
        question = record.text("question")
        found = _FINAL.search(record.text("answer"))
        if found is None:
            raise record.problem("has an answer without `#### NUMBER` at its end")
        expected = found[1].replace(",", "").rstrip(".")
        yield TaskDraft(
            id=f"gsm8k_{number:04}",
            source_id=str(number),
            record_sha256=record.sha256,
            instruction=fill(_GSM8K, answer=ANSWER, problem=question.strip()),
            tests=answer_tests(expected, GSM8K_RULE),
            solution=answer_solution(expected),
            keywords=("mathematics",),
        )


def convert_gpqa(source: Path, options: ConverterOptions) -> Iterator[TaskDraft]:
    """The published order has the right answer first: choices are shuffled by the number of the row."""
    _ = options
    file = conversion.file_of(source, ("gpqa_diamond.*",))
    for row, record in enumerate(conversion.read_records(file)):
        question = record.text("Question").strip()
        texts = [record.text(column).strip() for column in _GPQA_CHOICES]
        order = list(range(len(texts)))
        random.Random(SEED + row).shuffle(order)  # noqa: S311 - the same order everywhere is the point
        letter = "ABCD"[order.index(0)]
        choices = "\n\n".join(f"({name}) {texts[at]}" for name, at in zip("ABCD", order, strict=True))
        domain = record.get("High-level domain")
        yield TaskDraft(
            id=f"gpqa_{row:03}",
            source_id=str(record.get("Record ID") or row),
            record_sha256=record.sha256,
            instruction=fill(_GPQA, answer=ANSWER, question=question, choices=choices),
            tests=answer_tests(letter, GPQA_RULE),
            solution=answer_solution(letter),
            config={"agent": {"timeout_sec": 3600.0}},
            metadata={"domain": str(domain)} if domain else {},
            keywords=("science", "multiple choice"),
        )


# ARC-AGI-2: one task per puzzle, two attempts per test input.

GRIDS = "/app/answer.json"
LARGEST = 30
_ARC = """\
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
_ARC_FORM = '[{"attempt_1": [[0, 1], [2, 3]], "attempt_2": [[0, 0], [2, 3]]}]'


def convert_arc(source: Path, options: ConverterOptions) -> Iterator[TaskDraft]:
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
                _ARC,
                answer=GRIDS,
                form=fenced(_ARC_FORM, "json"),
                pairs=fenced(_grid_lines(train), "json"),
                inputs=fenced(_grid_lines([pair["input"] for pair in test]), "json"),
            ),
            tests=python_tests("grids", {"expected.json": expected}),
            solution=file_solution(GRIDS, json.dumps(gold) + "\n"),
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


def _grid_lines(items: list[Any]) -> str:
    return "[\n" + ",\n".join(json.dumps(item) for item in items) + "\n]"
