"""HumanEval: a Python function in a file, run with the record's own checks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from valkyrie.benchmarks.named import records
from valkyrie.benchmarks.named.drafts import ConverterOptions, TaskDraft, fenced, fill
from valkyrie.benchmarks.named.graders import file_solution, program_tests

ANSWER = "/app/solution.py"
TIMEOUT_S = 10.0
"""The published harness allows 3 s, which a busy machine can take to start Python."""
_INSTRUCTION = """\
Write the Python function that the following code begins; its docstring says what it must do.

Save the whole function, with its signature and every import and helper it needs, as `@ANSWER@`. It is
graded by calling `@ENTRY_POINT@` with inputs you do not see.

@PROMPT@
"""


def convert(source: Path, options: ConverterOptions) -> Iterator[TaskDraft]:
    """`task_id`, `prompt`, `entry_point`, `canonical_solution`, `test` (which defines `check`)."""
    _ = options
    file = records.file_of(source, ("HumanEval.jsonl*", "test-*"), "data", "openai_humaneval")
    for record in records.read(file):
        task_id, prompt, name = (record.text(key) for key in ("task_id", "prompt", "entry_point"))
        number = task_id.rpartition("/")[2]
        if not re.fullmatch("[0-9]+", number) or not name.isidentifier():
            raise record.problem(f"is {task_id[:40]!r} about {name[:40]!r}, not HumanEval/N about a function")
        check = f"{record.text('test')}\ncheck({name})"
        yield TaskDraft(
            id=f"humaneval_{int(number):03}",
            source_id=task_id,
            record_sha256=record.sha256,
            instruction=fill(_INSTRUCTION, answer=ANSWER, entry_point=name, prompt=fenced(prompt, "python")),
            # Imports and helpers of the prompt stay there for solutions that lean on them.
            tests=program_tests(ANSWER, prompt, check, kind="script", timeout_sec=TIMEOUT_S),
            solution=file_solution(ANSWER, prompt + record.text("canonical_solution")),
            keywords=("python",),
        )
