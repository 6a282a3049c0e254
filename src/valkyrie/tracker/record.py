"""What is stored of a run: everything it was asked with, secrets by name only."""

from __future__ import annotations

import getpass
import time
from dataclasses import asdict

from valkyrie.nouns import Json
from valkyrie.tracker.planning import PreparedRun


def run_values(prepared: PreparedRun, run_id: str, frozen: Json) -> Json:
    """The columns of a new run's row."""
    request = prepared.request
    return {
        "id": run_id,
        "agent": prepared.agent.name,
        "model": prepared.agent.model,
        "benchmark": prepared.benchmark.name,
        "dataset": request.dataset,
        "label": request.label,
        "provider": request.provider,
        "started_by": _user(),
        "concurrency": request.concurrency,
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
            "ignore_custom_services": request.ignore_custom_services,
            "task_ids": list(request.task_ids) if request.task_ids is not None else None,
            "slice": request.slice,
            "keep_sandbox": request.keep_sandbox,
            "max_attempts": request.max_attempts,
            "agent_digest": prepared.agent.digest,
            "settings": asdict(prepared.settings),
            **_service(prepared.benchmark.source),
        },
        "agent_frozen": frozen,
        "benchmark_source": prepared.benchmark.source,
        "enforcement": {"isolation": prepared.capabilities.isolation, **prepared.capabilities.enforcement},
    }


def _service(source: Json) -> Json:
    """Where a benchmark service was, which version it said it is, and what it was to grade."""
    if source.get("kind") != "service":
        return {}
    return {"service": {name: source[name] for name in ("url", "where", "grading", "versions")}}


def _user() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None
