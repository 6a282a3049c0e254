"""What requests may carry: the verbs' own request objects, strictly read."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, cast

from fastapi import Body
from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from valkyrie.suggest import did_you_mean
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
