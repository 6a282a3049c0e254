"""Define what a grader is, the built-in types by name, and constraints reported beside graders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from valkyrie.domain import Json
from valkyrie.errors import ValkyrieError
from valkyrie.specs.model import Constraints, GraderSpec, Stimulus, format_duration
from valkyrie.trajectory.transcript import Transcript

Kind = Literal["code", "llm"]
Status = Literal["ok", "error", "skipped"]
JUDGE_NO_VERDICT = "judge_no_verdict"
"""The cause of a judge's error that answered, and did not grade."""
JUDGE_REFUSED = "judge_refused"
"""The cause of a judge's error whose server takes no question: wrong key, no such model."""
JUDGE_REFUSED_QUESTION = "judge_refused_question"
"""The cause where another question may be taken: servers filter contents, and an agent's words are in it."""

TOKENS_UNREPORTED = "grader_tokens_unreported"
"""The cause of a budget's error that nobody told the tokens of."""


class Need(StrEnum):
    """What must be there for a grader to say anything."""

    WORKSPACE = "workspace"
    """Files as the agent left them."""
    DIFF = "diff"
    """What changed since set-up."""
    PROGRAMS = "programs"
    """A place where programs can run."""
    JUDGE = "judge"
    """A model to ask."""
    GOLDEN_PATCH = "golden_patch"
    """The stimulus's known good answer, if it has one; a file of it is read for nobody else."""


@dataclass(frozen=True, slots=True)
class Program:
    """A command of a grader, run on a copy of the workspace of its own."""

    argv: Sequence[str]
    """A shell's string is `("/bin/sh", "-c", text)`."""
    sub_path: str = ""
    """The folder below the workspace in which it runs; checked to be inside."""
    env: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 60.0
    input: bytes | None = None
    """Given as a file: its path is in the environment as EVALUATE_GRADER_INPUT."""
    asks_verdict: bool = False
    """Whether it writes its verdict to a file whose path is the one line on its standard input."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """How a grader's program ended; output is bounded."""

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool = False
    verdict: str | None = None
    """What it wrote to the file it was told of; None when it wrote none."""


class Workbench(Protocol):
    """Where graders' programs run; each on a fresh copy, so that none sees what another did."""

    async def run(self, program: Program) -> ProgramResult:
        """Run it to its end or its time limit. Raises GraderError when it cannot be started."""
        ...


@dataclass(frozen=True, slots=True)
class JudgeDefaults:
    """How judges are asked, by default; a grader's own config wins."""

    model: str | None = None
    provider: str | None = None
    """`openai` or `anthropic`; None is guessed from the model and what is configured."""
    reasoning_effort: str | None = None
    url: str | None = None
    """Where judges' models are served, if not at their vendor's."""


@dataclass(frozen=True, slots=True)
class GraderInput:
    """What there is to grade."""

    stimulus: Stimulus
    transcript: Transcript
    """Already cut down to the grader's `turn`, where it has one."""
    workspace: Path | None = None
    """A folder of this machine with the final state; read only, contents hostile (symlinks, sizes)."""
    unseen: tuple[str, ...] = ()
    """Paths in it that the agent was not shown, and that count as not there."""
    diff: str | None = None
    turn_diffs: Mapping[int, str] = field(default_factory=dict)
    """The diff as it was after a turn, from 0, of those a grader asks for; `diff` is that of the last."""
    bench: Workbench | None = None
    asking: JudgeDefaults = field(default_factory=JudgeDefaults)
    golden_patch: str | None = None
    task_from_record: bool = False
    """Whether the stimulus was taken from a trial's own record, which the agent may have written."""


@dataclass(frozen=True, slots=True)
class GraderResult:
    """What one grader found."""

    name: str
    type: str
    passed: bool
    score: float
    evidence: str
    kind: Kind = "code"
    status: Status = "ok"
    """`error`: it could not tell, which is no wrong answer. `skipped`: it does not speak here."""
    weight: float = 1.0
    details: Sequence[Json] = ()
    usage: Json | None = None
    """Tokens and cost of judges."""

    def to_json(self) -> Json:
        found: Json = {
            "name": self.name,
            "graderType": self.type,
            "kind": self.kind,
            "passed": self.passed,
            "score": self.score,
            "evidence": self.evidence,
            "weight": self.weight,
        }
        if self.status != "ok":
            found["status"] = self.status
        if self.details:
            found["details"] = list(self.details)
        if self.usage:
            found["usage"] = self.usage
        return found

    @classmethod
    def from_json(cls, data: Json) -> GraderResult:
        """The same, read back."""
        return cls(
            name=data["name"],
            type=data.get("graderType") or data["name"],
            passed=bool(data["passed"]),
            score=float(data["score"]),
            evidence=data.get("evidence", ""),
            kind=data.get("kind", "code"),
            status=data.get("status", "ok"),
            weight=float(data.get("weight", 1.0)),
            details=data.get("details", ()),
            usage=data.get("usage"),
        )


@dataclass(frozen=True, slots=True)
class TrialVerdict:
    """What the graders of one trial say together."""

    score: float
    passed: bool
    results: Sequence[GraderResult]

    @property
    def errors(self) -> Sequence[GraderResult]:
        return [result for result in self.results if result.status == "error"]


class Grader(Protocol):
    """Made once per entry of a spec, used for every trial. Its config was checked when it was made.

    A class of a plugin has the same shape: it is called with one GraderSpec, raises SpecError (or
    ValueError) for a config it does not take, and names its `type`.
    """

    type: ClassVar[str]
    needs: ClassVar[frozenset[Need]]

    def __init__(self, spec: GraderSpec) -> None: ...

    async def grade(self, given: GraderInput) -> GraderResult:
        """Look, and say. Raises GraderError (tried again where `retryable`) when it cannot tell."""
        ...


