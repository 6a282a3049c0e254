"""BigCodeBench, complete and instruct: a Python function in a file, run with its unit tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from valkyrie.benchmarks.named import records
from valkyrie.benchmarks.named.drafts import ConverterOptions, TaskDraft, fenced, fill
from valkyrie.benchmarks.named.graders import file_solution, program_tests
from valkyrie.benchmarks.named.records import PublishedRecord

ANSWER = "/app/solution.py"
TIMEOUT_S = 241.0
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


def convert(source: Path, options: ConverterOptions) -> Iterator[TaskDraft]:
    """Both variants have the same tests and solution; only what the agent is told differs."""
    instruct = options.variant == "instruct"
    file = records.file_of(source, (f"*{VERSION}*",), "data")
    for record in records.read(file):
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
                timeout_sec=TIMEOUT_S,
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
