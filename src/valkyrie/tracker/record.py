"""What is stored of a run: everything it was asked with, secrets by name only."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

from valkyrie.agents.loader import ARCHIVE_NAME
from valkyrie.artifact_store.protocol import frozen_agent_key, run_prefix, upload_key
from valkyrie.domain import Identity, Json
from valkyrie.errors import UserError
from valkyrie.plan import FAMILY, TrialPlan
from valkyrie.store.layout import RunFolder
from valkyrie.store.runs import NewTrial
from valkyrie.tracker.prepare import PreparedRun
from valkyrie.views import RunRequest, RunView

if TYPE_CHECKING:
    from valkyrie.artifact_store.protocol import ArtifactStore, LogKeeper


def keep_frozen(prepared: PreparedRun, run_id: str, folder: RunFolder, uploads: Path) -> None:
    """Put the run's agent, and a benchmark that was sent along, where executors elsewhere find them."""
    artifacts = prepared.artifacts
    if artifacts is None:
        return
    archive = folder.agent / ARCHIVE_NAME
    if archive.is_file():
        artifacts.put(frozen_agent_key(run_id, prepared.agent.name), archive)
    digest = prepared.benchmark.source.get("upload")
    if digest and artifacts.find(upload_key(digest)) is None:
        artifacts.put(upload_key(digest), uploads / f"{digest}.zip")


def new_trials(planned: Sequence[TrialPlan]) -> list[NewTrial]:
    """Return what is stored of planned trials."""
    return [NewTrial(one.task_id, one.k, one.digest, one.cpus, one.memory_mb, one.family) for one in planned]


def run_values(prepared: PreparedRun, run_id: str, frozen: Json, identity: Identity) -> Json:
    """Return the columns of a new run's row."""
    request = prepared.request
    return {
        "id": run_id,
        "agent": prepared.agent.name,
        "model": prepared.agent.model,
        "benchmark": prepared.benchmark.name,
        "dataset": request.dataset,
        "label": request.label,
        "provider": request.provider,
        "org_id": identity.org_id,
        "started_by": identity.person,
        "key_id": identity.key_id,
        "priority": request.priority,
        "max_cost": request.max_cost,
        "abort_after": request.abort_after,
        "notify": prepared.wishes,
        "place": kept_at(prepared.artifacts, prepared.logs, run_id),
        "concurrency": request.concurrency,
        "in_turn": request.in_turn,
        "fraction": prepared.benchmark.fraction,
        "created_at": time.time(),
        "arguments": {
            "agent": request.agent,
            "benchmark": request.benchmark,
            "model": request.model,
            "dataset": request.dataset,
            "trials": request.trials,
            "kwargs": dict(request.kwargs),
            "secrets": dict(prepared.agent.secrets),
            "host_variables": list(prepared.host_variables),
            "headers": list(prepared.headers),
            "provider_settings": list(prepared.provider_settings),
            "provider_secret": request.provider_secret,
            "hook_values": list(prepared.hook_values),
            "credentials": list(prepared.credentials),
            "lambda_function": request.lambda_function,
            "ignore_custom_services": request.ignore_custom_services,
            "task_ids": list(request.task_ids) if request.task_ids is not None else None,
            "slice": request.slice,
            "keep_sandbox": request.keep_sandbox,
            "max_attempts": request.max_attempts,
            "store_secrets": request.store_secrets,
            **_families(prepared),
            "agent_digest": prepared.agent.digest,
            "settings": asdict(prepared.settings),
            **({"stop_rule": prepared.stop_rule} if prepared.stop_rule else {}),
            **_service(prepared.benchmark.source),
            **_variant(prepared.benchmark.source),
        },
        "agent_frozen": frozen,
        "benchmark_source": prepared.benchmark.source,
        "enforcement": {"isolation": prepared.capabilities.isolation, **prepared.capabilities.enforcement},
    }


def request_again(run: RunView, task_id: str, headers: Mapping[str, str]) -> RunRequest:
    """Return the request that runs one task of a run once more, in a run of its own whose sandbox is kept.

    The run it comes from keeps its verdict: another try of a trial that counts would be a second chance.
    """
    said = run.arguments
    if run.ingested or "variant" in said:
        what = "ran elsewhere" if run.ingested else "belongs to an eval; `valk eval` runs it again"
        raise UserError(f"Run {run.id[:8]} {what}: its trials cannot be run again here.")
    if lacking := [name for name in said.get("headers", []) if name not in headers]:
        flags = " ".join(f"-H {name} VALUE" for name in lacking)
        raise UserError(f"Run {run.id[:8]} was started with headers, which are not kept; add {flags}.")
    settings = {key: value for key, value in said.get("settings", {}).items() if key in _AS_ASKED}
    same = {key: said[key] for key in _SAME if said.get(key) is not None}
    return RunRequest(
        task_ids=[task_id],
        concurrency=1,
        label=f"debug of {run.id[:8]}",
        keep_sandbox=True,
        max_attempts=1,
        headers=headers,
        pass_env=said.get("host_variables", []),
        **{**same, **settings},
    )


_SAME = (
    *("agent", "benchmark", "model", "dataset", "kwargs", "secrets", "provider_secret"),
    *("ignore_custom_services", "store_secrets"),
)
_AS_ASKED = tuple(one.name for one in fields(RunRequest))


def _families(prepared: PreparedRun) -> Json:
    """Return the key families were looked for under, and that there are some."""
    if not any(one.family for one in prepared.trials):
        return {}
    return {"family": prepared.request.family or FAMILY}


def _service(source: Json) -> Json:
    """Return where a benchmark service was, which version it said it is, and what it was to grade."""
    if source.get("kind") != "service":
        return {}
    return {"service": {name: source[name] for name in ("url", "where", "grading", "versions")}}


def _variant(source: Json) -> Json:
    """Return which variant of an experiment an eval is."""
    if source.get("kind") != "eval_spec":
        return {}
    return {"variant": source["options"].get("variant", "main")}


def kept_at(artifacts: ArtifactStore | None, logs: LogKeeper | None, run_id: str) -> Json | None:
    """Return where artifacts and logs go besides the executor's folder, and the pages that show them."""
    found: Json = {}
    if artifacts:
        found["artifacts"] = artifacts.place | _page(artifacts.console_url(run_prefix(run_id)))
    if logs:
        found["logs"] = logs.place | _page(logs.url(run_id))
    return found or None


def _page(url: str | None) -> Json:
    return {"page": url} if url and "://" in url else {}
