"""AIME, GSM8K and GPQA Diamond: questions with one short answer, written to a file and compared."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

from valkyrie.benchmarks.named import conversion
from valkyrie.benchmarks.named.conversion import (
    ANSWER,
    ConverterOptions,
    TaskDraft,
    answer_solution,
    answer_tests,
    fill,
)

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
