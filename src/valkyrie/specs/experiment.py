"""Experiment files, and the plan they make: which eval runs under which variant, checked for drift."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from valkyrie.config.permissions import Allowance
from valkyrie.domain import Json
from valkyrie.errors import UsageError
from valkyrie.specs.model import Finding, Project, SourceLocation, SpecError
from valkyrie.specs.project import find_evals, find_project
from valkyrie.specs.reader import BASE, Variables, patched_document
from valkyrie.specs.stimuli import with_environment
from valkyrie.specs.yaml_nodes import Fields, Node, Notes, load_yaml
from valkyrie.text import did_you_mean

MISSING = object()
"""Nothing is there, which is not the same as null."""


def parse_pointer(pointer: str) -> tuple[str, ...]:
    """`/a/b~1c` → ("a", "b/c"); anything that does not begin with a slash points nowhere."""
    if not pointer.startswith("/") or pointer == "/":
        return ()
    return tuple(part.replace("~1", "/").replace("~0", "~") for part in pointer[1:].split("/"))


def format_pointer(parts: Sequence[str]) -> str:
    """The text `parse_pointer` reads."""
    return "".join("/" + part.replace("~", "~0").replace("/", "~1") for part in parts)


def set_at(data: Json, parts: Sequence[str], value: Any) -> None:
    """Put a value there, making the maps on the way."""
    for part in parts[:-1]:
        inner = data.setdefault(part, {})
        if not isinstance(inner, dict):
            inner = data[part] = {}
        data = inner
    data[parts[-1]] = value


def differences(one: Any, other: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Yield every place where two pieces of data differ, as deep as both go."""
    if isinstance(one, dict) and other is MISSING:
        other = {}
    if isinstance(other, dict) and one is MISSING:
        one = {}
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            yield from differences(one.get(key, MISSING), other.get(key, MISSING), (*at, key))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for index, (left, right) in enumerate(zip(one, other, strict=True)):
            yield from differences(left, right, (*at, str(index)))
    elif one is not other and (type(one) is not type(other) or one != other):
        yield at, one, other


# Experiment files: the same evals under several variants that differ only where they may.

