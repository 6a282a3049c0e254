"""What is asked of a sandbox provider, what it answers, and how it is reached."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_serializer,
    model_validator,
)

from sandboxes.errors import MissingSandboxConfigError, SandboxUnsupportedError
from sandboxes.protocol import (
    KILLED_EXIT_CODE,
    TIMEOUT_EXIT_CODE,
    Capabilities,
    Command,
    CopyLimits,
    CopyReport,
    ExecResult,
    NetworkPolicy,
    OutputSink,
    SandboxLimits,
    StreamName,
)

if TYPE_CHECKING:
    from sandboxes.protocol import SandboxProvider


class ImageSource(BaseModel):
    """A container image, by reference."""

    type: Literal["image"] = "image"
    image: str


class SnapshotSource(BaseModel):
    """A provider's own snapshot, by name."""

    type: Literal["snapshot"] = "snapshot"
    snapshot: str


class TargetedSnapshotSource(BaseModel):
    """A snapshot in a named region."""

    type: Literal["targeted_snapshot"] = "targeted_snapshot"
    snapshot: str
    target: str


class HostSource(BaseModel):
    """The host's own system files, or another root file system kept in a folder."""

    type: Literal["host"] = "host"
    rootfs: str | None = None


class BuildSource(BaseModel):
    """An image that is built from a folder, once for each digest."""

    type: Literal["build"] = "build"
    context: str
    """The folder on the machine that builds."""
    digest: str
    """The digest of all in the folder (`sandboxes.folder_contents.folder_digest`). Where it is built it is
    worked out again: another content is refused."""
    dockerfile: str = "Dockerfile"
    timeout: float = 600.0


PlainSource = Annotated[
    ImageSource | SnapshotSource | TargetedSnapshotSource | HostSource, Field(discriminator="type")
]


class ComposeSource(BaseModel):
    """One service of a compose project that runs inside an outer sandbox."""

    type: Literal["compose"] = "compose"
    outer: PlainSource
    service: str = "main"
    compose_command: str = "docker compose"


SandboxSource = Annotated[
    ImageSource | SnapshotSource | TargetedSnapshotSource | HostSource | BuildSource | ComposeSource,
    Field(discriminator="type"),
]


def host_folder_of(source: SandboxSource | None) -> str | None:
    """Return the folder of this machine that a source is made from, or None: no stranger may choose one."""
    inner = source.outer if isinstance(source, ComposeSource) else source
    if isinstance(inner, BuildSource):
        return inner.context
    return inner.rootfs if isinstance(inner, HostSource) else None


class Mount(BaseModel):
    """A folder of the host that is shown in the sandbox, read-only: as it is when the sandbox is made, later
    changes may not be seen."""

    source: str
    target: str
    copy_on_write: bool = False
    """Writable all the same: changes stay in the sandbox and go with it. Where that cannot be had
    (`Sandbox.views` does not name the target), nothing is shown: copy the folder in instead."""
    sockets: bool = False
    """It holds sockets to be spoken to. Its path on the host then shows in the sandbox's list of mounts: keep
    it on a file system of its own, like /dev/shm, where that path says nothing."""
    hidden: tuple[str, ...] = ()
    """Of a view: what is not there, by paths below the folder; it may change meanwhile."""


class Resources(BaseModel):
    """What a task needs, in whole cores and gigabytes. Mutable: services adjust it."""

    vcpu: int
    memory: int
    disk: int
    gpu: int = 0
    gpu_type: str | None = None

    @model_validator(mode="after")
    def _type_of_some(self) -> Self:
        if self.gpu_type is not None and self.gpu < 1:
            raise ValueError("gpu_type needs gpu to be 1 or more")
        return self


class SandboxCapacityDomain(BaseModel):
    """A part of a provider's capacity, described in the provider's own terms."""

    model_config = ConfigDict(extra="allow")


class SandboxCreateRequest(BaseModel):
    """Everything a provider needs to make one sandbox."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    source: SandboxSource = Field(default_factory=HostSource)
    resources: Resources | None = None
    """Whole-number resources, as benchmark services state them."""
    limits: SandboxLimits | None = None
    """Finer limits; each set field wins over `resources`."""
    name: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    env_vars: dict[str, str] = Field(default_factory=dict)
    """Environment of every command in the sandbox."""
    refused_image_env: Callable[[str], bool] | None = Field(default=None, exclude=True)
    """Which variables of the image, by name, no command is given; for providers that can tell them."""
    separate_folders: tuple[str, ...] = ()
    """Folders with room of their own: filling the disk leaves them usable, once they are emptied."""
    mounts: tuple[Mount, ...] = ()
    """Only for providers whose capabilities say `mounts`."""
    auto_stop_interval: int | None = None
    """Minutes without use after which a remote provider may stop it."""
    create_timeout: float = 360.0
    network_block_all: bool = False
    network: NetworkPolicy = "public"
    allowed_networks: tuple[str, ...] = ()
    """Networks (`10.1.0.0/16`) that `public` reaches although they are private, or the host's own."""

    @property
    def network_policy(self) -> NetworkPolicy:
        """The policy in force: blocking all wins."""
        return "none" if self.network_block_all else self.network

    @property
    def effective_limits(self) -> SandboxLimits:
        """`limits` over `resources`."""
        asked = self.limits or SandboxLimits()
        if self.resources is None:
            return asked
        return SandboxLimits(
            cpus=asked.cpus if asked.cpus is not None else float(self.resources.vcpu),
            memory_mb=asked.memory_mb if asked.memory_mb is not None else self.resources.memory * 1024,
            disk_mb=asked.disk_mb if asked.disk_mb is not None else self.resources.disk * 1024,
            pids=asked.pids,
            gpus=asked.gpus or self.resources.gpu,
        )


class SandboxQuery(BaseModel):
    """Which sandboxes to list: those that carry all these labels."""

    labels: dict[str, str] = Field(default_factory=dict)
    page_size: int = 10
    created_at_lte: datetime | None = None


# How to reach a provider, as plain data that travels: the `sandbox_provider` of a service's requests.

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


__all__ = [
    "KILLED_EXIT_CODE",
    "TIMEOUT_EXIT_CODE",
    "BuildSource",
    "Capabilities",
    "Command",
    "ComposeSource",
    "CopyLimits",
    "CopyReport",
    "ExecResult",
    "HostSource",
    "ImageSource",
    "Mount",
    "NetworkPolicy",
    "OutputSink",
    "PlainSource",
    "Resources",
    "SandboxCapacityDomain",
    "SandboxCreateRequest",
    "SandboxLimits",
    "SandboxQuery",
    "SandboxSource",
    "SnapshotSource",
    "StreamName",
    "TargetedSnapshotSource",
    "host_folder_of",
]
