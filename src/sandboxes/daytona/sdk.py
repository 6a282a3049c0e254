"""The vendor's SDK, loaded on first use."""

from __future__ import annotations

import warnings
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, cast

from sandboxes.errors import SandboxUnsupportedError
from sandboxes.installation import add_extra

if TYPE_CHECKING:
    from daytona import AsyncDaytona

    from sandboxes.configs import DaytonaProviderConfig


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
    """Whether the SDK is there, without importing it."""
    try:
        return find_spec("daytona") is not None
    except ValueError:
        return False


def open_client(config: DaytonaProviderConfig) -> AsyncDaytona:
    """A client for that account; nothing is sent yet."""
    if not installed():
        from sandboxes.daytona import rest

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
