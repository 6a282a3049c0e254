"""Graders that run a command or an author's program on a copy of the workspace."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from valkyrie.domain import Json
from valkyrie.errors import GraderError, GraderTimeoutError
from valkyrie.grade.base import KEYS, BuiltIn, Config, clipped, result_of
from valkyrie.grade.protocol import GraderInput, GraderResult, Need, Program, ProgramResult, Workbench
from valkyrie.trajectory.records import to_record

RESERVED = ("EVALUATE_WORKSPACE", "EVALUATE_GRADER_INPUT")
DEFAULT_TIMEOUT_S = 60.0


def bench_of(given: GraderInput) -> Workbench:
    """Return where programs run, or the error that there is no such place."""
    if given.bench is None:
        raise GraderError(
            "there is no sandbox to run a program in. With `valkyrie grade`, name the workspace: "
            "--workspace DIR."
        )
    return given.bench


def sub_path(config: Config) -> str:
    """`sub_path`, which stays inside the workspace."""
    said = config.text("sub_path", default="")
    path = PurePosixPath(said)
    if path.is_absolute() or ".." in path.parts or "\0" in said or "\\" in said:
        raise config.wrong(f"`sub_path` is {said!r}; it must be a folder inside the workspace.")
    return "" if str(path) == "." else str(path)


def arguments(config: Config) -> tuple[str, ...]:
    """`args`: a list of texts, empty ones included."""
    listed = config.value("args", default=[])
    wanted = isinstance(listed, list | tuple) and all(isinstance(one, str | int | float) for one in listed)
    if not wanted or any("\0" in str(one) for one in listed):
        raise config.wrong(f"`args` is {listed!r}; it must be a list of texts.")
    return tuple(str(one).lower() if isinstance(one, bool) else str(one) for one in listed)


# A command on a copy of the workspace: how it ends, and what it prints.

_SHOWN = 500


class RunCommandGrader(BuiltIn):
    """`run-command`: with `args` no shell is used, without them `command` is a shell's line.

    The command is the test, so one that does not end in time fails.
    """

    type = "run-command"
    needs = frozenset({Need.PROGRAMS})

    def read(self, config: Config) -> None:
        command = config.text("command")
        args = arguments(config)
        self.argv = (command, *args) if config.has("args") else ("/bin/sh", "-c", command)
        self.exit_code = config.whole("expected_exit_code", low=0, high=255, default=0)
        self.stdout_contains = config.texts("stdout_contains")
        self.stderr_contains = config.texts("stderr_contains")
        self.stdout_matches = config.pattern_list("stdout_matches")
        self.stdout_not_matches = config.pattern_list("stdout_not_matches")
        self.program = Program(
            argv=self.argv,
            sub_path=sub_path(config),
            env=config.environment("env", RESERVED),
            timeout=config.duration("timeout", default=DEFAULT_TIMEOUT_S),
        )

    async def look(self, given: GraderInput) -> GraderResult:
        ran = await bench_of(given).run(self.program)
        problems = list(self._problems(ran))
        shown = [f"exit code {ran.exit_code}"]
        shown += [
            f"{name}: {clipped(text.strip(), _SHOWN)}" for name, text in _command_output(ran) if text.strip()
        ]
        return self.found(not problems, "; ".join(problems + shown))

    def _problems(self, ran: ProgramResult) -> Iterator[str]:
        if ran.timed_out:
            yield f"it did not end within {self.program.timeout:g} s"
            return
        if ran.exit_code != self.exit_code:
            yield f"exit code {self.exit_code} was expected"
        for name, text, wanted in (
            ("stdout", ran.stdout, self.stdout_contains),
            ("stderr", ran.stderr, self.stderr_contains),
        ):
            yield from (f'{name} does not have "{one}"' for one in wanted if one not in text)
        for pattern in self.stdout_matches:
            if pattern.search(ran.stdout) is None:
                yield f"stdout does not match /{pattern.source}/"
        for pattern in self.stdout_not_matches:
            if pattern.search(ran.stdout) is not None:
                yield f"stdout matches /{pattern.source}/"


def _command_output(ran: ProgramResult) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("stdout", ran.stdout), ("stderr", ran.stderr)


# A program of the author that says what it thinks of a trial.

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

    async def look(self, given: GraderInput) -> GraderResult:
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

    def _judged_by_code(self, ran: ProgramResult) -> GraderResult:
        if ran.exit_code in _CANNOT_START:
            raise GraderError(f"{self.argv[0]} cannot be started: {_printed(ran)}")
        return self.found(ran.exit_code == 0, f"exit code {ran.exit_code}; {_printed(ran)}")

    def _judged_by_file(self, ran: ProgramResult) -> GraderResult:
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


def grader_input(given: GraderInput, config: Json) -> Json:
    """Return what a program finds in the file EVALUATE_GRADER_INPUT."""
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


def _printed(ran: ProgramResult) -> str:
    said = "; ".join(text for text in (ran.stdout.strip(), ran.stderr.strip()) if text)
    return clipped(said, 1000) or "nothing was printed"
