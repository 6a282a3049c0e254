"""How to reach a provider, as plain data that travels: the `sandbox_provider` of a service's requests."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_serializer

from sandboxes.errors import MissingSandboxConfigError, SandboxUnsupportedError

if TYPE_CHECKING:
    from sandboxes.protocol import SandboxProvider

SandboxProviderName = Literal["daytona", "modal", "docker", "kubernetes"]


class _Config(BaseModel):
    def create_provider(self) -> SandboxProvider:
        """The provider, opened. The caller closes it."""
        kind = getattr(self, "type", type(self).__name__)
        raise SandboxUnsupportedError(f"this version has no {kind} sandboxes; use a daytona one")


class DaytonaProviderConfig(_Config):
    """Anything that speaks Daytona's REST: Daytona itself, or our own server on local sandboxes."""

    type: Literal["daytona"] = "daytona"
    DAYTONA_API_KEY: str = Field(repr=False)
    DAYTONA_API_URL: str
    DAYTONA_TARGET: str
    DAYTONA_ORGANIZATION_ID: str | None = None

    @model_serializer(mode="wrap")
    def _without_null_organization(self, write: Any) -> dict[str, Any]:
        data: dict[str, Any] = write(self)
        if data.get("DAYTONA_ORGANIZATION_ID") is None:
            data.pop("DAYTONA_ORGANIZATION_ID", None)
        return data

    def create_provider(self) -> SandboxProvider:
        from sandboxes.daytona import DaytonaSandboxProvider

        return DaytonaSandboxProvider(self)

    def headers(self) -> dict[str, str]:
        """The three headers a service takes instead of a body field."""
        return {
            "x-api-key": self.DAYTONA_API_KEY,
            "x-api-url": self.DAYTONA_API_URL,
            "x-target": self.DAYTONA_TARGET,
        }


class ModalProviderConfig(_Config):
    """Modal sandboxes. Understood on the wire; this version cannot open them."""

    type: Literal["modal"] = "modal"
    MODAL_TOKEN_ID: str
    MODAL_TOKEN_SECRET: str = Field(repr=False)


class DockerProviderConfig(_Config):
    """Containers of the machine the service runs on."""

    type: Literal["docker"] = "docker"

    def create_provider(self) -> SandboxProvider:
        import tempfile
        from pathlib import Path

        from sandboxes.docker import DockerProvider

        # Build locks and logs; services of the same user share them.
        return DockerProvider(Path(tempfile.gettempdir()) / f"valkyrie-docker-{os.getuid()}")


class KubernetesProviderConfig(_Config):
    """A private control service. Understood on the wire; this version cannot open it."""

    type: Literal["kubernetes"] = "kubernetes"
    KUBERNETES_API_URL: str
    KUBERNETES_API_TOKEN: str = Field(repr=False)
    KUBERNETES_CONNECT_TIMEOUT: float = 10
    KUBERNETES_REQUEST_TIMEOUT: float = 60


SandboxProviderConfig = Annotated[
    DaytonaProviderConfig | ModalProviderConfig | DockerProviderConfig | KubernetesProviderConfig,
    Field(discriminator="type"),
]
_ADAPTER: TypeAdapter[SandboxProviderConfig] = TypeAdapter(SandboxProviderConfig)


def sandbox_provider_config_from_mapping(values: Mapping[str, Any]) -> SandboxProviderConfig:
    """A provider's config from plain data; `type` may be left out for daytona."""
    try:
        return _ADAPTER.validate_python({"type": "daytona", **values})
    except ValidationError as error:
        wrong = ", ".join(".".join(map(str, e["loc"])) or str(e["msg"]) for e in error.errors())
        raise MissingSandboxConfigError(f"Sandbox provider settings are missing or wrong: {wrong}") from None
