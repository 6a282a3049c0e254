"""Load the vendor's SDK on first use, and translate what it raises into the protocol's errors."""

from __future__ import annotations

import re
import warnings
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar, cast

import httpx

from sandboxes.daytona import rest
from sandboxes.errors import (
    SandboxCapacityError,
    SandboxConnectionError,
    SandboxError,
    SandboxFileNotFoundError,
    SandboxFullError,
    SandboxUnsupportedError,
)
from sandboxes.registry import add_extra
from sandboxes.retry import Backoff, Retries, parse_retry_after

if TYPE_CHECKING:
    from daytona import AsyncDaytona

    from sandboxes.types import DaytonaProviderConfig


def missing() -> str:
    """Return what to say where the SDK is not installed."""
    return f"provider 'daytona' needs the Daytona SDK: {add_extra('daytona')}"


def load() -> ModuleType:
    """The SDK's module, or SandboxUnsupportedError with the way to get it."""
    try:
        return import_module("daytona")
    except ImportError as error:
        raise SandboxUnsupportedError(missing()) from error


def reaching() -> ModuleType:
    """Return the module that reaches existing sandboxes: the SDK, or our own where it is not installed."""
    return load() if installed() else import_module("sandboxes.daytona.rest")


def preload() -> None:
    """Import what the first call needs: it takes a second or more, which no event loop has to spare."""
    module = reaching()
    if not installed():
        return
    for name in (
        "AsyncDaytona",
        "SessionExecuteRequest",
        "ListSandboxesQuery",
        "CreateSandboxFromImageParams",
    ):
        getattr(module, name)


def installed() -> bool:
    """Return whether the SDK is there, without importing it."""
    try:
        return find_spec("daytona") is not None
    except ValueError:
        return False


def open_client(config: DaytonaProviderConfig) -> AsyncDaytona:
    """A client for that account; nothing is sent yet."""
    if not installed():
        return cast("AsyncDaytona", rest.AsyncDaytona(config.DAYTONA_API_KEY, config.DAYTONA_API_URL))
    sdk = load()
    # States are asked for, not pushed: the event socket is one more connection that can hang, and only
    # creation ever waits for a state. The SDK calls this deprecated. (For good: what `catch_warnings` puts
    # back, it puts back for every thread.)
    warnings.filterwarnings("ignore", message=".*[Pp]olling", category=DeprecationWarning)
    client: AsyncDaytona = sdk.AsyncDaytona(
        sdk.DaytonaConfig(
            api_key=config.DAYTONA_API_KEY,
            api_url=config.DAYTONA_API_URL,
            target=config.DAYTONA_TARGET,
            organization_id=config.DAYTONA_ORGANIZATION_ID,
            # Long commands each hold a connection; a limit would make the next call wait for them.
            connection_pool_maxsize=None,
            use_deprecated_polling=True,
        )
    )
    return client


# What the SDK raises, in the protocol's own terms.
#
# The SDK translates most failures into its own errors, but streams let those of aiohttp and httpx through.
# Everything is told apart by status and by family, so that no exact class has to be known here.

GATEWAY = frozenset({502, 503, 504})
"""A proxy's answers for what stands behind it; 502 is also its answer for a sandbox that is gone."""

_RETRY_AFTER = re.compile(r"retry-after(-[\w-]+)?", re.IGNORECASE)
_MESSAGE_LIMIT = 500


def failures() -> tuple[type[Exception], ...]:
    """Everything a call of the SDK, or of our own stand-in for it, may raise because of the other side."""
    ours: tuple[type[Exception], ...] = (rest.DaytonaError, *_of_sdk("DaytonaError", "ClientError"))
    return (*ours, httpx.HTTPError, ConnectionError, TimeoutError)


@lru_cache
def _of_sdk(error: str, *streaming: str) -> tuple[type[Exception], ...]:
    """Return errors of the SDK and of aiohttp, which it brings along; none where it is not installed."""
    if not installed():
        return ()
    found: list[type[Exception]] = [getattr(import_module("aiohttp"), name) for name in streaming]
    return (getattr(load(), error), *found)


