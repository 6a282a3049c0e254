"""Weights that weigh nothing, or not what their author thinks."""

from __future__ import annotations

import re
from collections.abc import Iterator

from valkyrie.grade.registry import weight_of
from valkyrie.lint.codes import finding
from valkyrie.specs.model import EvalSpec, Finding, GraderSpec, Place, SpecError
from valkyrie.suggest import did_you_mean


def weight_findings(spec: EvalSpec) -> Iterator[Finding]:
    """`scoring.weights` against the graders there are."""
    for stimulus in spec.stimuli:
        graders = stimulus.graders
        if graders and all(_weight(grader, spec) == 0 for grader in graders):
            message = f"every grader of {stimulus.name!r} has the weight 0; give one of them a weight"
            yield finding("weights-all-zero", message, stimulus.place)
    weights = spec.scoring.weights
    if not weights:
        return
    place = _weights_place(spec)
    names = {
        word
        for stimulus in spec.stimuli
        for grader in stimulus.graders
        for word in (grader.label, grader.type)
    }
    for word in weights:
        if word not in names:
            hint = did_you_mean(word, names)
            message = f"the weight of {word!r} applies to nothing: no grader has that name or type.{hint}"
            yield finding("unused-weight", message, place)
    total = sum(weights.values())
    if abs(total - 1) > 1e-6:
        message = (
            f"the weights sum to {total:g}, not 1. Scores are divided by the weight of all graders of a "
            "stimulus, so only their proportion counts"
        )
        yield finding("weights-sum", message, place)


def _weight(grader: GraderSpec, spec: EvalSpec) -> float:
    try:
        return weight_of(grader, spec.scoring)
    except SpecError:
        return 1.0  # what is wrong with it is said elsewhere


def _weights_place(spec: EvalSpec) -> Place:
    """The line of `weights:`; the spec as types no longer knows it."""
    try:
        lines = spec.file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return Place(spec.file)
    for number, line in enumerate(lines, start=1):
        if found := re.match(r"[^#]*?\b(weights)\s*:", line):
            return Place(spec.file, number, found.start(1) + 1)
    return Place(spec.file)
