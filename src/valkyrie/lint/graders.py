"""Graders that cannot be made: unknown types, configs they do not take, patterns that are none."""

from __future__ import annotations

from collections.abc import Iterator

from valkyrie.errors import ValkyrieError
from valkyrie.grade.constraints import implicit_graders
from valkyrie.grade.plugins import load_plugins
from valkyrie.grade.registry import check_grader, known_types
from valkyrie.lint.codes import finding
from valkyrie.lint.options import LintOptions
from valkyrie.specs.model import EvalSpec, Finding, GraderSpec, Place


def grader_findings(spec: EvalSpec, options: LintOptions) -> Iterator[Finding]:
    """Everything wrong with each grader by itself."""
    try:
        registry = load_plugins(options.grader_plugins, spec.folder)
    except ValkyrieError as error:
        yield finding("grader-plugin", str(error), Place(spec.file))
        return
    known = set(known_types(registry))
    for stimulus in spec.stimuli:
        for grader in (*stimulus.graders, *implicit_graders(stimulus.constraints)):
            if grader.type not in known and options.unloaded_graders:
                yield finding("plugin-not-loaded", _not_loaded(grader, options), grader.place)
                continue
            yield from check_grader(grader, registry, stimulus)
            if grader.type == "pairwise":
                message = (
                    f"{grader.label}: `pairwise` is skipped, since one trial alone has nothing to be "
                    "compared with. Write a `prompt` grader, and hold two result folders against each other "
                    "with `valkyrie compare`"
                )
                yield finding("pairwise-grader", message, grader.place)


def _not_loaded(grader: GraderSpec, options: LintOptions) -> str:
    named = ", ".join(options.unloaded_graders)
    return (
        f"{grader.label}: type {grader.type!r} is not built in; the project's plugins ({named}) may add it, "
        "and lint does not load them. --grader-plugin names one that is loaded and checked"
    )
