"""Check many things, each by what it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from valkyrie.lint.folders import lint_agent, lint_benchmark, lint_task
from valkyrie.lint.options import LintOptions
from valkyrie.lint.projects import lint_project
from valkyrie.lint.skills import lint_skill
from valkyrie.lint.specs import lint_spec_file, missing_skills
from valkyrie.lint.targets import Target
from valkyrie.specs.experiment import VariantPlan, plan_experiment, read_experiment
from valkyrie.specs.model import EvalSpec, Finding, Place, SpecError
from valkyrie.specs.reading import examine


@dataclass(frozen=True, slots=True)
class Checked:
    """One thing, and what is wrong with it."""

    target: Target
    what: str
    """`eval spec, 3 stimuli`: for people."""
    findings: Sequence[Finding]


class Linter:
    """Checks targets; specs are read once, also for what spans several of them."""

    def __init__(self, options: LintOptions | None = None, ignore: Iterable[str] = ()) -> None:
        self._options = options or LintOptions()
        self._ignored = frozenset(ignore)
        self._specs: dict[Path, tuple[EvalSpec | None, list[Finding]]] = {}

    def check(self, targets: Sequence[Target]) -> list[Checked]:
        """Every target, in order; each finding once."""
        for target in targets:
            if target.kind == "spec":
                self._spec(target.path)  # by the path that was given, before a project finds it by another
        checked: list[Checked] = []
        told: set[Finding] = set()
        for target in targets:
            what, findings = self._check(target)
            fresh = [
                one for one in dict.fromkeys(findings) if one not in told and one.code not in self._ignored
            ]
            told.update(fresh)
            checked.append(Checked(target, what, [_placed(one, target.path) for one in fresh]))
        return checked

    def _check(self, target: Target) -> tuple[str, list[Finding]]:
        if target.kind == "spec":
            spec, findings = self._spec(target.path)
            count = len(spec.stimuli) if spec else 0
            return f"eval spec, {count} stimul{'us' if count == 1 else 'i'}", findings
        if target.kind == "project":
            return "project", lint_project(target.path, self._spec)
        if target.kind == "experiment":
            return "experiment", _lint_experiment(target.path, self._options)
        if target.kind == "skill":
            return "skill", lint_skill(target.path, self._options)
        of_folder: dict[str, Callable[[Path], list[Finding]]] = {
            "task": lint_task,
            "benchmark": lint_benchmark,
            "agent": lint_agent,
        }
        return target.kind, of_folder[target.kind](target.path)

    def _spec(self, file: Path) -> tuple[EvalSpec | None, list[Finding]]:
        key = file.resolve()
        if key not in self._specs:
            self._specs[key] = lint_spec_file(file, self._options)
        return self._specs[key]


def _lint_experiment(file: Path, options: LintOptions) -> list[Finding]:
    """The file, and whether it plans: evals that are there, no drift between variants."""
    found: list[Finding] = []
    try:
        experiment = read_experiment(file, params=options.params, allowed=options.allowed)
        found += experiment.findings
        for plan in plan_experiment(experiment, params=options.params, allowed=options.allowed):
            found += _lint_variant(plan, options)
    except SpecError as error:
        found += error.findings
    return list(dict.fromkeys(found))


def _lint_variant(plan: VariantPlan, options: LintOptions) -> list[Finding]:
    """Skills that only this variant has; the eval file itself says the rest."""
    spec, _ = examine(plan.eval_file, params=options.params, patch=plan.patch, allowed=options.allowed)
    return list(missing_skills(spec)) if spec else []


def _placed(found: Finding, path: Path) -> Finding:
    """Every finding belongs to some file, and is a sentence."""
    message = found.message if found.message.endswith((".", "?", "!")) else f"{found.message}."
    return Finding(found.code, found.severity, message, found.place or Place(path))