VARIANT_PARTS = ("environment", "scoring", "constraints", "tags", "grading_environment")
"""What a variant may lay over an eval besides `defaults` and `overrides`."""
OVERRIDES = (
    "runs",
    "timeout",
    "model",
    "judge_model",
    "executor",
    "reasoning_effort",
    "judge_reasoning_effort",
    "judge_provider",
)
MAX_VARIANTS = 1_000
REMOVED = {"filter": "is no longer part of experiments and is ignored: name the files in `evals`."}
_UNSAFE = re.compile(r"[^A-Za-z0-9._=,+@-]+")


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run every eval."""

    name: str
    patch: Json
    """Laid over each eval; `${eval.parent}` not yet filled in."""
    description: str = ""
    axes: Mapping[str, Any] = field(default_factory=dict)
    """Of a matrix: axis → value."""
    place: SourceLocation | None = None


@dataclass(frozen=True, slots=True)
class Experiment:
    """One experiment file."""

    name: str
    file: Path
    evals: tuple[str, ...]
    variants: Mapping[str, Variant]
    vary: tuple[str, ...]
    """JSON Pointers below which variants may differ."""
    baseline: str | None = None
    description: str = ""
    workers: int | None = None
    findings: tuple[Finding, ...] = ()
    """Warnings."""

    @property
    def folder(self) -> Path:
        """What its relative paths are relative to."""
        return self.file.absolute().parent


def read_experiment(
    path: Path, *, params: Mapping[str, str] | None = None, allowed: Allowance | None = None
) -> Experiment:
    """Read an experiment file; raises SpecError with everything that is wrong."""
    notes = Notes()
    document = Variables(params or {}, (allowed or Allowance()).variables(), notes).fill(load_yaml(path))
    fields = Fields(document, notes, "experiment")
    if document.value is None:
        notes.error("wrong-type", "The experiment file is empty.", document)
    evals = fields.texts("evals") or ()
    if not evals and fields.given:
        notes.error("missing-key", "An experiment needs `evals`: paths or globs of eval files.", document)
    overrides = _overrides(fields, notes)
    variants, vary = _variants(fields, overrides, notes)
    execution = fields.take("execution")
    inner = Fields(execution or Node(None, document.place, document.base), notes, "execution")
    experiment = Experiment(
        name=fields.text("name", required=True) or "",
        file=path,
        evals=evals,
        variants=variants,
        vary=vary,
        baseline=_baseline(fields, variants, notes),
        description=fields.text("description") or "",
        workers=inner.integer("workers", least=1),
    )
    inner.finish()
    fields.finish(others=REMOVED)
    notes.raise_errors()
    return replace(experiment, findings=tuple(notes.findings))


def _variants(fields: Fields, overrides: Json, notes: Notes) -> tuple[dict[str, Variant], tuple[str, ...]]:
    given, matrix, vary = fields.take("variants"), fields.take("matrix"), fields.texts("vary")
    vary = None if vary is None else tuple(map(_older, vary))
    if (given is None) == (matrix is None):
        if fields.given:
            notes.error(
                "missing-key", "An experiment has either `variants` or `matrix`.", matrix or fields.node
            )
        return {}, ()
    if matrix is not None:
        if vary is not None:
            message = "`vary` follows from `matrix`: take it out."
            notes.error("vary-with-matrix", message, fields.key_place("vary"))
        return _matrix(matrix, overrides, notes)
    for pointer in vary or ():
        _check_pointer(pointer, fields.key_place("vary"), notes)
    node = given or fields.node
    Fields(node, notes, "variants")
    entries = node.mapping or {}
    if not entries:
        notes.error("no-variants", "`variants` names none.", node)
    found = {name: _variant(name, one, overrides, notes) for name, one in entries.items()}
    return found, tuple(vary or ())


def _older(pointer: str) -> str:
    """A pointer below `agent_environment` by that key's older name."""
    newer = "/agent_environment"
    return pointer.replace(newer, "/environment", 1) if f"{pointer}/".startswith(f"{newer}/") else pointer


def _variant(name: str, node: Node, overrides: Json, notes: Notes) -> Variant:
    fields = Fields(with_environment(node, notes, f"variant {name!r}"), notes, f"variant {name!r}")
    if not name or name in (".", "..") or "/" in name or "\\" in name:
        notes.error("bad-value", f"A variant's name is a folder's name too: {name!r} cannot be one.", node)
    defaults = {**overrides, **_settings(fields, "defaults", "config", notes=notes)}
    defaults |= _overrides(fields, notes)
    patch: Json = {"defaults": defaults} if defaults else {}
    for part in VARIANT_PARTS:
        if (found := fields.take(part)) is not None:
            patch[part] = found.data()
    variant = Variant(name, patch, fields.text("description") or "", place=node.place)
    fields.finish(near=OVERRIDES, within="overrides")
    return variant


def _overrides(fields: Fields, notes: Notes) -> Json:
    return _settings(fields, "overrides", notes=notes)


def _settings(fields: Fields, *names: str, notes: Notes) -> Json:
    node = fields.take(*names)
    if node is None:
        return {}
    inner = Fields(node, notes, f"{fields.what}: {names[0]}")
    for key in OVERRIDES:
        inner.take(key)
    inner.finish()
    return {key: one.data() for key, one in (node.mapping or {}).items() if key in OVERRIDES}


