"""A judge before each variant and the baseline: `experiment run --compare`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from valkyrie.evals.comparing.comparing import compare_folders
from valkyrie.evals.comparing.judging import JudgePlan
from valkyrie.evals.comparing.record import FolderComparison
from valkyrie.evals.comparing.sides import ResultSide
from valkyrie.evals.comparing.words import judge_sentence, remarks
from valkyrie.evals.experiments import WrittenExperiment
from valkyrie.evals.markdown import escaped
from valkyrie.evals.request import EvalRequest
from valkyrie.evals.variants import ExperimentResult
from valkyrie.evals.writing import RESULTS
from valkyrie.grade.plugins import load_plugins
from valkyrie.grade.protocol import Asking
from valkyrie.specs.reading import read_spec

if TYPE_CHECKING:
    from valkyrie.specs.model import EvalSpec


def judge_variants(
    result: ExperimentResult, written: WrittenExperiment, request: EvalRequest
) -> list[FolderComparison]:
    """Each variant against the baseline, pair by pair, from the results that were written."""
    if result.baseline is None:
        return []
    specs = _specs(request, result.baseline.name)
    plan = JudgePlan(
        asking=Asking(
            model=request.judge_model, url=request.judge_url, reasoning_effort=request.judge_effort
        ),
        specs=specs,
        plugins=load_plugins(request.grader_plugins, specs[0].folder if specs else None),
        always=request.judge_model is not None,
    )
    sides = {one.name: _side(one.name, written) for one in result.variants}
    baseline = sides.pop(result.baseline.name)
    return asyncio.run(_all(baseline, list(sides.values()), plan))


async def _all(
    baseline: ResultSide, treatments: Sequence[ResultSide], plan: JudgePlan
) -> list[FolderComparison]:
    return [await compare_folders(baseline, treatment, plan) for treatment in treatments]


def _specs(request: EvalRequest, baseline: str) -> list[EvalSpec]:
    """The specs as the baseline has them: what judges are told is the same for both sides."""
    items = {item.file: item for item in request.items if item.variant == baseline}
    return [
        read_spec(file, params=request.params, patch=item.patch, allowed=request.allowed).spec
        for file, item in items.items()
    ]


def _side(name: str, written: WrittenExperiment) -> ResultSide:
    from valkyrie.evals.records import read_lines

    file = written.variants[name] / RESULTS
    return ResultSide(name, file, read_lines(file))


def judged_lines(found: Sequence[FolderComparison]) -> list[str]:
    """What judges said, for the report."""
    lines = ["## A/B judge", ""]
    for one in found:
        lines.append(f"- {escaped(judge_sentence(one) or _nobody(one))}")
        lines += [f"  - {escaped(remark)}" for remark in remarks(one)]
    return lines


def _nobody(one: FolderComparison) -> str:
    return (
        f"Nobody judged {one.treatment.name} against {one.baseline.name}: no stimulus has a prompt grader, "
        "and no --judge-model was named."
    )
