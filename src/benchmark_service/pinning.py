"""Requests that name the version of the dataset they want to be served from."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pydantic import ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException

from benchmark_service.failures import message_of
from benchmark_service.versions import DatasetVersion

if TYPE_CHECKING:
    from benchmark_service.base import BenchmarkService

HEADER = "X-Benchmark-Dataset-Version"
_ID = re.compile(r"[!-~]{1,1024}")


def wanted_version(headers: Headers) -> str | None:
    """The version a request asks for; ValueError when the header is not one plain id."""
    given = headers.getlist(HEADER)
    if not given:
        return None
    if len(given) != 1 or not _ID.fullmatch(given[0]):
        raise ValueError(f"{HEADER} must be given once, as 1 to 1024 visible ASCII characters")
    return given[0]


@asynccontextmanager
async def pinned(
    service: BenchmarkService, headers: Headers, dataset: str | None
) -> AsyncIterator[DatasetVersion | None]:
    """Serve from the version the request asks for; None when it asks for none."""
    wanted = wanted_version(headers)
    if wanted is None:
        yield None
        return
    async with service.open_dataset_version(*_selectable(service, dataset, wanted)) as version:
        if version.id != wanted:
            raise HTTPException(409, f"The service selected version {version.id}, not {wanted}")
        yield version


async def resolve(service: BenchmarkService, dataset: str | None, version: str | None) -> DatasetVersion:
    """The version that a label or id, or nothing for the newest, stands for."""
    async with service.open_dataset_version(*_selectable(service, dataset, version)) as resolved:
        return resolved


def _selectable(
    service: BenchmarkService, dataset: str | None, version: str | None
) -> tuple[str | None, str | None]:
    if not service.supports_dataset_version_selection(dataset):
        raise ValueError(f"Dataset '{dataset or 'default'}' has no versions to select from on this service")
    return dataset, version


def refusal(error: Exception) -> tuple[int, str]:
    """Status and words of a selection that failed, for a stream that has no status line."""
    if isinstance(error, HTTPException):
        return error.status_code, message_of(error)
    if isinstance(error, ValueError) and not isinstance(error, ValidationError):
        return 400, message_of(error)
    return (501 if isinstance(error, NotImplementedError) else 500), message_of(error)
