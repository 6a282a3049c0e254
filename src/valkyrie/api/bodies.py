"""What requests may carry: the verbs' own request objects, strictly read."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, cast

from fastapi import Body
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from valkyrie.text import did_you_mean
from valkyrie.tracker.checks import LONGEST_TEXT
from valkyrie.views import (
    LogQuery,
    OutputsWanted,
    RegradeRequest,
    ResultsWanted,
    ResumeRequest,
    RetryRequest,
    RunRequest,
    StopRequest,
    TasksRequest,
    UpdateRequest,
)
from valkyrie.views.jobs import (
    DEFAULT_CONCURRENCY,
    DEFAULT_ERROR_RATE,
    JobAgent,
    JobChange,
    JobRequest,
    JobRetry,
    JobStop,
)
from valkyrie.views.requests import AtLeastOne

_LARGEST = 1 << 53
"""Beyond it a number is not the same in every language, and no database takes it."""
_DEEPEST = 32


class Strictly:
    """Reads a dataclass from JSON: unknown keys refused, no type bent into another, no text that no
    database can keep."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        inner = handler.generate_schema(_strict(source))
        # Strict fields, but the object itself comes as a mapping, not as an instance.
        read: dict[str, Any] = cast("dict[str, Any]", handler.resolve_ref_schema(inner))
        read["strict"] = False
        names = [one.name for one in fields(source)]

        return core_schema.no_info_before_validator_function(lambda given: _checked(given, names), inner)


@cache
def _strict(plain: type) -> type:
    """The same dataclass, with the rules of strict reading attached; its instances are the plain one's."""
    config = ConfigDict(extra="forbid", strict=True)
    names = {
        "__pydantic_config__": config,
        "__module__": plain.__module__,
        "__doc__": plain.__doc__,
        "__slots__": (),
    }
    return type(plain.__name__, (plain,), names)


def _checked(given: Any, names: Collection[str]) -> Any:
    if isinstance(given, dict):
        for name in given:
            if name not in names:
                hint = did_you_mean(str(name), names)
                raise PydanticCustomError("unknown_key", "{text}", {"text": f"unknown key {name!r}.{hint}"})
    check_plain(given)
    return given


def check_plain(value: Any, depth: int = 0) -> None:
    """Refuse what JSON can say and nothing behind it can keep."""
    if depth > _DEEPEST:
        raise PydanticCustomError("too_deep", "nested too deep")
    if isinstance(value, str):
        check_text(value)
    elif isinstance(value, int) and abs(value) > _LARGEST:
        raise PydanticCustomError("too_large", "a number is too large")
    elif isinstance(value, float) and not math.isfinite(value):
        raise PydanticCustomError("not_finite", "a number is not finite")
    elif isinstance(value, dict):
        for name, inner in value.items():
            check_plain(name, depth + 1)
            check_plain(inner, depth + 1)
    elif isinstance(value, list):
        for inner in value:
            check_plain(inner, depth + 1)


def check_text(text: str) -> None:
    """Refuse NUL and halves of characters."""
    if "\0" in text:
        raise PydanticCustomError("nul", "a text has a NUL character in it")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise PydanticCustomError("surrogate", "a text is not valid Unicode") from None


@dataclass(frozen=True, slots=True)
class SecretValue:
    """A secret's value. It is encrypted at rest and never given back."""

    value: Annotated[str, Field(min_length=1, max_length=65536)] = field(repr=False)


@dataclass(frozen=True, slots=True)
class AwsCredentials:
    """AWS keys, entered once. They are encrypted at rest and never given back."""

    aws_access_key_id: str
    aws_secret_access_key: str = field(repr=False)
    aws_session_token: str | None = field(default=None, repr=False)


class OrganisationChange(BaseModel):
    """Settings to change; null removes one, what is left out stays."""

    model_config = ConfigDict(extra="forbid", strict=True, use_attribute_docstrings=True)

    s3_bucket: str | None = None
    """Where artifacts of its runs are kept."""
    aws_region: str | None = None
    log_group: str | None = None
    """Where logs of its runs are shipped; `off` ships none."""
    log_retention_days: int | None = None
    role_arn: str | None = None
    """A role this tracker may assume with the organisation's external id."""

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, given: Any) -> Any:
        return _checked(given, cls.model_fields.keys())


