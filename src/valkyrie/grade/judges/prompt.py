"""`prompt`: one model judges, by the author's words and the stimulus's rubric."""

from __future__ import annotations

from typing import ClassVar

from valkyrie.grade.base import BuiltIn
from valkyrie.grade.config import Config
from valkyrie.grade.judges.asking import ask_for_grade, cited
from valkyrie.grade.judges.config import Judge, read_prompt
from valkyrie.grade.protocol import Given, GraderResult, Need
from valkyrie.specs.model import Finding, GraderSpec, SpecError, Stimulus


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
        """What is wrong with it for this stimulus."""
        return nothing_to_judge_by(self.spec, self.judging.prompt, stimulus)

    async def look(self, given: Given) -> GraderResult:
        """Ask the judge. Raises JudgeError, GraderError or UserError: never a fail for want of an answer."""
        if findings := self.check(given.stimulus):
            raise SpecError(findings)
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


def nothing_to_judge_by(spec: GraderSpec, prompt: str, stimulus: Stimulus) -> list[Finding]:
    """An error where there is neither a prompt nor a rubric."""
    if prompt or stimulus.rubric:
        return []
    message = (
        f"{spec.label}: stimulus {stimulus.name!r} has no rubric and the grader no `prompt`, so a judge has "
        "nothing to judge by. Write one of them."
    )
    return [Finding("judge-without-criteria", "error", message, spec.place)]
