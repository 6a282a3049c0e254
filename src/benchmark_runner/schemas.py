"""What a runner works on and what comes of it: tasks, answers, evaluations, the score."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, cast

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    StrictFloat,
    StrictInt,
    ValidationError,
    computed_field,
    field_validator,
    model_serializer,
    model_validator,
)

from sandboxes.lazy_names import lazy_names

if TYPE_CHECKING:
    from benchmark_service.schemas import EvaluateResponseRequest as EvaluateResponseRequest
    from benchmark_service.schemas import FinalScoreResponse as FinalScoreResponse

__getattr__, __dir__ = lazy_names(
    __name__, {"benchmark_service.schemas": ["EvaluateResponseRequest", "FinalScoreResponse"]}
)


class Task(BaseModel):
    """One question. Subclass it for fields of your own; the framework looks at these three only."""

    model_config = ConfigDict(extra="allow")

    id: str
    question: str
    timeout: float | None = None
    """Seconds its generation may take; goes before `--timeout`. Zero or less: no limit."""


class GenerationStatus(StrEnum):
    """How a generation ended."""

    SUCCESS = "success"
    MAX_TIME = "max_time"
    MAX_TURNS = "max_turns"
    ERROR = "error"


OUT_OF_BOUNDS = frozenset({GenerationStatus.MAX_TIME, GenerationStatus.MAX_TURNS})
"""Statuses of an agent that was stopped: no failure of the run, and no answer to grade."""


class GenerationResult(BaseModel):
    """An answer, or why there is none. Kept as `generation.json`."""

    model_config = ConfigDict(populate_by_name=True, protected_namespaces=())

    task_id: str
    status: GenerationStatus
    data: Any = Field(default="", validation_alias=AliasChoices("data", "answer"))
    """The answer: text, or what else the payload type says, as JSON."""
    question: str | None = None
    model: str | None = None
    total_turns: int | None = None
    error: str | None = None
    log_dir: str | None = None
    generation_version: str | None = None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def answer(self) -> Any:
        """The answer under its older name."""
        return self.data


class EvalStatus(StrEnum):
    """How an evaluation ended."""

    EVALUATED = "evaluated"
    DID_NOT_COMPLETE = "did_not_complete"
    GENERATION_ERROR = "generation_error"
    ERROR = "error"


FAILED = frozenset({EvalStatus.ERROR, EvalStatus.GENERATION_ERROR})
"""Statuses that resuming tries to better."""


class EvalResultData(BaseModel):
    """A service's result with the keys most of them share; all others are kept as they came."""

    model_config = ConfigDict(extra="allow")

    pass_percentage: StrictInt | StrictFloat | None = None
    weighted_pass_percentage: StrictInt | StrictFloat | None = None
    """Where a service says `pass_percentage_with_weight`, that."""
    eval_version: str | None = None

    @model_validator(mode="after")
    def _older_name(self) -> EvalResultData:
        older = (self.model_extra or {}).get("pass_percentage_with_weight")
        if "weighted_pass_percentage" not in self.model_fields_set and type(older) in (int, float):
            # Not as if it had been given: what is sent on is what the service said.
            self.__dict__["weighted_pass_percentage"] = older
        return self

    @model_serializer(mode="wrap")
    def _as_it_came(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = cast("dict[str, Any]", write(self))
        return {name: value for name, value in fields.items() if name in self.model_fields_set}


class EvalResult(BaseModel):
    """One task's evaluation. Kept as `eval.json`, and sent as it is to be scored."""

    task_id: str
    status: EvalStatus
    result: Any = None
    """An `EvalResultData` where the service's result is one, else the JSON it gave."""
    error: str | None = None

    @property
    def score(self) -> float | None:
        """Return the number the service gave: `score` where its result has one, else the pass percentage."""
        found = self.result.model_dump() if isinstance(self.result, EvalResultData) else self.result
        if not isinstance(found, dict):
            return None
        given = found.get("score", found.get("pass_percentage"))
        return given if isinstance(given, int | float) and not isinstance(given, bool) else None

    @field_validator("result", mode="after")
    @classmethod
    def _known_shape(cls, result: Any) -> Any:
        if not isinstance(result, dict):
            return result
        try:
            return EvalResultData.model_validate(result)
        except ValidationError:
            return result


class ScoreResult(BaseModel):
    """The score of a run. Kept as `final_score.json`."""

    tasks_evaluated: list[str]
    final_score: float
    metadata: dict[str, Any] = Field(default_factory=dict)
    complete: bool = False
    """Whether every task of the run was evaluated, or did not complete."""

    @field_validator("metadata", mode="before")
    @classmethod
    def _object(cls, metadata: Any) -> Any:
        return {} if metadata is None else metadata if isinstance(metadata, dict) else {"value": metadata}
