"""The `/v1` messages, which standalone runners speak."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

ENVELOPE_KEYS = frozenset({"task_id", "status", "result", "error"})


class V1PayloadType(StrEnum):
    """How a submission is carried."""

    TEXT = "text"
    ARTIFACT = "artifact"


class V1Status(StrEnum):
    """How a submission's evaluation ended."""

    EVALUATED = "evaluated"
    DID_NOT_COMPLETE = "did_not_complete"
    GENERATION_ERROR = "generation_error"
    ERROR = "error"


class V1Payload(BaseModel):
    """A submission."""

    model_config = ConfigDict(populate_by_name=True)

    type: V1PayloadType
    schema_id: str = Field(alias="schema")
    data: Any


class V1Versions(BaseModel):
    """Who made the submission."""

    model_config = ConfigDict(extra="allow")

    runner: str | None = None


class V1EvalRequest(BaseModel):
    """One submission to grade."""

    run_id: str
    task_id: str
    dataset: str | None = None
    payload: V1Payload
    versions: V1Versions = Field(default_factory=V1Versions)


class V1EvalResponse(BaseModel):
    """How it was graded; a failure inside grading is `status: error`, not an HTTP error."""

    run_id: str
    task_id: str
    status: V1Status
    evaluator_version: str | None = None
    result: Any = None
    errors: list[str] = Field(default_factory=list)


class V1ScoreItem(BaseModel):
    """One task's evaluation, as `/v1/evaluate` gave it."""

    status: V1Status
    result: Any = None
    errors: list[str] = Field(default_factory=list)


class V1ScoreRequest(BaseModel):
    """Evaluations of a run."""

    run_id: str
    dataset: str | None = None
    evaluation_results: dict[str, V1ScoreItem | None]


class V1ScoreResponse(BaseModel):
    """The score of a run."""

    run_id: str
    tasks_evaluated: list[str]
    final_score: float
    metadata: Any = Field(default_factory=dict)


class V1Task(BaseModel):
    """One task as runners see it; benchmarks add keys of their own."""

    model_config = ConfigDict(extra="allow")

    id: str
    question: str
    timeout: float | None = None


class V1DatasetTasksResponse(BaseModel):
    """All tasks of a dataset."""

    dataset: str
    dataset_version: str | None = None
    tasks: list[V1Task]


class V1UploadUrlRequest(BaseModel):
    """A place to upload an artifact to."""

    run_id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    task_id: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    dataset: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")
    filename: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")


class V1UploadUrlResponse(BaseModel):
    """Where, and for how many seconds."""

    key: str
    url: str
    expires_in: int
