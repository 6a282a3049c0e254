"""Cut an experiment's plan into shards that run apart, and merge their results again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

from valkyrie import __version__
from valkyrie.artifact_store.disk import disk_errors, whole_file
from valkyrie.benchmarks.eval_spec.source import open_spec
from valkyrie.domain import Json, content_digest
from valkyrie.errors import UsageError, UserError
from valkyrie.evals.plan import EvalItem, EvalRequest, first_options, trials_of
from valkyrie.evals.records import read_results_file, trial_key
from valkyrie.evals.results import Invocation, TrialResult, invocation_of
from valkyrie.ingest.sources import find_results
from valkyrie.ingest.trials import Times, beside, plain
from valkyrie.report.formats import plural

PLAN, MANIFEST, SHARD = "plan-snapshot.json", "experiment-manifest.json", "shard-manifest.json"
STRATEGIES = ("by-stimulus",)
SHOWN = 5
_SHARD = re.compile(r"(\d{1,5})/(\d{1,5})")


@dataclass(frozen=True, slots=True)
class Shard:
    """One of several parts of an experiment, counted from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """`2/4`; UsageError for what is none."""
        match = _SHARD.fullmatch(text.strip())
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise UsageError(f"--shard {text!r}: write which of how many, like 1/4.")
        return cls(int(match[1]), int(match[2]))

    @property
    def folder(self) -> str:
        return f"shard-{self.number}-of-{self.count}"


def plan_snapshot(request: EvalRequest) -> Json:
    """Everything an experiment would run, whichever shard of it is asked for."""
    evals = [_planned(item, request) for item in request.items]
    return {
        "type": "experiment-plan-snapshot",
        "version": 1,
        "valkyrieVersion": __version__,
        "planDigest": content_digest(evals),
        "evals": evals,
    }


def _planned(item: EvalItem, request: EvalRequest) -> Json:
    spec = open_spec(item.file, first_options(item, request)).spec
    about = item.experiment or {}
    stimuli = [one for one in spec.stimuli if item.stimuli is None or one.name in item.stimuli]
    return {
        "evalName": spec.name,
        "evalFile": about.get("evalFile") or item.file.name,
        "evalHash": about.get("evalHash"),
        "configHash": about.get("configHash"),
        "variant": item.variant,
        "model": item.model or spec.defaults.model,
        "runs": spec.defaults.runs if request.runs is None else request.runs,
        "threshold": spec.scoring.threshold if request.threshold is None else request.threshold,
        "plannedStimulusNames": [one.name for one in stimuli],
        "plannedStimulusCount": len(stimuli),
        "stimuli": [{"name": one.name, "runs": trials_of(one, spec, request.runs)} for one in stimuli],
    }


def planned_keys(plan: Json) -> list[str]:
    """The key of every trial of a plan."""
    return [
        trial_key(
            TrialResult(
                one["evalName"],
                stimulus["name"],
                index,
                one["model"],
                None,
                one["variant"],
                eval_file=one["evalFile"],
            )
        )
        for one in plan["evals"]
        for stimulus in one["stimuli"]
        for index in range(stimulus["runs"])
    ]


def sharded(request: EvalRequest, plan: Json, shard: Shard) -> EvalRequest:
    """The request with this shard's stimuli alone: all variants and trials of a stimulus stay together."""
    places = dict.fromkeys(
        (one["evalFile"], name) for one in plan["evals"] for name in one["plannedStimulusNames"]
    )
    chosen = {place for at, place in enumerate(places) if at % shard.count == shard.number - 1}
    if not chosen:
        raise UsageError(
            f"--shard {shard.number}/{shard.count} is empty: the experiment has {len(places)} stimuli. "
            "Use fewer shards."
        )
    items = [
        replace(item, stimuli=names)
        for item, one in zip(request.items, plan["evals"], strict=True)
        if (names := tuple(name for name in one["plannedStimulusNames"] if (one["evalFile"], name) in chosen))
    ]
    return replace(request, items=items, shard=shard.folder)


def manifests(request: EvalRequest, plan: Json, file: Path, shard: Shard | None) -> dict[str, Json]:
    """The files an experiment's folder begins with, by name; `request` is this shard's."""
    about = [item.experiment or {} for item in request.items]
    experiment = {
        "runId": request.run_id,
        "name": about[0].get("name") if about else None,
        "experimentFile": file.name,
        "experimentHash": sha256(file.read_bytes()).hexdigest(),
        "valkyrieVersion": __version__,
        "planDigest": plan["planDigest"],
        "variantNames": list(dict.fromkeys(one["variant"] for one in plan["evals"])),
        "baseline": next((one.get("variant") for one in about if one.get("baseline")), None),
    }
    found: dict[str, Json] = {PLAN: plan, MANIFEST: {"type": "experiment-manifest", "experiment": experiment}}
    if shard is not None:
        found[SHARD] = {
            "type": "experiment-shard-manifest",
            "version": 1,
            "runId": request.run_id,
            "planDigest": plan["planDigest"],
            "shard": shard.number,
            "shards": shard.count,
            "strategy": STRATEGIES[0],
            "selectedShardKeys": planned_keys(plan_snapshot(request)),
            "completedShardKeys": [],
        }
    return found