RunBody = Annotated[RunRequest, Strictly()]
UpdateBody = Annotated[UpdateRequest, Strictly()]
# These may be left out: nothing in them must be said.
StopBody = Annotated[StopRequest, Strictly(), Body(default_factory=StopRequest)]
ResumeBody = Annotated[ResumeRequest, Strictly(), Body(default_factory=ResumeRequest)]
RetryBody = Annotated[RetryRequest, Strictly(), Body(default_factory=RetryRequest)]
RegradeBody = Annotated[RegradeRequest, Strictly(), Body(default_factory=RegradeRequest)]
OutputsBody = Annotated[OutputsWanted, Strictly(), Body(default_factory=OutputsWanted)]
ResultsBody = Annotated[ResultsWanted, Strictly(), Body(default_factory=ResultsWanted)]
LogBody = Annotated[LogQuery, Strictly(), Body(default_factory=LogQuery)]
SecretBody = Annotated[SecretValue, Strictly()]
CredentialsBody = Annotated[AwsCredentials, Strictly()]
TasksBody = Annotated[TasksRequest, Strictly()]


# What requests about jobs may carry: the verbs' own request objects, strictly read.


def _left_out(text: str) -> str:
    if text:
        raise PydanticCustomError("left_out", "agents of a job and their models are named in its `agents`")
    return text


MOST_AGENTS = 50
"""All runs of a job are read with every look at it."""
MOST_SCENARIOS = 100_000
MOST_BENCHMARKS = 50
MOST_METADATA = 64
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
Agents = Annotated[Sequence[Annotated[JobAgent, Strictly()]], Field(max_length=MOST_AGENTS)]
Scenarios = Annotated[Sequence[Text], Field(max_length=MOST_SCENARIOS)]
LeftOut = Annotated[str, AfterValidator(_left_out)]


@dataclass(frozen=True, slots=True)
class RunTemplate(RunRequest):
    """What all runs of a job have in common: a RunRequest without its agent and model."""

    agent: LeftOut = ""
    """Left out: a job's agents are named in `agents`."""
    benchmark: str = ""
    """Left out where `scenarios` are named."""
    model: LeftOut | None = None
    """Left out, as the agent is."""


@dataclass(frozen=True, slots=True)
class JobStart(JobRequest):
    """Agents × tasks × trials, asked for."""

    agents: Agents
    template: Annotated[RunTemplate, Strictly()] = field(default_factory=RunTemplate)
    """What all its runs have in common."""
    scenarios: Scenarios = ()
    """`task` or `benchmark[@dataset]/task`, instead of the template's benchmark."""
    name: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    """Made of the benchmark and the time, unless said."""
    concurrency: AtLeastOne = DEFAULT_CONCURRENCY
    """Trials at once, of all its runs together."""
    metadata: Annotated[Mapping[Text, Text], Field(max_length=MOST_METADATA)] = field(default_factory=dict)
    """Words of the caller's, kept with the job."""
    time_limit: float | None = None
    """Seconds after which nothing more of the job begins; null is no limit."""
    stop_when_decided: bool = False
    """Run no trials that cannot change who is ahead."""
    margin: float | None = None
    """With stop_when_decided: that agents are no further apart than this, of 1, is an answer as well."""
    error_rate: float = DEFAULT_ERROR_RATE
    """With stop_when_decided: how often an answer may be wrong, over all looks and pairs together."""
    benchmarks: Annotated[Sequence[Text], Field(max_length=MOST_BENCHMARKS)] = ()
    """Several benchmarks instead of the template's one; each agent has a run on each."""


@dataclass(frozen=True, slots=True)
class JobResume(JobChange):
    """What is different when a job goes on. Everything left out stays as it was."""

    agents: Agents = ()
    """Added to those it has."""
    scenarios: Scenarios = ()
    """Tasks added to those it has; `all` is every task of its benchmark."""
    trials: AtLeastOne | None = None
    """Trials of each task; never fewer than before."""
    concurrency: AtLeastOne | None = None
    time_limit: float | None = None
    """Counted from now."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """For the benchmark's service; given again, because they are not stored."""


JobBody = Annotated[JobStart, Strictly()]
# These may be left out: nothing in them must be said.
JobStopBody = Annotated[JobStop, Strictly(), Body(default_factory=JobStop)]
JobResumeBody = Annotated[JobResume, Strictly(), Body(default_factory=JobResume)]
JobRetryBody = Annotated[JobRetry, Strictly(), Body(default_factory=JobRetry)]
