"""Which graders of a stimulus can go along with an exported task, and as what plain data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from valkyrie.grade.builtin.commands import RunCommandGrader
from valkyrie.grade.builtin.completion import ExitSuccessGrader
from valkyrie.grade.builtin.files import FileExistsGrader, FileTextGrader
from valkyrie.grade.builtin.texts import OutputGrader
from valkyrie.grade.js_regex import JsRegex, compile_js
from valkyrie.grade.js_syntax import RegexSyntaxError
from valkyrie.grade.protocol import Need
from valkyrie.grade.seeking import Matching, Sought, Substring
from valkyrie.nouns import Json

if TYPE_CHECKING:
    from valkyrie.grade.protocol import Grader
    from valkyrie.grade.registry import MadeGrader


class CannotGoAlongError(Exception):
    """This grader says nothing outside of this program; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Checks:
    """What an exported task is graded by."""

    checks: Sequence[Json]
    left_out: Sequence[str]

    @property
    def need_answer(self) -> bool:
        """One of them looks at what the agent said."""
        return any(check["about"] == "output" for check in self.checks)


def checks_of(made: Sequence[MadeGrader], *, answers: bool) -> Checks:
    """The graders as checks; `answers`: the agent is told where to leave its final answer."""
    checks: list[Json] = []
    left_out: list[str] = []
    for one in made:
        try:
            if one.spec.turn is not None:
                raise CannotGoAlongError("it looks at one turn of a conversation")
            check = _check(one.grader)
            if check["about"] == "output" and not answers:
                raise CannotGoAlongError("a task directory keeps no final answer (answerFile=none)")
            checks.append({"name": one.name, "weight": one.weight, **check})
        except CannotGoAlongError as why:
            left_out.append(f"grader {one.name}: {why}")
    return Checks(checks, left_out)


def _check(grader: Grader) -> Json:
    if isinstance(grader, OutputGrader):
        return {"about": "output", "wanted": grader.wanted, **_sought(grader.sought)}
    if isinstance(grader, ExitSuccessGrader):
        return {"about": "output", "only_there": True}
    if isinstance(grader, FileExistsGrader):
        return {"about": "files", "glob": grader.glob.pattern, "only_there": True, "wanted": grader.wanted}
    if isinstance(grader, FileTextGrader):
        return {
            "about": "files",
            "glob": grader.glob.pattern,
            "wanted": grader.wanted,
            **_sought(grader.sought),
        }
    if isinstance(grader, RunCommandGrader):
        return _command(grader)
    raise CannotGoAlongError(_why(grader))


def _why(grader: Grader) -> str:
    if Need.JUDGE in grader.needs:
        return "it asks a model"
    if Need.DIFF in grader.needs:
        return "it needs the state before the agent"
    if Need.PROGRAMS in grader.needs:
        return "its program is given the transcript"
    if grader.needs:
        return "it is not part of what is exported"
    return "it looks at the transcript"


def _sought(sought: Sought) -> Json:
    if isinstance(sought, Substring):
        return {"contains": sought.text, "case_sensitive": sought.case_sensitive}
    if isinstance(sought, Matching):
        return _pattern(sought.pattern)
    raise CannotGoAlongError("it is not part of what is exported")


def _pattern(pattern: JsRegex) -> Json:
    """The pattern as Python's own `re` reads it."""
    try:
        compiled = compile_js(pattern.source)
        flags = re.IGNORECASE if pattern.source.startswith("(?") and compiled.flags & re.IGNORECASE else 0
        re.compile(compiled.pattern, flags)
    except (re.error, RegexSyntaxError) as error:
        raise CannotGoAlongError(f"Python's re does not take its pattern: {error}") from None
    return {"pattern": compiled.pattern, "flags": int(flags)}


def _command(grader: RunCommandGrader) -> Json:
    program = grader.program
    return {
        "about": "command",
        "argv": list(grader.argv),
        "exit_code": grader.exit_code,
        "sub_path": program.sub_path,
        "env": dict(program.env),
        "timeout": program.timeout,
        "stdout": [
            *(_contains(text) for text in grader.stdout_contains),
            *(_matches(pattern, wanted=True) for pattern in grader.stdout_matches),
            *(_matches(pattern, wanted=False) for pattern in grader.stdout_not_matches),
        ],
        "stderr": [_contains(text) for text in grader.stderr_contains],
    }


def _contains(text: str) -> Json:
    return {"contains": text, "case_sensitive": True, "wanted": True, "says": f'does not have "{text}"'}


def _matches(pattern: JsRegex, *, wanted: bool) -> Json:
    says = f"{'does not match' if wanted else 'matches'} /{pattern.source}/"
    return {**_pattern(pattern), "wanted": wanted, "says": says}
