"""Experiment files: the same evals under several variants that differ only where they may."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

from valkyrie.nouns import Json
from valkyrie.permissions import Allowance
from valkyrie.specs.fields import Fields, Notes
from valkyrie.specs.model import Finding, Place
from valkyrie.specs.nodes import Node
from valkyrie.specs.pointers import parse_pointer, set_at
from valkyrie.specs.stimuli import with_environment
from valkyrie.specs.variables import Variables
from valkyrie.specs.yaml_places import load_yaml
from valkyrie.suggest import did_you_mean

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
    place: Place | None = None


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


def _crossed(axes: Mapping[str, tuple[str, list[Any]]], overrides: Json, place: Place) -> dict[str, Variant]:
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


def _check_pointer(pointer: str, place: Place, notes: Notes) -> bool:
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
