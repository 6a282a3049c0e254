"""Things to grade, said in a few words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from valkyrie.grade.graders import grade_all, make_graders
from valkyrie.grade.protocol import GraderInput, GraderResult, Program, ProgramResult
from valkyrie.specs.model import Constraints, GraderSpec, Scoring, Stimulus
from valkyrie.trajectory.transcript import Event, Transcript, measured


def said(text: str) -> Event:
    return Event("assistant_message", {"content": text})


def asked(text: str) -> Event:
    return Event("user_message", {"content": text})


def called(name: str, **arguments: Any) -> Event:
    return Event("tool_call", {"toolName": name, "toolCallId": name, "arguments": arguments})


def returned(name: str, result: str) -> Event:
    return Event("tool_result", {"toolName": name, "toolCallId": name, "success": True, "result": result})


def skill(name: str) -> Event:
    return Event("skill_activation", {"name": name, "path": f"skills/{name}"})


ENDED = Event("turn_end", {"turnId": 0})


def story(*events: Event, output: str | None = None, ms: float = 0.0) -> Transcript:
    """A transcript; its output is the last thing that was said unless told otherwise."""
    spoken = [event.data["content"] for event in events if event.type == "assistant_message"]
    last = output if output is not None else spoken[-1] if spoken else ""
    return Transcript(last, events, measured(events, wall_time_ms=ms))


@dataclass(frozen=True)
class Row:
    """One rule: what a grader is given, and what it must say."""

    rule: str
    type: str
    config: dict[str, Any]
    expected: str
    transcript: Transcript = field(default_factory=lambda: story(said("Hello World"), ENDED))
    turn: int | None = None
    given: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.type}: {self.rule}"


@dataclass
class Bench:
    """A workbench on which every program ends as it was told to."""

    ran: ProgramResult
    programs: list[Program] = field(default_factory=list)

    async def run(self, program: Program) -> ProgramResult:
        self.programs.append(program)
        return self.ran


async def results_of(
    graders: Sequence[GraderSpec],
    transcript: Transcript,
    *,
    constraints: Constraints | None = None,
    scoring: Scoring | None = None,
    plugins: Sequence[str] = (),
    base: Path | None = None,
    turns: Sequence[str] = ("do it",),
    **given: Any,
) -> list[GraderResult]:
    stimulus = Stimulus("one", tuple(turns), tuple(graders), constraints=constraints or Constraints())
    made = make_graders(stimulus, scoring=scoring or Scoring(), plugins=plugins, base=base)
    return await grade_all(made, GraderInput(stimulus, transcript, **given))


async def result_of(grader: GraderSpec, transcript: Transcript, **given: Any) -> GraderResult:
    return (await results_of([grader], transcript, **given))[0]


def outcome(result: GraderResult) -> str:
    """pass, fail, error or skipped."""
    if result.status != "ok":
        return result.status
    assert result.score == 1 if result.passed else 0 <= result.score < 1  # budgets give part of it
    return "pass" if result.passed else "fail"
