"""What travels between a benchmark service and its clients, and how large it may be."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, computed_field, model_serializer, model_validator

from sandboxes.types import (
    ImageSource,
    PlainSource,
    Resources,
    SandboxProviderConfig,
    SandboxSource,
    SnapshotSource,
    TargetedSnapshotSource,
)

RESUMABLE = "resumable_evaluation_infrastructure"
"""Error code of a chunk by which a service says: this evaluation can go on from its saved state."""


class EvalMode(StrEnum):
    """What a service grades."""

    TEXT = "text"
    SANDBOX = "sandbox"
    ARTIFACT = "artifact"
    MATERIALIZED_ARTIFACT = "materialized_artifact"
    # The same two under longer names that services use.
    IN_PROCESS_ARTIFACT = "artifact"
    IN_PROCESS_MATERIALIZED_ARTIFACT = "materialized_artifact"


class TaskFilter(BaseModel):
    """Which tasks: ids win over a slice, neither means all."""

    task_ids: list[str] | None = None
    slice_str: str | None = None
    dataset: str | None = None

    def parse_slice(self) -> slice:
        """`start:stop:step` as a slice; empty parts are open, a bare `5` starts there."""
        parts = (self.slice_str or "").split(":")
        if len(parts) > 3 or not (self.slice_str or "").strip():
            raise ValueError(f"Invalid slice format: {self.slice_str!r}")
        try:
            numbers = [int(part) if part.strip() else None for part in parts]
        except ValueError:
            raise ValueError(f"Invalid slice format: {self.slice_str!r}") from None
        start, stop, step = [*numbers, None, None][:3]
        if step == 0:
            raise ValueError(f"Invalid slice format: {self.slice_str!r} has step 0")
        return slice(start, stop, step)


class VerifyTaskIdsRequest(BaseModel):
    """Body of POST /verify-task-ids: the GET's parameters, for thousands of ids."""

    task_ids: list[str] | None = None
    slice: str | None = None
    dataset: str | None = None


class VerifyTaskIdsResponse(BaseModel):
    """Ids that exist, each once, in order."""

    task_ids: list[str]


class VersionResponse(BaseModel):
    """What a service says of itself; public."""

    model_config = ConfigDict(extra="allow")

    framework_version: str | None = None
    service_name: str | None = None
    service_version: str | None = None
    dataset_version: str | None = None
    eval_mode: str | None = None


class EvalSandboxSpec(BaseModel):
    """The fresh sandbox a submission is graded in."""

    model_config = ConfigDict(extra="forbid")

    source: PlainSource | None = None
    resources: Resources | None = None
    timeout_s: float = Field(default=1800, gt=0)
    network_block_all: bool = True


class SandboxRecoveryPolicy(BaseModel):
    """How often a lost sandbox is made anew."""

    max_sandbox_attempts: int = Field(ge=2, le=20)


class EgressPlan(BaseModel):
    """What may be reached in each phase: `*` is everything, null is nothing said."""

    setup_task: str | list[str] | None = "*"
    run: str | list[str] | None = None
    evaluation: str | list[str] | None = "*"


class RetrieveTaskResponse(BaseModel):
    """What a trial of a task needs. Give `source`, or only `docker_image` as older services do."""

    source: SandboxSource | None = None
    problem_path: str
    cwd: str
    agent_timeout: float | None = None
    resources: Resources
    eval_sandbox: EvalSandboxSpec | None = None
    volumes: list[Any] = Field(default_factory=list)
    sandbox_secrets: dict[str, Any] = Field(default_factory=dict)
    sandbox_recovery: SandboxRecoveryPolicy | None = None
    agent_install_order: Literal["before_setup", "after_setup"] = "before_setup"
    egress: EgressPlan = Field(default_factory=EgressPlan)
    grading_sandbox: Literal["agent", "fresh"] | None = None
    """Where `evaluate_instance` grades: in the sandbox the agent left (the default), or in a second one that
    no process of the agent was in, into which its work outside the system folders is carried."""
    family: str | None = Field(default=None, max_length=200)
    """Which tasks it resembles (a repository, a template): intervals and tests go over families then."""

    @model_validator(mode="before")
    @classmethod
    def _source_of_image(cls, given: Any) -> Any:
        """`docker_image` alone becomes a source; beside one it is the computed output coming back."""
        if not isinstance(given, dict) or "docker_image" not in given:
            return given
        values = dict(given)
        image = values.pop("docker_image")
        if values.get("source") is None and image:
            if not isinstance(image, str):
                raise ValueError("docker_image must be text")
            named = image.removeprefix("snapshot:")
            snapshot = named != image
            values["source"] = SnapshotSource(snapshot=named) if snapshot else ImageSource(image=image)
        return values

    @computed_field  # type: ignore[prop-decorator]
    @property
    def docker_image(self) -> str | None:
        """The source as older clients read it; None when the task runs on any root."""
        match self.source:
            case None:
                return None
            case ImageSource(image=image):
                return image
            case SnapshotSource(snapshot=name):
                return f"snapshot:{name}"
            case TargetedSnapshotSource():
                return "targeted-snapshot+source-required"
            case other:
                return f"{other.type}+source-required"


