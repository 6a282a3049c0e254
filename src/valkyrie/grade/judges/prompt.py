"""`prompt`: one model judges, by the author's words and the stimulus's rubric."""

from __future__ import annotations

from typing import ClassVar

from valkyrie.grade.base import BuiltIn
from valkyrie.grade.config import Config
from valkyrie.grade.judges.config import Judge, Judging, read_prompt
from valkyrie.grade.judges.questions import ask_for_grade, cited
from valkyrie.grade.protocol import GraderInput, GraderResult, Need
from valkyrie.specs.model import Finding, GraderSpec, Stimulus


class PromptGrader(BuiltIn):
    """A model's grade, normalised to 0..1; it passes from the threshold on."""

    type: ClassVar[str] = "prompt"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.JUDGE})

    def read(self, config: Config) -> None:
        self.judging = read_prompt(config)
        self.needs = self.judging.needs  # type: ignore[misc]  # more than its class where evidence says so

    @property
    def judges(self) -> tuple[Judge, ...]:
        """Who is asked."""
        return (self.judging.judge,)

    def check(self, stimulus: Stimulus) -> list[Finding]:
        """What is doubtful about it for this stimulus."""
        return nothing_to_judge_by(self.spec, self.judging, stimulus)

    async def look(self, given: GraderInput) -> GraderResult:
        """Ask the judge. Raises JudgeError, GraderError or UserError: never a fail for want of an answer."""
        answered = await ask_for_grade(self.spec, self.judging, self.judging.judge, given)
        grade, scale = answered.value, self.judging.scale
        normal = scale.normal(grade.overall)
        return GraderResult(
            name=self.spec.label,
            type=self.type,
            passed=self.judging.passes(normal),
            score=normal,
            evidence=cited(grade, self.judging),
            kind="llm",
            details=grade.details(scale),
            usage=answered.usage,
        )


def nothing_to_judge_by(spec: GraderSpec, judging: Judging, stimulus: Stimulus) -> list[Finding]:
    """A warning where there is neither a prompt nor a rubric."""
    if judging.prompt or judging.criteria or stimulus.rubric:
        return []
    message = (
        f"{spec.label}: stimulus {stimulus.name!r} has no rubric and the grader no `prompt`, so the judge "
        "goes by built-in criteria (done, correct, honest). Write what counts here."
    )
    return [Finding("judge-without-criteria", "warning", message, spec.place)]
