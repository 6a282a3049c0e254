"""Graders that cannot be made: unknown types, configs they do not take, patterns that are none."""

from __future__ import annotations

from collections.abc import Iterator

from valkyrie.errors import ValkyrieError
from valkyrie.grade.constraints import implicit_graders
from valkyrie.grade.plugins import load_plugins
from valkyrie.grade.registry import check_grader
from valkyrie.lint.codes import finding
from valkyrie.lint.options import LintOptions
from valkyrie.specs.model import EvalSpec, Finding, Place


def grader_findings(spec: EvalSpec, options: LintOptions) -> Iterator[Finding]:
    """Everything wrong with each grader by itself."""
    try:
        registry = load_plugins(options.grader_plugins, spec.folder)
    except ValkyrieError as error:
        yield finding("grader-plugin", str(error), Place(spec.file))
        return
    for stimulus in spec.stimuli:
        for grader in (*stimulus.graders, *implicit_graders(stimulus.constraints)):
            yield from check_grader(grader, registry, stimulus)
            if grader.type == "pairwise":
                message = (
                    f"{grader.label}: `pairwise` is skipped, since one trial alone has nothing to be "
                    "compared with. Write a `prompt` grader, and hold two result folders against each other "
                    "with `valkyrie compare`"
                )
                yield finding("pairwise-grader", message, grader.place)
