"""What a grader is: a check that turns what happened into a score 0..1, a verdict and evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from valkyrie.nouns import Json
from valkyrie.specs.model import GraderSpec, Stimulus
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
class Ran:
    """How a grader's program ended; output is bounded."""

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool = False
    verdict: str | None = None
    """What it wrote to the file it was told of; None when it wrote none."""


class Workbench(Protocol):
    """Where graders' programs run; each on a fresh copy, so that none sees what another did."""

    async def run(self, program: Program) -> Ran:
        """Run it to its end or its time limit. Raises GraderError when it cannot be started."""
        ...


@dataclass(frozen=True, slots=True)
class Asking:
    """How judges are asked, by default; a grader's own config wins."""

    model: str | None = None
    provider: str | None = None
    """`openai` or `anthropic`; None is guessed from the model and what is configured."""
    reasoning_effort: str | None = None
    url: str | None = None
    """Where judges' models are served, if not at their vendor's."""


@dataclass(frozen=True, slots=True)
class Given:
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
    asking: Asking = field(default_factory=Asking)
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
        """As results.jsonl has it."""
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
class Verdict:
    """What the graders of one trial say together."""

    score: float
    passed: bool
    results: Sequence[GraderResult]

    @property
    def errors(self) -> Sequence[GraderResult]:
        """Graders that could not tell."""
        return [result for result in self.results if result.status == "error"]


class Grader(Protocol):
    """Made once per entry of a spec, used for every trial. Its config was checked when it was made.

    A class of a plugin has the same shape: it is called with one GraderSpec, raises SpecError (or
    ValueError) for a config it does not take, and names its `type`.
    """

    type: ClassVar[str]
    needs: ClassVar[frozenset[Need]]

    def __init__(self, spec: GraderSpec) -> None: ...

    async def grade(self, given: Given) -> GraderResult:
        """Look, and say. Raises GraderError (tried again where `retryable`) when it cannot tell."""
        ...