def read_manifest(folder: Path) -> Json | None:
    """Return what an experiment's folder says of it; None for any other folder."""
    try:
        about = json.loads((folder / MANIFEST).read_bytes())["experiment"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return about if isinstance(about, dict) else None


def complete_shard(folder: Path, trials: Sequence[TrialResult]) -> None:
    """Say in a shard's manifest which of its trials have ended."""
    path = folder / SHARD
    if path.is_file():
        manifest = json.loads(path.read_bytes())
        manifest["completedShardKeys"] = [trial_key(trial) for trial in trials]
        with disk_errors(f"write to {folder}", "output"), whole_file(path) as file:
            file.write((json.dumps(manifest, indent=1) + "\n").encode())


def check_shards(folders: Sequence[Path]) -> None:
    """UserError unless the shards among these folders are all of one run, each there once and complete.

    Folders without a manifest are results like others, and nothing is asked of them.
    """
    found = _shards(folders)
    if not found:
        return
    _check_same(found)
    first = next(iter(found.values()))
    numbers = {int(manifest["shard"]): folder for folder, manifest in found.items()}
    missing = [number for number in range(1, int(first["shards"]) + 1) if number not in numbers]
    if missing:
        said = ", ".join(f"{number}/{first['shards']}" for number in missing[:SHOWN])
        raise UserError(f"Shards are missing: {said}. All of them are merged, or none.", cause="missing")
    _check_complete(found)


def _shards(folders: Sequence[Path]) -> dict[Path, Json]:
    found: dict[Path, Json] = {}
    for folder in folders:
        for path in sorted({*folder.glob(SHARD), *folder.glob(f"**/{SHARD}")}):
            try:
                manifest = json.loads(path.read_bytes())
                wrong = not isinstance(manifest["selectedShardKeys"], list) or not int(manifest["shards"])
            except (OSError, ValueError, KeyError, TypeError):
                wrong = True
            if wrong:
                raise UserError(f"{path} is no manifest of a shard; copy the folder anew.", cause="records")
            found[path.parent.resolve()] = manifest
    return found


def _check_same(found: Mapping[Path, Json]) -> None:
    """One run, one plan, no shard twice."""
    (first_folder, first), *others = found.items()
    for folder, manifest in others:
        for key, what in (("runId", "run"), ("planDigest", "plan"), ("shards", "number of shards")):
            if manifest.get(key) != first.get(key):
                raise UserError(
                    f"{first_folder} and {folder} are not of the same {what} ({first.get(key)} and "
                    f"{manifest.get(key)}): they cannot be merged.",
                    cause="changed",
                )
    seen: dict[str, Path] = {}
    for folder, manifest in found.items():
        for key in manifest["selectedShardKeys"]:
            if (other := seen.setdefault(key, folder)) != folder:
                raise UserError(
                    f"{other} and {folder} both have {key}: leave one of them out.", cause="conflict"
                )


def _check_complete(found: Mapping[Path, Json]) -> None:
    for folder, manifest in found.items():
        completed = set(manifest.get("completedShardKeys") or ())
        open_keys = [key for key in manifest["selectedShardKeys"] if key not in completed]
        if open_keys:
            more = f" and {len(open_keys) - 1} more" if len(open_keys) > 1 else ""
            raise UserError(
                f"{folder} is not complete: {open_keys[0]}{more} did not end. `valk experiment run --resume "
                f"{folder}` goes on.",
                cause="missing",
            )
    planned = {key for folder in found for key in _plan_keys(folder)}
    selected = {key for manifest in found.values() for key in manifest["selectedShardKeys"]}
    if lost := sorted(planned - selected):
        raise UserError(f"No shard has {lost[0]}, which the plan has.", cause="missing")


def _plan_keys(folder: Path) -> Iterator[str]:
    try:
        yield from planned_keys(json.loads((folder / PLAN).read_bytes()))
    except (OSError, ValueError, KeyError, TypeError):
        raise UserError(f"{folder / PLAN} cannot be read; copy the folder anew.", cause="records") from None


# Results of shards put together again: every trial once, and nothing mixed that is not the same.
Slot = tuple[str, str, str | None, str, int]
"""Variant, eval, model, stimulus, trial."""


@dataclass(frozen=True, slots=True)
class _Found:
    trial: TrialResult
    file: Path
    at: str
    """When it was graded, or its results were written; later is greater."""


@dataclass(frozen=True, slots=True)
class MergedResults:
    """What several folders hold together."""

    invocation: Invocation
    files: int
    repeated: int
    """Trials that were there more than once and the same."""
    replaced: int
    """Trials of which only the newest counts."""


def merge(folders: Sequence[Path], *, prefer_newest: bool = False) -> MergedResults:
    """Return all trials of these folders' results. Raises UserError for what contradicts itself."""
    files = list(dict.fromkeys(path.resolve() for folder in folders for path in find_results(folder)))
    found = [one for file in files for one in _read(file)]
    if not found:
        raise UserError("There is no trial in these results: nothing to merge.", cause="no_results")
    _refuse_mixed(found)
    slots: dict[Slot, _Found] = {}
    conflicts: list[str] = []
    repeated = replaced = 0
    for one in found:
        slot = _slot(one.trial)
        known = slots.get(slot)
        if known is None:
            slots[slot] = one
        elif plain(known.trial) == plain(one.trial):
            repeated += 1
        elif prefer_newest:
            replaced += 1
            slots[slot] = max(known, one, key=lambda each: each.at)
        else:
            conflicts.append(f"{_called(slot)}: {known.file} and {one.file}")
    if conflicts:
        raise _refused(conflicts)
    trials = _of_one_run([one.trial for one in slots.values()])
    return MergedResults(invocation_of(trials), len(files), repeated, replaced)


def _read(file: Path) -> list[_Found]:
    written = f"{Times.of(file).at:020.3f}"
    return [
        _Found(_with_files(trial, file), file, trial.graded_at or written)
        for trial in read_results_file(file)
    ]


def _with_files(trial: TrialResult, file: Path) -> TrialResult:
    """With whole paths of what lies beside its results."""
    return replace(
        trial,
        session_log=beside(trial.session_log, file),
        artifacts=beside(trial.artifacts, file),
        patch=beside(trial.patch, file),
    )


def _slot(trial: TrialResult) -> Slot:
    return trial.variant, trial.eval_name, trial.model, trial.stimulus, trial.index


def _called(slot: Slot) -> str:
    variant, name, model, stimulus, index = slot
    return f"{variant} / {name}{f' [{model}]' if model else ''} / {stimulus} / trial {index + 1}"


def _refuse_mixed(found: Sequence[_Found]) -> None:
    """One experiment, and of each eval under each variant one configuration."""
    names: dict[str, Path] = {}
    configurations: dict[tuple[str, str], tuple[str, Path]] = {}
    for one in found:
        about = one.trial.experiment or {}
        if isinstance(name := about.get("name"), str):
            names.setdefault(name, one.file)
        if isinstance(digest := about.get("configHash"), str):
            key = (one.trial.variant, one.trial.eval_name)
            known, file = configurations.setdefault(key, (digest, one.file))
            if known != digest:
                raise UserError(
                    f"{' / '.join(key)} ran with different configurations in {file} and {one.file}: they "
                    "cannot be merged. Leave one of them out.",
                    cause="changed",
                )
    if len(names) > 1:
        said = ", ".join(f"{name!r} ({file})" for name, file in names.items())
        raise UserError(f"These are results of different experiments: {said}.", cause="changed")


def _refused(conflicts: Sequence[str]) -> UserError:
    more = f"\n… and {len(conflicts) - SHOWN} more" if len(conflicts) > SHOWN else ""
    lines = "".join(f"\n  {one}" for one in conflicts[:SHOWN])
    have = "trial has" if len(conflicts) == 1 else "trials have"
    return UserError(
        f"{len(conflicts)} {have} different results in two places; `--prefer newest` takes the later ones:"
        f"{lines}{more}",
        cause="conflict",
    )


def _of_one_run(trials: Sequence[TrialResult]) -> list[TrialResult]:
    """Shards ran as runs, and in folders, of their own; together they are one eval."""
    groups: dict[tuple[str, str, str | None], list[TrialResult]] = {}
    for trial in trials:
        groups.setdefault((trial.variant, trial.eval_name, trial.model), []).append(trial)
    merged: list[TrialResult] = []
    for members in groups.values():
        runs = {trial.run_id for trial in members}
        run_id = next(iter(runs)) if len(runs) == 1 else None
        order = {name: at for at, name in enumerate(dict.fromkeys(one.stimulus for one in members))}
        members.sort(key=lambda one: (order[one.stimulus], one.index))
        merged += [replace(one, run_id=run_id, eval_file=members[0].eval_file) for one in members]
    return merged


def told(merged: MergedResults) -> str:
    """Return what was merged, in one line."""
    trials = sum(len(one.trials) for one in merged.invocation.evals)
    also = f", {merged.repeated} of them twice" if merged.repeated else ""
    newest = f", {merged.replaced} by a newer result" if merged.replaced else ""
    return f"{plural(trials, 'trial')} from {plural(merged.files, 'file')}{also}{newest}"
