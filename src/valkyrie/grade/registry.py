"""From the entries of a spec to graders that can be asked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from valkyrie.errors import ValkyrieError
from valkyrie.grade.base import BuiltIn
from valkyrie.grade.config import Config
from valkyrie.grade.plugins import GraderRegistry, installed_types, load_one, load_plugins, make_plugin_grader
from valkyrie.grade.protocol import Grader, Need
from valkyrie.grade.types import WHERE, built_in
from valkyrie.specs.model import Finding, GraderSpec, Scoring, SpecError, Stimulus
from valkyrie.suggest import did_you_mean


@dataclass(frozen=True, slots=True)
class MadeGrader:
    """A grader with its name, its weight, and the turn it looks at."""

    grader: Grader
    spec: GraderSpec
    name: str
    weight: float = 1.0

    @property
    def needs(self) -> frozenset[Need]:
        """What must be there for it."""
        return self.grader.needs

    @property
    def is_judge(self) -> bool:
        """It asks a model."""
        return Need.JUDGE in self.needs

    def findings(self) -> list[Finding]:
        """What is doubtful about its config: unknown keys, patterns that are none."""
        config = getattr(self.grader, "config", None)
        return config.findings() if isinstance(config, Config) else []


def make_graders(
    stimulus: Stimulus, *, scoring: Scoring, plugins: Iterable[str] = (), base: Path | None = None
) -> list[MadeGrader]:
    """The graders of a stimulus, in order.

    Raises SpecError with everything that is wrong. Plugins' relative paths are relative to `base`.
    """
    registry = load_plugins(plugins, base)
    made, problems = [], list[Finding]()
    for spec in stimulus.graders:
        try:
            grader = make_grader(spec, registry)
            problems += _unfit(grader, stimulus)
            made.append(MadeGrader(grader, spec, spec.label, weight_of(spec, scoring)))
            # A pattern that is none fails its grader when it is asked; a key nobody reads changes verdicts.
            problems += [one for one in made[-1].findings() if one.code == "grader-config"]
        except SpecError as error:
            problems += error.findings
    if problems:
        raise SpecError(problems)
    return made


def make_grader(spec: GraderSpec, registry: GraderRegistry | None = None) -> Grader:
    """One grader. Raises SpecError for an unknown type or a config it does not take."""
    made_by = _maker(spec, registry or GraderRegistry())
    if _is_turn_wrong(spec.turn):
        raise _problem(spec, "grader-config", f"`turn` is {spec.turn!r}; it must be a whole number from 0.")
    try:
        if made_by.__module__.startswith("valkyrie.grade."):
            ours: Grader = made_by(spec)
            return ours
        return make_plugin_grader(made_by, spec)
    except SpecError:
        raise
    except (ValueError, ValkyrieError) as error:
        raise _problem(spec, "grader-config", str(error)) from error


def check_grader(
    spec: GraderSpec, registry: GraderRegistry | None = None, stimulus: Stimulus | None = None
) -> list[Finding]:
    """Everything wrong or doubtful about an entry, and about it in its stimulus; nothing is graded."""
    try:
        grader = make_grader(spec, registry)
    except SpecError as error:
        return list(error.findings)
    unfit = _doubts(grader, stimulus) if stimulus else []
    return [*MadeGrader(grader, spec, spec.label).findings(), *unfit]


def known_types(registry: GraderRegistry | None = None) -> list[str]:
    """Every type a spec may name: built in, installed, and of these plugins."""
    return sorted({*WHERE, *installed_types(), *(registry.types() if registry else ())})


def weight_of(spec: GraderSpec, scoring: Scoring) -> float:
    """By name, then by type, then its own, then 1."""
    for weight in (scoring.weights.get(spec.label), scoring.weights.get(spec.type), spec.weight):
        if weight is not None:
            if not math.isfinite(weight) or weight < 0:
                raise _problem(spec, "grader-weight", f"its weight is {weight}; it must be 0 or more.")
            return float(weight)
    return 1.0


def judges(made: Sequence[MadeGrader]) -> list[MadeGrader]:
    """Those that ask a model."""
    return [one for one in made if one.is_judge]


def checks(made: Sequence[MadeGrader]) -> list[MadeGrader]:
    """Those that do not."""
    return [one for one in made if not one.is_judge]


def _unfit(grader: Grader, stimulus: Stimulus) -> list[Finding]:
    """Why a grader that is fine by itself cannot speak about this stimulus."""
    return [finding for finding in _doubts(grader, stimulus) if finding.severity == "error"]


def _doubts(grader: Grader, stimulus: Stimulus) -> list[Finding]:
    """What is wrong or doubtful about a grader in this stimulus."""
    check = getattr(grader, "check", None) if isinstance(grader, BuiltIn) else None
    found: list[Finding] = check(stimulus) if check else []
    return found


def _maker(spec: GraderSpec, registry: GraderRegistry) -> Any:
    found = registry.get(spec.type) or built_in(spec.type)
    if found is not None:
        return found
    if spec.type in installed_types():
        return load_one(spec.type)
    near = did_you_mean(spec.type, known_types(registry))
    hint = near or " A plugin that adds it is named with --grader-plugin."
    raise _problem(spec, "unknown-grader-type", f"there is no grader of type {spec.type!r}.{hint}")


def _is_turn_wrong(turn: object) -> bool:
    return turn is not None and (isinstance(turn, bool) or not isinstance(turn, int) or turn < 0)


def _problem(spec: GraderSpec, code: str, message: str) -> SpecError:
    return SpecError([Finding(code, "error", f"{spec.label}: {message}", spec.place)])
