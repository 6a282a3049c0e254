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

VERDICTS = ("stdout", "file")
_CANNOT_START = (126, 127)


class ProgramGrader(BuiltIn):
    """`program`: exit code 0 passes unless the program reports otherwise; any other code never passes.

    With `verdict: stdout` a JSON object on stdout is the report, and is taken when the exit code is 0: what a
    program prints may be the words of the agent's code that it ran. With `verdict: file` the report is a file
    that only the program knows of, and stdout is evidence for people.

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
        self.verdict = config.text("verdict", default=VERDICTS[0])
        if self.verdict not in VERDICTS:
            raise config.wrong(f"`verdict` is {self.verdict!r}; it must be {' or '.join(VERDICTS)}.")

    async def look(self, given: Given) -> GraderResult:
        bench = bench_of(given)
        document = json.dumps(grader_input(given, self.spec.config), ensure_ascii=False, default=str)
        ran = await bench.run(
            Program(
                self.argv,
                self.sub_path,
                self.env,
                self.timeout,
                document.encode(errors="replace"),
                asks_verdict=self.verdict == "file",
            )
        )
        if ran.timed_out:
            raise GraderTimeoutError(f"{self.argv[0]} did not end within {self.timeout:g} s.")
        if self.verdict == "file":
            return self._judged_by_file(ran)
        report = reported_in(ran.stdout) if ran.exit_code == 0 else None
        if report is not None:
            return result_of(report, self.spec, passed=True)
        return self._judged_by_code(ran)

    def _judged_by_code(self, ran: Ran) -> GraderResult:
        if ran.exit_code in _CANNOT_START:
            raise GraderError(f"{self.argv[0]} cannot be started: {_printed(ran)}")
        return self.found(ran.exit_code == 0, f"exit code {ran.exit_code}; {_printed(ran)}")

    def _judged_by_file(self, ran: Ran) -> GraderResult:
        report = reported_in(ran.verdict) if ran.verdict is not None else None
        if report is None and ran.exit_code == 0:
            what = "wrote no verdict" if ran.verdict is None else "wrote a verdict that is no JSON object"
            raise GraderError(
                f"{self.argv[0]} {what}; with `verdict: file` it writes one to the path that it reads from "
                "standard input."
            )
        if report is None:
            return self._judged_by_code(ran)
        result = result_of(report, self.spec, passed=ran.exit_code == 0)
        if result.passed and ran.exit_code != 0:
            return self.found(False, f"exit code {ran.exit_code}, so its verdict does not count")
        return result


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
    """The JSON object with a verdict: all of a text, or its last line."""
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
