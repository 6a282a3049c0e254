"""AIME: one integer from 0 to 999."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from valkyrie.benchmarks.named import records
from valkyrie.benchmarks.named.drafts import (
    ANSWER,
    ConverterOptions,
    TaskDraft,
    answer_solution,
    answer_tests,
    fill,
)

_INSTRUCTION = """\
Solve the following problem. Its answer is an integer from 0 to 999.

Write only that integer, in digits, to the file `@ANSWER@`.

## Problem

@PROBLEM@
"""
_RULE = "if [[ $given =~ ^[0-9]{1,3}$ ]] && (( 10#$given == 10#$expected )); then reward=1; fi"
_CONFIG = {"agent": {"timeout_sec": 3000.0}}


def convert(source: Path, options: ConverterOptions) -> Iterator[TaskDraft]:
    """`id`, `problem`, `answer`, in small letters or with a capital, as published in several places."""
    _ = options
    for file in records.files_of(source, "eval/data/aime"):
        for record in records.read(file):
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
                instruction=fill(_INSTRUCTION, answer=ANSWER, problem=problem.strip()),
                tests=answer_tests(expected, _RULE),
                solution=answer_solution(expected),
                config=_CONFIG,
                keywords=("mathematics",),
            )
