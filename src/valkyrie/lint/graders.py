"""Graders that cannot be made: unknown types, configs they do not take, patterns that are none."""

from __future__ import annotations

import re
from collections.abc import Iterator

from valkyrie.errors import ValkyrieError
from valkyrie.grade.constraints import constraint_graders
from valkyrie.grade.plugins import load_plugins
from valkyrie.grade.registry import check_grader, known_types
from valkyrie.lint.codes import finding
from valkyrie.lint.options import LintOptions
from valkyrie.specs.model import EvalSpec, Finding, GraderSpec, Place

_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,59}")


def grader_findings(spec: EvalSpec, options: LintOptions) -> Iterator[Finding]:
    """Everything wrong with each grader by itself, and with its name among all."""
    yield from _names(spec)
    try:
        registry = load_plugins(options.grader_plugins, spec.folder)
    except ValkyrieError as error:
        yield finding("grader-plugin", str(error), Place(spec.file))
        return
    known = set(known_types(registry))
    for stimulus in spec.stimuli:
        for grader in (*stimulus.graders, *constraint_graders(stimulus.constraints)):
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


def _names(spec: EvalSpec) -> Iterator[Finding]:
    """Names that other tools of this format refuse. A grader that several stimuli share is one."""
    first: dict[str, Place | None] = {}
    for grader in (one for stimulus in spec.stimuli for one in stimulus.graders):
        name = grader.name
        if name is None or (name in first and first[name] == grader.place):
            continue
        if not _NAME.fullmatch(name):
            message = (
                f"the grader {name[:200]!r}: a name has up to 60 of a-z, 0-9 and hyphens, and begins with a "
                "letter or digit; other tools of this format refuse it"
            )
            yield finding("grader-name", message, grader.place)
        elif name in first:
            at = first[name]
            where = f" (first at {at.line}:{at.column})" if at else ""
            message = (
                f"two graders are called {name!r}{where}: other tools of this format want names to differ in "
                "the whole file"
            )
            yield finding("grader-name", message, grader.place)
        first.setdefault(name, grader.place)


def _not_loaded(grader: GraderSpec, options: LintOptions) -> str:
    named = ", ".join(options.unloaded_graders)
    return (
        f"{grader.label}: type {grader.type!r} is not built in; the project's plugins ({named}) may add it, "
        "and lint does not load them. --grader-plugin names one that is loaded and checked"
    )