# Every type of grader by name: where its class is. Nothing is imported before a spec names it.

_BUILTIN = {
    "transcript:OutputGrader": (
        "output-contains",
        "output-not-contains",
        "output-matches",
        "output-not-matches",
    ),
    "transcript:TranscriptGrader": (
        "transcript-contains",
        "transcript-not-contains",
        "transcript-matches",
        "transcript-not-matches",
    ),
    "workspace:FileExistsGrader": ("file-exists", "file-not-exists"),
    "workspace:FileTextGrader": ("file-contains", "file-not-contains", "file-matches", "file-not-matches"),
    "workspace:DiffTextGrader": ("diff-contains", "diff-not-contains"),
    "workspace:DiffEmptyGrader": ("diff-empty",),
    "workspace:ExpectedDiffGrader": ("expected-diff",),
    "programs:RunCommandGrader": ("run-command",),
    "programs:ProgramGrader": ("program",),
    "transcript:CompletedGrader": ("completed",),
    "transcript:ExitSuccessGrader": ("exit-success",),
    "usage:SkillInvocationGrader": ("skill-invocation",),
    "usage:ToolCallsGrader": ("tool-calls",),
    "usage:BudgetGrader": ("token-budget", "turn-count", "error-count"),
    "usage:ToolCallCountGrader": ("tool-call-count",),
    "usage:StepCountGrader": ("step-count",),
    "usage:WallTimeGrader": ("wall-time",),
    "usage:MaxRepeatGrader": ("max-repeat",),
    "usage:LoopOutcomeGrader": ("loop-outcome",),
    "transcript:PassedOnGrader": ("assistant-contains-tool-output",),
    "transcript:CustomMetricsGrader": ("custom-metrics",),
    "transcript:SystemEventGrader": ("system-event",),
    "transcript:PairwiseGrader": ("pairwise",),
    "json_values:JsonSchemaGrader": ("json-schema",),
    "json_values:JsonPathGrader": ("json-path",),
}
_JUDGES = {"prompt": "judges:PromptGrader", "panel": "judges:PanelGrader"}
WHERE: dict[str, str] = {
    **{name: f"builtin.{where}" for where, names in _BUILTIN.items() for name in names},
    **_JUDGES,
}
"""Type → `module:Class` below this package."""


def built_in(name: str) -> Any:
    """The class of a built-in type; None when there is no such type."""
    where = WHERE.get(name)
    if where is None:
        return None
    module, _, attribute = where.partition(":")
    return getattr(import_module(f"valkyrie.grade.{module}"), attribute)


# Constraints: bounds of an author that are checked and reported beside the graders, and score nothing.

ANY_TOOL = "*"


@dataclass(frozen=True, slots=True)
class ConstraintResult:
    """Whether a trial kept to one constraint."""

    name: str
    """Its key, such as `max_turns`."""
    held: bool
    """False also where nothing tells: what an agent does not report is not kept."""
    evidence: str = ""
    enforced: bool = False
    """Broken, it fails its trial."""

    def to_json(self) -> Json:
        found: Json = {"name": self.name, "held": self.held, "evidence": self.evidence}
        return {**found, "enforced": True} if self.enforced else found

    @classmethod
    def read_all(cls, data: Any) -> tuple[ConstraintResult, ...]:
        """The same, read back from a list; what is none is passed over."""
        return tuple(
            cls(
                str(one["name"]),
                one.get("held") is True,
                str(one.get("evidence") or ""),
                one.get("enforced") is True,
            )
            for one in (data if isinstance(data, list | tuple) else ())
            if isinstance(one, dict) and one.get("name")
        )


async def check_constraints(
    constraints: Constraints, given: GraderInput, *, enforced: bool = False
) -> tuple[ConstraintResult, ...]:
    """Return whether the trial kept to each constraint that is set, in the order of the model."""
    return tuple([await _checked(one, given, enforced) for one in constraint_graders(constraints)])


async def _checked(spec: GraderSpec, given: GraderInput, enforced: bool) -> ConstraintResult:
    try:
        found = await built_in(spec.type)(spec).grade(given)
    except ValkyrieError as error:
        return ConstraintResult(spec.label, False, str(error), enforced)
    return ConstraintResult(spec.label, found.passed, found.evidence, enforced)


def constraint_graders(constraints: Constraints) -> Iterator[GraderSpec]:
    """The grader that checks each bound that is set, called by the bound's key."""
    for key, grader_type, config in _rows(constraints):
        yield GraderSpec(grader_type, config, name=key, place=constraints.place)


def _rows(given: Constraints) -> Iterator[tuple[str, str, Json]]:
    for key, grader_type in (
        ("max_turns", "turn-count"),
        ("max_tokens", "token-budget"),
        ("max_tool_calls", "tool-call-count"),
    ):
        if (most := getattr(given, key)) is not None:
            yield key, grader_type, {"max": most}
    for key in ("max_duration", "max_agent_duration"):
        if (longest := getattr(given, key)) is not None:
            yield key, "wall-time", {"max": format_duration(longest)}
    if given.expect_tools:
        yield "expect_tools", "tool-calls", {"required": _tools(given.expect_tools)}
    if given.reject_tools:
        yield "reject_tools", "tool-calls", {"disallowed": _tools(given.reject_tools)}
    if given.expect_skills:
        yield "expect_skills", "skill-invocation", {"required": list(given.expect_skills)}
    if given.reject_skills:
        yield "reject_skills", "skill-invocation", {"disallowed": list(given.reject_skills)}


def _tools(names: Sequence[str]) -> list[str]:
    """`*` is any tool; everything else is a regex, as in `tool-calls`."""
    return [".*" if name == ANY_TOOL else name for name in names]
