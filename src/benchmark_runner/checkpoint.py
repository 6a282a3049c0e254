"""What a run was started with, and what is left to do when it goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import to_jsonable_python

from benchmark_runner.schemas import FAILED, EvalResult, GenerationResult, GenerationStatus, Task


class TaskSource(StrEnum):
    """Where a run's tasks come from."""

    FILE = "file"
    SERVICE = "service"
    PROBLEM = "problem"
    SANDBOX = "sandbox"


class RunConfig(BaseModel):
    """What a run was started with. Kept as `run_config.json`."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    run_id: str
    model: str
    tasks: list[str]
    dataset_file: str | None = None
    dataset_name: str | None = None
    task_source: TaskSource = TaskSource.FILE
    payload_schema: str | None = None
    payload_type: str | None = None
    runner_version: str = "dev"
    generation_version: str = "dev"
    benchmark: str | None = None
    settings: dict[str, Any] = Field(default_factory=dict)
    """Sampling, endpoint, time limit and the runner's own options."""
    mixed: list[str] = Field(default_factory=list)
    """What was changed on the way with `--force-resume`: its answers do not all compare."""
    tasks_digest: str | None = None
    """Of what its tasks ask."""
    fields_digest: str | None = None
    """Of all else its tasks hold."""
    service_url: str | None = None
    framework_version: str | None = None
    started_at: str | None = None


_COMPARED = ("model", "task_source", "dataset_name", "payload_schema", "payload_type", "generation_version")


def differences(before: RunConfig, now: RunConfig) -> list[str]:
    """Return what would be mixed if the run went on like this, in words; nothing where it may go on.

    A key the older file does not have, which an older runner wrote, is not compared.
    """
    known = before.model_fields_set
    changed = [
        f"{name.replace('_', ' ')}: {_said(getattr(before, name))}, now {_said(getattr(now, name))}"
        for name in _COMPARED
        if name in known and getattr(before, name) != getattr(now, name)
    ]
    if "settings" in known:
        changed += _changed_settings(before.settings, now.settings)
    if before.tasks_digest and now.tasks_digest and before.tasks_digest != now.tasks_digest:
        changed.append("the dataset: its tasks ask something else than when the run began")
    elif before.fields_digest and now.fields_digest and before.fields_digest != now.fields_digest:
        changed.append("the dataset: its tasks hold other fields or values than when the run began")
    return changed


def _changed_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = sorted({*before, *now})
    return [
        f"{name.replace('_', ' ')}: {_said(before.get(name))}, now {_said(now.get(name))}"
        for name in names
        if before.get(name) != now.get(name)
    ]


def _said(value: Any) -> str:
    return "not set" if value is None else value if isinstance(value, str) else json.dumps(value)


def digests(tasks: Iterable[Task]) -> dict[str, str]:
    """Return names tasks, in whatever order: what they ask, and what else they hold, an author's fields
    too."""
    found = sorted(tasks, key=lambda task: task.id)
    asked = [(task.id, task.question) for task in found]
    held = [{name: _known(value) for name, value in task if name not in ("id", "question")} for task in found]
    return {"tasks_digest": _digest(asked), "fields_digest": _digest(held)}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _known(value: Any) -> Any:
    """An author's value as every process that loads it has it; of what is no JSON, its kind alone."""
    try:
        return _comparable(value)
    except (ValueError, RecursionError):
        return type(value).__qualname__


def _comparable(value: Any) -> Any:
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, Mapping | BaseModel):
        return {str(name): _comparable(one) for name, one in dict(value).items()}
    if isinstance(value, list | tuple):
        return [_comparable(one) for one in value]
    if isinstance(value, set | frozenset):
        return sorted(_digest(_comparable(one)) for one in value)
    return to_jsonable_python(value)


def needs_generation(generation: GenerationResult | None) -> bool:
    """Return whether a task is to be generated: never, or not without an error, so far."""
    return generation is None or generation.status is GenerationStatus.ERROR


def needs_evaluation(evaluation: EvalResult | None) -> bool:
    """Return whether a task is to be evaluated: never, or not without an error, so far."""
    return evaluation is None or evaluation.status in FAILED