class SetupTaskRequest(BaseModel):
    """First frame of /ws/setup-task."""

    task_id: str
    instance_id: str
    sandbox_provider: SandboxProviderConfig | None = None
    dataset: str | None = None


class EvaluateInstanceRequest(SetupTaskRequest):
    """First frame of /ws/evaluate-instance."""


class SetupTaskResponse(BaseModel):
    """Result of setting a task up; benchmarks add keys of their own."""

    model_config = ConfigDict(extra="allow")

    status: str


class EvaluateResponseRequest(BaseModel):
    """A text answer to grade, or the saved state of an evaluation to go on with: exactly one of them."""

    task_id: str
    response: str | None = None
    dataset: str | None = None
    eval_resume_state: dict[str, Any] | None = None
    sandbox_provider: SandboxProviderConfig | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> EvaluateResponseRequest:
        if (self.response is None) == (self.eval_resume_state is None):
            raise ValueError("give exactly one of response and eval_resume_state")
        return self


class FinalScoreRequest(BaseModel):
    """Results of all tasks of a run; null for those without one."""

    evaluation_results: dict[str, Any]
    dataset: str | None = None
    task_outcomes: dict[str, Any] | None = None


class FinalScoreResult(BaseModel):
    """What `calculate_final_score` returns."""

    score: float
    metadata: dict[str, Any] = Field(default_factory=dict)


class FinalScoreResponse(BaseModel):
    """The score of a run."""

    tasks_evaluated: list[str]
    final_score: float
    metadata: Any = None


class StreamMessageChunk(BaseModel):
    """Progress or log output."""

    type: Literal["message"]
    data: str


class StreamErrorChunk(BaseModel):
    """Something went wrong; the stream goes on."""

    type: Literal["error"]
    data: str
    error_code: str | None = None
    status_code: int | None = None

    @model_serializer(mode="wrap")
    def _without_nulls(self, write: Any) -> dict[str, Any]:
        data: dict[str, Any] = write(self)
        return {name: value for name, value in data.items() if value is not None}


class StreamResultChunk(BaseModel):
    """The final result; nothing follows it."""

    type: Literal["result"]
    data: Any


class StreamEvalResumeStateChunk(BaseModel):
    """A checkpoint of an evaluation, owned by the benchmark; the newest one is kept and sent back."""

    type: Literal["eval_resume_state"]
    data: dict[str, Any]


StreamChunk = Annotated[
    StreamMessageChunk | StreamErrorChunk | StreamResultChunk | StreamEvalResumeStateChunk,
    Field(discriminator="type"),
]


# How large a piece of decoded JSON is, apart from its text: small text can be a great many lists.

MAX_JSON_DEPTH = 100
MAX_JSON_PARTS = 500_000
JSON_TOO_LARGE = (
    f"nested deeper than {MAX_JSON_DEPTH} levels, or more than {MAX_JSON_PARTS} lists and objects"
)


def is_overgrown(data: Any) -> bool:
    """Return whether data has more levels, or more lists and objects, than those who walk through it can
    bear."""
    level, parts = [data], 0
    for _ in range(MAX_JSON_DEPTH + 1):
        # Level by level: recursion has an end before the nesting has.
        level = [one for one in level if isinstance(one, dict | list)]
        parts += len(level)
        if not level or parts > MAX_JSON_PARTS:
            return parts > MAX_JSON_PARTS
        level = [inner for one in level for inner in (one.values() if isinstance(one, dict) else one)]
    return True


__all__ = [
    "EgressPlan",
    "EvalMode",
    "EvalSandboxSpec",
    "EvaluateInstanceRequest",
    "EvaluateResponseRequest",
    "FinalScoreRequest",
    "FinalScoreResponse",
    "FinalScoreResult",
    "Resources",
    "RetrieveTaskResponse",
    "SandboxRecoveryPolicy",
    "SetupTaskRequest",
    "SetupTaskResponse",
    "StreamChunk",
    "StreamErrorChunk",
    "StreamEvalResumeStateChunk",
    "StreamMessageChunk",
    "StreamResultChunk",
    "TaskFilter",
    "VerifyTaskIdsRequest",
    "VerifyTaskIdsResponse",
    "VersionResponse",
]
