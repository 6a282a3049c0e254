"""An experiment → which eval runs under which variant, checked for drift before anything starts."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from valkyrie.errors import UsageError
from valkyrie.nouns import Json
from valkyrie.permissions import Allowance
from valkyrie.specs.choosing import find_evals
from valkyrie.specs.experiment_file import Experiment, Variant, read_experiment
from valkyrie.specs.model import Finding, Place, Project, SpecError
from valkyrie.specs.pointers import MISSING, differences, format_pointer, parse_pointer
from valkyrie.specs.project import find_project
from valkyrie.specs.reading import BASE, patched_document
from valkyrie.suggest import did_you_mean

__all__ = ["Experiment", "Variant", "VariantPlan", "plan_experiment", "read_experiment"]

_TEMPLATE = re.compile(r"\$\{eval\.([A-Za-z_]+)\}")
_MOST_DRIFT = 10


@dataclass(frozen=True, slots=True)
class VariantPlan:
    """One eval under one variant."""

    experiment: str
    variant: str
    is_baseline: bool
    eval_file: Path
    eval_name: str
    """The file's path below the experiment's folder, which is the same on every machine."""
    patch: Json
    """For `read_spec(eval_file, patch=…)`: it carries the folder its relative paths belong to."""
    eval_hash: str
    """Of the eval file as it is on disk."""
    config_hash: str
    """Of the eval with the variant laid over it."""

    def record(self) -> Json:
        """As a trial-result line has it under `experiment`."""
        return {
            "name": self.experiment,
            "variant": self.variant,
            "baseline": self.is_baseline,
            "evalFile": self.eval_name,
            "evalHash": self.eval_hash,
            "configHash": self.config_hash,
        }


def plan_experiment(
    experiment: Experiment,
    *,
    only: tuple[str, ...] = (),
    params: Mapping[str, str] | None = None,
    project: Project | None = None,
    allowed: Allowance | None = None,
) -> list[VariantPlan]:
    """Every eval under every variant (or only these), eval by eval. Drift is a SpecError."""
    for name in only:
        if name not in experiment.variants:
            known = ", ".join(experiment.variants)
            hint = did_you_mean(name, experiment.variants)
            raise UsageError(f"There is no variant {name!r} in {experiment.file}.{hint} Known: {known}.")
    project = project or find_project(experiment.folder)
    allow_paths = allowed.paths if allowed else ()
    files = find_evals(experiment.evals, project, experiment.folder, allow_paths)
    if not files:
        patterns = ", ".join(experiment.evals)
        message = f"`evals` matches no file below {experiment.folder}: {patterns}."
        raise SpecError([Finding("no-evals", "error", message, Place(experiment.file))])
    plans: list[VariantPlan] = []
    drift: list[Finding] = []
    for file in files:
        resolved: dict[str, Json] = {}
        for variant in experiment.variants.values():
            patch = _patch(experiment, variant, file)
            resolved[variant.name] = _resolved(file, patch, params, project, allowed)
            if not only or variant.name in only:
                plans.append(_plan(experiment, variant, file, patch, resolved[variant.name]))
        drift += _drift(experiment, file, resolved)
    if drift:
        raise SpecError(drift)
    return plans


def _plan(experiment: Experiment, variant: Variant, file: Path, patch: Json, resolved: Json) -> VariantPlan:
    return VariantPlan(
        experiment=experiment.name,
        variant=variant.name,
        is_baseline=variant.name == experiment.baseline,
        eval_file=file,
        eval_name=Path(os.path.relpath(file, experiment.folder.resolve())).as_posix(),
        patch=patch,
        eval_hash=_digest(file.read_bytes()),
        config_hash=_digest(json.dumps(resolved, sort_keys=True).encode()),
    )


def _digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def _patch(experiment: Experiment, variant: Variant, file: Path) -> Json:
    values = {"parent": file.parent.name, "grandparent": file.parent.parent.name}
    filled = _filled(variant.patch, values, variant.place)
    return {**filled, BASE: str(experiment.folder)}


def _filled(data: Any, values: Mapping[str, str], place: Place | None) -> Any:
    """Every `${eval.…}` in texts of this data filled in."""
    if isinstance(data, dict):
        return {key: _filled(value, values, place) for key, value in data.items()}
    if isinstance(data, list):
        return [_filled(item, values, place) for item in data]
    if not isinstance(data, str):
        return data
    for name in _TEMPLATE.findall(data):
        if name not in values:
            known = ", ".join(f"${{eval.{key}}}" for key in values)
            message = f"`${{eval.{name}}}` is not known.{did_you_mean(name, values)} Known: {known}."
            raise SpecError([Finding("unset-variable", "error", message, place)])
    return _TEMPLATE.sub(lambda match: values[match[1]], data)


def _resolved(
    file: Path,
    patch: Json,
    params: Mapping[str, str] | None,
    project: Project | None,
    allowed: Allowance | None,
) -> Json:
    document: Json = patched_document(
        file, params=params, patch=patch, project=project, allowed=allowed
    ).data()
    if "skills" in (patch.get("environment") or {}):
        # A variant's skills replace those of every stimulus, an eval's own are added to them: not the same.
        document["environment"]["skills"] = {"exactly": document["environment"]["skills"]}
    return document


def _drift(experiment: Experiment, file: Path, resolved: Mapping[str, Json]) -> list[Finding]:
    """Every difference between variants that `vary` does not allow."""
    allowed = [_as_defaults(parse_pointer(pointer)) for pointer in experiment.vary]
    names = list(resolved)
    first = experiment.baseline or names[0]
    found: list[Finding] = []
    for name in names:
        for at, one, other in differences(resolved[first], resolved[name]):
            if any(at[: len(pointer)] == pointer for pointer in allowed):
                continue
            message = (
                f"Variants {first!r} and {name!r} differ at {format_pointer(at)} of {file} "
                f"({_shown(one)} and {_shown(other)}): add it to `vary`, or make them equal."
            )
            place = experiment.variants[name].place
            found.append(Finding("drift", "error", message, place))
    return found[:_MOST_DRIFT]


def _as_defaults(pointer: tuple[str, ...]) -> tuple[str, ...]:
    return ("defaults", *pointer[1:]) if pointer[:1] == ("config",) else pointer


def _shown(value: Any) -> str:
    text = "nothing" if value is MISSING else json.dumps(value, default=str)
    return text if len(text) <= 60 else text[:57] + "…"
