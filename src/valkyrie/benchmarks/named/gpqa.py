"""GPQA Diamond: one of four letters."""

from __future__ import annotations

import random
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

SEED = 42
_CHOICES = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")
_INSTRUCTION = """\
Answer the following question. Exactly one of the choices is right; think it through step by step.

Write only its letter (A, B, C or D) to the file `@ANSWER@`.

## Question

@QUESTION@

## Choices

@CHOICES@
"""
_RULE = 'if [[ ${given^^} =~ ^[ABCD]$ && ${given^^} == "$expected" ]]; then reward=1; fi'
_CONFIG = {"agent": {"timeout_sec": 3600.0}}


def convert(source: Path, options: ConverterOptions) -> Iterator[TaskDraft]:
    """The published order has the right answer first: choices are shuffled by the number of the row."""
    _ = options
    file = records.file_of(source, ("gpqa_diamond.*",))
    for row, record in enumerate(records.read(file)):
        question = record.text("Question").strip()
        texts = [record.text(column).strip() for column in _CHOICES]
        order = list(range(len(texts)))
        random.Random(SEED + row).shuffle(order)  # noqa: S311 - the same order everywhere is the point
        letter = "ABCD"[order.index(0)]
        choices = "\n\n".join(f"({name}) {texts[at]}" for name, at in zip("ABCD", order, strict=True))
        domain = record.get("High-level domain")
        yield TaskDraft(
            id=f"gpqa_{row:03}",
            source_id=str(record.get("Record ID") or row),
            record_sha256=record.sha256,
            instruction=fill(_INSTRUCTION, answer=ANSWER, question=question, choices=choices),
            tests=answer_tests(letter, _RULE),
            solution=answer_solution(letter),
            config=_CONFIG,
            metadata={"domain": str(domain)} if domain else {},
            keywords=("science", "multiple choice"),
        )
