"""What agents did in each trial, as ATIF: one file per trial, for whatever reads that format."""

from __future__ import annotations

import json

from valkyrie.errors import UsageError
from valkyrie.evals.exporting.lines import trials_of
from valkyrie.evals.exporting.protocol import Exported, ExportRequest
from valkyrie.evals.exporting.registry import check_options
from valkyrie.evals.exporting.reports import write_text
from valkyrie.evals.names import Key, folder_names
from valkyrie.evals.results import TrialResult
from valkyrie.plain_text import printable_json
from valkyrie.trajectory.converting import trajectory_of
from valkyrie.trajectory.records import from_record


def export_atif(request: ExportRequest) -> Exported:
    """`<eval>-<model>-<stimulus>-trial-N.json` for every trial that has a trajectory."""
    check_options(request.options, (), "atif")
    if request.results is None:
        raise UsageError(
            "atif exports results; name a run, a job or a results folder instead of --eval-spec."
        )
    trials = list(trials_of(request.results))
    names = folder_names({_key(one): "-".join(part for part in _key(one)[:-1] if part) for one in trials})
    written = [
        write_text(request.output / f"{names[_key(one)]}.json", _atif(one))
        for one in trials
        if one.transcript
    ]
    without = [
        f"{one.stimulus}, trial {one.index}: it has no trajectory" for one in trials if not one.transcript
    ]
    return Exported(written, without)


def _key(trial: TrialResult) -> Key:
    """Which trial it is; of a job that has several agents, also whose."""
    agent = "" if trial.job is None else trial.executor or ""
    named = (trial.variant, trial.eval_name, agent, trial.model or "", trial.stimulus, f"trial-{trial.index}")
    return (*named, trial.run_id or "")


def _atif(trial: TrialResult) -> str:
    document = trajectory_of(from_record(trial.transcript or {})).to_json()
    if trial.ingested:
        document["extra"] = {**(document.get("extra") or {}), "ingested": True}
    return printable_json(json.dumps(document, ensure_ascii=False, indent=1)) + "\n"
