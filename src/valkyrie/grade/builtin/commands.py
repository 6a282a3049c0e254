"""A command on a copy of the workspace: how it ends, and what it prints."""

from __future__ import annotations

from collections.abc import Iterator

from valkyrie.grade.base import BuiltIn, clipped
from valkyrie.grade.bench import DEFAULT_TIMEOUT_S, RESERVED, arguments, bench_of, sub_path
from valkyrie.grade.config import Config
from valkyrie.grade.protocol import Given, GraderResult, Need, Program, Ran

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

    async def look(self, given: Given) -> GraderResult:
        ran = await bench_of(given).run(self.program)
        problems = list(self._problems(ran))
        shown = [f"exit code {ran.exit_code}"]
        shown += [f"{name}: {clipped(text.strip(), _SHOWN)}" for name, text in _printed(ran) if text.strip()]
        return self.found(not problems, "; ".join(problems + shown))

    def _problems(self, ran: Ran) -> Iterator[str]:
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


def _printed(ran: Ran) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("stdout", ran.stdout), ("stderr", ran.stderr)
