"""A judge before two answers to one task: which is better, and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from benchmark_runner.models.dialect import FunctionTool
from valkyrie.domain import Json
from valkyrie.grade.judges.config import Judge
from valkyrie.grade.judges.conversation import Answered, JudgeQuestion, WrongAnswerError, ask_judge, words
from valkyrie.grade.judges.endpoint import find_endpoint
from valkyrie.grade.judges.evidence import EvidencePiece, Fence, gather, task_of, told_task

if TYPE_CHECKING:
    from valkyrie.grade.protocol import GraderInput

Winner = Literal["A", "B", "tie"]
MAGNITUDES = {"much-better": 1.0, "slightly-better": 0.4, "equal": 0.0}
_TOOL = FunctionTool(
    "submit_comparison",
    "Submit which response is better. Call it exactly once, when you have decided.",
    {
        "type": "object",
        "properties": {
            "reasoning": {"type": "string", "description": "What tells them apart, in a few sentences."},
            "winner": {"type": "string", "enum": ["A", "B", "tie"]},
            "magnitude": {"type": "string", "enum": list(MAGNITUDES), "description": "`equal` for a tie."},
        },
        "required": ["reasoning", "winner", "magnitude"],
    },
)


@dataclass(frozen=True, slots=True)
class Preference:
    """Which of two a judge prefers."""

    winner: Winner
    magnitude: str
    reasoning: str

    @property
    def score(self) -> float:
        """From −1 (A is much better) to 1 (B is much better)."""
        return MAGNITUDES[self.magnitude] * {"A": -1.0, "tie": 0.0, "B": 1.0}[self.winner]


async def ask_for_preference(
    prompt: str, judge: Judge, a: GraderInput, b: GraderInput
) -> Answered[Preference]:
    """Return one judge's preference between two trials of one stimulus, in this order."""
    endpoint = find_endpoint(judge, a.asking)
    shown = gather(a, None), gather(b, None)
    return await ask_judge(endpoint, lambda share: _question(prompt, (a, b), shown, share / 2))


def _question(
    prompt: str,
    pair: tuple[GraderInput, GraderInput],
    shown: tuple[Sequence[EvidencePiece], Sequence[EvidencePiece]],
    share: float,
) -> JudgeQuestion[Preference]:
    fence, given = Fence(), pair[0]
    system = (
        "You compare two responses, A and B, of AI agents to the same task. Judge the responses, not their "
        "order, length or style; a response is better when it does more of what was asked, more correctly, "
        "or with fewer harmful side effects.\n\n"
        f"{fence.rule()}\n\n"
        "When you have decided, call the tool submit_comparison exactly once: `much-better` for a difference "
        "that matters to whoever asked, `slightly-better` for a small one, `tie` and `equal` for none. "
        "If you are told to give a number, express what it would have said in these words."
    )
    parts = ["# The task", *(_tasks(pair, fence) or ["(not recorded)"])]
    if prompt:
        parts += ["# How to judge", prompt]
    if given.stimulus.rubric:
        parts += ["# Rubric", "\n".join(f"- {text}" for text in given.stimulus.rubric)]
    for name, pieces in zip("AB", shown, strict=True):
        parts.append(f"# Response {name}")
        parts += [
            fence.around(f"response {name}, {piece.title}", piece.text, int(piece.most * share))
            for piece in pieces
        ]
    parts.append("Judge now, by the rules above only: call submit_comparison exactly once.")
    return JudgeQuestion(system, "\n\n".join(parts), _TOOL, read_preference)


def _tasks(pair: tuple[GraderInput, GraderInput], fence: Fence) -> list[str]:
    """Return the task once where both trials tell the same, as each tells it where their records differ."""
    a, b = pair
    if not a.task_from_record or task_of(a) == task_of(b):
        told = [told_task(a, fence, "the task")]
    else:
        told = [told_task(a, fence, "the task, response A"), told_task(b, fence, "the task, response B")]
    return [text for text in told if text]


def read_preference(call: Json) -> Preference:
    """The preference of a call. Raises WrongAnswerError."""
    winner, magnitude = call.get("winner"), call.get("magnitude")
    if winner not in ("A", "B", "tie"):
        raise WrongAnswerError("winner must be A, B or tie.")
    if magnitude not in MAGNITUDES:
        raise WrongAnswerError(f"magnitude must be one of {', '.join(MAGNITUDES)}.")
    if (winner == "tie") != (magnitude == "equal"):
        raise WrongAnswerError("winner `tie` and magnitude `equal` go together.")
    return Preference(winner, magnitude, words(call.get("reasoning")))
