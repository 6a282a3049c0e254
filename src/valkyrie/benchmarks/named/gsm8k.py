"""GSM8K: a number."""

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
Solve the following problem. Its answer is a number.

Write only that number, in digits and without a unit, to the file `@ANSWER@`.

## Problem

@PROBLEM@
"""
_FINAL = re.compile(r"#### *(-?[0-9][0-9.,]*)\s*$")
# Both numbers in one form: no commas, no leading zeros, no zeros at the end of a fraction, no sign of 0.
_RULE = r"""
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


def convert(source: Path, options: ConverterOptions) -> Iterator[TaskDraft]:
    """`question` and `answer`, whose last line is `#### NUMBER`. Tasks are numbered by their line."""
    _ = options
    file = records.file_of(source, ("test.jsonl*", "test-*"), "grade_school_math/data", "main")
    for number, record in enumerate(records.read(file)):
        question = record.text("question")
        found = _FINAL.search(record.text("answer"))
        if found is None:
            raise record.problem("has an answer without `#### NUMBER` at its end")
        expected = found[1].replace(",", "").rstrip(".")
        yield TaskDraft(
            id=f"gsm8k_{number:04}",
            source_id=str(number),
            record_sha256=record.sha256,
            instruction=fill(_INSTRUCTION, answer=ANSWER, problem=question.strip()),
            tests=answer_tests(expected, _RULE),
            solution=answer_solution(expected),
            keywords=("mathematics",),
        )