def _matrix(node: Node, overrides: Json, notes: Notes) -> tuple[dict[str, Variant], tuple[str, ...]]:
    Fields(node, notes, "matrix")
    axes: dict[str, tuple[str, list[Any]]] = {}
    for axis, one in (node.mapping or {}).items():
        fields = Fields(one, notes, f"matrix axis {axis!r}")
        pointer = _older(fields.text("path", required=True) or "")
        values = fields.items("values")
        fields.finish()
        if not values:
            notes.error("no-variants", f"matrix axis {axis!r} needs `values` with at least one.", one)
        elif pointer and _check_pointer(pointer, one.place, notes):
            axes[axis] = (pointer, [value.data() for value in values])
    total = 1
    for _, values in axes.values():
        total *= len(values)
    if not axes or total > MAX_VARIANTS:
        wrong = (
            f"stands for {total:,} variants, {MAX_VARIANTS:,} are allowed" if axes else "has no usable axis"
        )
        notes.error("no-variants", f"`matrix` {wrong}.", node)
        return {}, ()
    return _crossed(axes, overrides, node.place), tuple(pointer for pointer, _ in axes.values())


def _crossed(
    axes: Mapping[str, tuple[str, list[Any]]], overrides: Json, place: SourceLocation
) -> dict[str, Variant]:
    variants: dict[str, Variant] = {}
    numbered = [[(axis, at) for at in range(len(values))] for axis, (_, values) in axes.items()]
    for combination in product(*numbered):
        chosen = {axis: axes[axis][1][at] for axis, at in combination}
        patch: Json = {"defaults": dict(overrides)} if overrides else {}
        for axis, value in chosen.items():
            set_at(patch, parse_pointer(axes[axis][0]), value)
        name = ",".join(f"{axis}={_label(chosen[axis], at)}" for axis, at in combination)
        name = _UNSAFE.sub("-", name)
        while name in variants:
            name += "+"
        variants[name] = Variant(name, patch, axes=chosen, place=place)
    return variants


def _label(value: Any, at: int) -> str:
    """A value in a variant's name; lists and maps are numbered."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return str(value) if isinstance(value, str | int | float) else f"{at + 1}"


def _check_pointer(pointer: str, place: SourceLocation, notes: Notes) -> bool:
    """It is a JSON Pointer into a part of an eval that can be varied."""
    parts = parse_pointer(pointer)
    roots = ("defaults", "config", *VARIANT_PARTS)
    if parts and parts[0] in roots:
        return True
    hint = did_you_mean(parts[0], roots) if parts else ""
    known = ", ".join(f"/{root}" for root in roots if root != "config")
    message = f"{pointer!r} is no JSON Pointer below one of {known} (such as /defaults/model).{hint}"
    notes.error("bad-pointer", message, place)
    return False


def _baseline(fields: Fields, variants: Mapping[str, Variant], notes: Notes) -> str | None:
    node = fields.take("baseline")
    if node is None or not variants:
        return None
    wanted = node.data()
    if isinstance(wanted, dict):
        found = [one.name for one in variants.values() if one.axes and _picks(wanted, one.axes)]
        if len(found) == 1:
            return found[0]
        message = f"`baseline` fits {len(found)} variants of the matrix: give one value for every axis."
    elif str(wanted) in variants:
        return str(wanted)
    else:
        known = ", ".join(variants)
        message = f"`baseline` {wanted!r} is no variant.{did_you_mean(str(wanted), variants)} Known: {known}."
    notes.error("unknown-baseline", message, node)
    return None


def _picks(wanted: Json, axes: Mapping[str, Any]) -> bool:
    return wanted.keys() <= axes.keys() and all(axes[axis] == value for axis, value in wanted.items())


# An experiment → which eval runs under which variant, checked for drift before anything starts.

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
    """Return every eval under every variant (or only these), eval by eval. Drift is a SpecError."""
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
        raise SpecError([Finding("no-evals", "error", message, SourceLocation(experiment.file))])
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


def _filled(data: Any, values: Mapping[str, str], place: SourceLocation | None) -> Any:
    """Return every `${eval.…}` in texts of this data filled in."""
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
    """Return every difference between variants that `vary` does not allow."""
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


__all__ = [
    "Experiment",
    "Variant",
    "VariantPlan",
    "plan_experiment",
    "read_experiment",
]