def status_of(error: BaseException) -> int | None:
    """The HTTP status behind an error, if there was an answer at all."""
    for name in ("status_code", "status"):
        value = getattr(error, name, None)
        if isinstance(value, int):
            return value
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    return status if isinstance(status, int) else None


def is_missing_file(error: BaseException) -> bool:
    """Return whether the sandbox itself said that a file is not there."""
    return getattr(error, "code", None) == "FILE_NOT_FOUND"


def is_connection_failure(error: BaseException) -> bool:
    """Return whether the other side could not be reached, or went away before it answered."""
    status = status_of(error)
    if status is not None:
        return status in GATEWAY
    transport: tuple[type[Exception], ...] = (
        rest.DaytonaConnectionError,
        *_of_sdk("DaytonaConnectionError", "ClientConnectionError", "ClientPayloadError"),
        httpx.TransportError,
        ConnectionError,
        TimeoutError,
    )
    return isinstance(error, transport) or isinstance(error.__cause__, transport)


def retry_after(error: BaseException) -> float | None:
    """The longest wait asked for in seconds: `retry-after`, or one named after its throttler."""
    headers = getattr(error, "headers", None)
    waits = [
        seconds
        for name, value in (headers.items() if isinstance(headers, Mapping) else ())
        if _RETRY_AFTER.fullmatch(str(name)) and (seconds := parse_retry_after(str(value))) is not None
    ]
    return max(waits, default=None)


def translated(error: BaseException, what: str) -> SandboxError:
    """The protocol's error for a failure that is not about a sandbox being gone."""
    status = status_of(error)
    text = f"cannot {what}: {_message(error)}"
    if status == 429:
        return SandboxCapacityError(f"{text}; Daytona limits how often it is asked", retry_after(error))
    if is_missing_file(error) or status == 404:
        return SandboxFileNotFoundError(text)
    if status == 401:
        return SandboxError(f"{text}; check DAYTONA_API_KEY")
    if status == 507 or "no space left" in text.lower():
        return SandboxFullError(text)
    if is_connection_failure(error):
        return SandboxConnectionError(text)
    return SandboxError(text)


def _message(error: BaseException) -> str:
    status = status_of(error)
    message = " ".join(str(error).split()) or type(error).__name__
    if len(message) > _MESSAGE_LIMIT:
        message = message[:_MESSAGE_LIMIT] + "…"
    return message if status is None else f"{message} (HTTP {status})"


# Calls over the network: repeated where that is safe, their failures told in our own terms.

T = TypeVar("T")


LOST = Backoff(first_s=0.2, longest_s=10.0, jitter=0.3, attempts=8)
"""After lost connections: for about 20 s in all."""
THROTTLED = Backoff(first_s=2.0, longest_s=2.0, within_s=120.0)
"""After a refusal for asking too often."""


@dataclass(frozen=True, slots=True)
class DaytonaBackoff:
    """How long trouble with Daytona is waited out."""

    lost: Backoff = LOST
    throttled: Backoff = THROTTLED


Judge = Callable[[BaseException, str], Awaitable[Exception]]
"""Turns a failure into the error to raise; may look whether the sandbox still lives."""


async def call(
    action: Callable[[], Awaitable[T]], what: str, judge: Judge, backoff: DaytonaBackoff, *, repeat: bool
) -> T:
    """Await `action`; `repeat` says that doing it twice does no harm.

    A refusal for asking too often is always tried again: the call was not carried out.
    """
    lost, throttled = Retries(backoff.lost), None
    while True:
        try:
            return await action()
        except failures() as error:
            if status_of(error) == 429:
                throttled = throttled or Retries(backoff.throttled)
                delay = throttled.next_delay(retry_after(error))
                if delay is None:
                    raise translated(error, what) from error
            else:
                verdict = await judge(error, what)
                # A verdict other than the plain one is final: the sandbox is gone, or the file is.
                plain = type(verdict) is type(translated(error, what))
                passing = repeat and plain and is_connection_failure(error)
                delay = lost.next_delay() if passing else None
                if delay is None:
                    raise verdict from error
        await backoff.lost.sleep(delay)
