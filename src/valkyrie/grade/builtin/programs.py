"""A program of the author that says what it thinks of a trial."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from valkyrie.errors import GraderError, GraderTimeoutError
from valkyrie.grade.base import BuiltIn, clipped
from valkyrie.grade.bench import DEFAULT_TIMEOUT_S, RESERVED, arguments, bench_of, sub_path
from valkyrie.grade.config import Config
from valkyrie.grade.protocol import Given, GraderResult, Need, Program, Ran
from valkyrie.grade.reported import KEYS, result_of
from valkyrie.nouns import Json

_CANNOT_START = (126, 127)


class ProgramGrader(BuiltIn):
    """`program`: exit code 0 passes, any other fails; a JSON object on stdout with a verdict wins over it.

    The program is the grader, so one that does not start or end in time is a grader's error.
    """

    type = "program"
    needs = frozenset({Need.PROGRAMS})

    def read(self, config: Config) -> None:
        program = config.text("program")
        args = arguments(config)
        shell = config.flag("shell")
        self.argv = ("/bin/sh", "-c", " ".join((program, *args))) if shell else (program, *args)
        self.sub_path = sub_path(config)
        self.timeout = config.duration("timeout", default=DEFAULT_TIMEOUT_S)
        self.env = config.environment("env", RESERVED)

    async def look(self, given: Given) -> GraderResult:
        bench = bench_of(given)
        document = json.dumps(grader_input(given, self.spec.config), ensure_ascii=False, default=str)
        ran = await bench.run(
            Program(self.argv, self.sub_path, self.env, self.timeout, document.encode(errors="replace"))
        )
        if ran.timed_out:
            raise GraderTimeoutError(f"{self.argv[0]} did not end within {self.timeout:g} s.")
        report = reported_in(ran.stdout)
        if report is not None:
            return result_of(report, self.spec, passed=ran.exit_code == 0)
        if ran.exit_code in _CANNOT_START:
            raise GraderError(f"{self.argv[0]} cannot be started: {_printed(ran)}")
        return self.found(ran.exit_code == 0, f"exit code {ran.exit_code}; {_printed(ran)}")


def grader_input(given: Given, config: Json) -> Json:
    """What a program finds in the file EVALUATE_GRADER_INPUT."""
    from valkyrie.trajectory.records import to_record

    stimulus = given.stimulus
    about: Json = {
        "name": stimulus.name,
        "prompt": stimulus.prompt,
        "turns": list(stimulus.turns),
        "rubric": list(stimulus.rubric),
        "tags": {name: list(values) for name, values in stimulus.tags.items()},
    }
    record = to_record(given.transcript, id=stimulus.name, stimulus=about, work_dir="")
    return {"trajectory": record, "stimulus": about, "config": dict(config), "diff": given.diff}


def reported_in(stdout: str) -> Mapping[str, Any] | None:
    """The JSON object with a verdict: all of stdout, or its last line."""
    text = stdout.strip()
    for candidate in (text, text.rpartition("\n")[2]):
        if not candidate.startswith("{"):
            continue
        try:
            found = json.loads(candidate)
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict) and ("passed" in found or "score" in found) and set(found) & set(KEYS):
            return found
    return None


def _printed(ran: Ran) -> str:
    said = "; ".join(text for text in (ran.stdout.strip(), ran.stderr.strip()) if text)
    return clipped(said, 1000) or "nothing was printed"
