"""HumanEval and BigCodeBench: a Python function in a file, run with the record's own checks or unit tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from valkyrie.benchmarks.named import conversion
from valkyrie.benchmarks.named.conversion import ConverterOptions, PublishedRecord, TaskDraft, fenced, fill
from valkyrie.benchmarks.named.graders import file_solution, program_tests

ANSWER = "/app/solution.py"
HUMANEVAL_TIMEOUT_S = 10.0
"""The published harness allows 3 s, which a busy machine can take to start Python."""
_HUMANEVAL = """\
Write the Python function that the following code begins; its docstring says what it must do.

Save the whole function, with its signature and every import and helper it needs, as `@ANSWER@`. It is
graded by calling `@ENTRY_POINT@` with inputs you do not see.

@PROMPT@
"""


def convert_humaneval(source: Path, options: ConverterOptions) -> Iterator[TaskDraft]:
    """`task_id`, `prompt`, `entry_point`, `canonical_solution`, `test` (which defines `check`)."""
    _ = options
    file = conversion.file_of(source, ("HumanEval.jsonl*", "test-*"), "data", "openai_humaneval")
    for record in conversion.read_records(file):
        task_id, prompt, name = (record.text(key) for key in ("task_id", "prompt", "entry_point"))
        number = task_id.rpartition("/")[2]
        if not re.fullmatch("[0-9]+", number) or not name.isidentifier():
            raise record.problem(f"is {task_id[:40]!r} about {name[:40]!r}, not HumanEval/N about a function")
        check = f"{record.text('test')}\ncheck({name})"
        yield TaskDraft(
            id=f"humaneval_{int(number):03}",
            source_id=task_id,
            record_sha256=record.sha256,
            instruction=fill(_HUMANEVAL, answer=ANSWER, entry_point=name, prompt=fenced(prompt, "python")),
            # Imports and helpers of the prompt stay there for solutions that lean on them.
            tests=program_tests(ANSWER, prompt, check, kind="script", timeout_sec=HUMANEVAL_TIMEOUT_S),
            solution=file_solution(ANSWER, prompt + record.text("canonical_solution")),
            keywords=("python",),
        )


# BigCodeBench, complete and instruct.

BIGCODEBENCH_TIMEOUT_S = 241.0
VERSION = "v0.1.4"
"""What the harness takes of the published versions."""
_COMPLETE = """\
Write the Python function that the following code begins; its docstring says what it must do.

Save the whole function, with its signature and every import and helper it needs, as `@ANSWER@`. It is
graded by unit tests you do not see.

@PROMPT@
"""
_INSTRUCT = """\
@PROMPT@

Save the whole function, with its signature and every import and helper it needs, as `@ANSWER@`. It is
graded by unit tests you do not see.
"""
# The image of the harness holds the data set, answers included. Its user shows that this is that image:
# on any other root the line fails and removes nothing.
_DOCKERFILE = """\
FROM bigcodebench/bigcodebench-evaluate:latest
USER root
RUN id bigcodebenchuser && rm -rf /root/.cache /home/bigcodebenchuser/.cache /bigcodebench
ENTRYPOINT []
WORKDIR /app
"""
_CONFIG = {
    "verifier": {"timeout_sec": 480.0},
    "environment": {"cpus": 2, "memory_mb": 4096, "storage_mb": 10240, "build_timeout_sec": 3600.0},
}


def convert_bigcodebench(source: Path, options: ConverterOptions) -> Iterator[TaskDraft]:
    """Both variants have the same tests and solution; only what the agent is told differs."""
    instruct = options.variant == "instruct"
    file = conversion.file_of(source, (f"*{VERSION}*",), "data")
    for record in conversion.read_records(file):
        task_id = record.text("task_id")
        number = task_id.rpartition("/")[2]
        if not re.fullmatch("[0-9]+", number):
            raise record.problem(f"has the id {task_id[:40]!r}, not BigCodeBench/N")
        complete, tests = record.text("complete_prompt"), record.text("test")
        prompt = record.text("instruct_prompt") if instruct else fenced(complete, "python")
        yield TaskDraft(
            id=f"bigcodebench_{int(number):04}",
            source_id=task_id,
            record_sha256=record.sha256,
            instruction=fill(_INSTRUCT if instruct else _COMPLETE, answer=ANSWER, prompt=prompt.strip()),
            tests=program_tests(
                ANSWER,
                f"{record.text('code_prompt')}\n    pass\n",
                tests,
                kind="unittest",
                timeout_sec=BIGCODEBENCH_TIMEOUT_S,
                needs=_libraries(record),
            ),
            solution=file_solution(ANSWER, f"{complete}\n{record.text('canonical_solution')}"),
            environment={"Dockerfile": _DOCKERFILE},
            config=_CONFIG,
            keywords=("python",),
        )


def _libraries(record: PublishedRecord) -> list[str]:
    """Return names of the modules a task imports, from a list or the text of one."""
    given = record.get("libs") or []
    try:
        names = ast.literal_eval(given) if isinstance(given, str) else given
    except (ValueError, SyntaxError, RecursionError):
        names = None
    if not isinstance(names, list) or not all(
        isinstance(name, str) and name.isidentifier() for name in names
    ):
        raise record.problem(f"has `libs` {str(given)[:60]!r}, not a list of modules")
    return names
