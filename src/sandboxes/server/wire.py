"""The JSON of requests and answers about sandboxes, in Daytona's camel case."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from sandboxes.protocol import Sandbox
from sandboxes.server.access import Access

_GIB = 1 << 30
_DEFAULT_DISK = 10

Amount = Annotated[int, Field(ge=0, le=1 << 20)]
"""Cores or gigabytes; 0 leaves it to the provider."""


class Wire(BaseModel):
    """Unknown fields are ignored: newer clients send more than is used here."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _is_text(cls, given: Any) -> Any:
        """Refuse half a surrogate pair, which JSON can carry and no command can, and endless nesting."""
        try:
            json.dumps(given, ensure_ascii=False, default=str).encode()
        except (UnicodeEncodeError, RecursionError):
            raise ValueError("the text is no UTF-8, or nested too deeply") from None
        return given


class BuildInfo(Wire):
    """An image, as the Dockerfile that the SDK makes of it."""

    dockerfile_content: str
    context_hashes: list[str] | None = None


class CreateSandbox(Wire):
    """What a client asks for."""

    name: Annotated[str, Field(max_length=256)] | None = None
    snapshot: str | None = None
    user: str | None = None
    env: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    public: bool | None = None
    network_block_all: bool | None = None
    network_allow_list: str | None = None
    domain_allow_list: str | None = None
    cpu: Amount | None = None
    gpu: Amount | None = None
    memory: Amount | None = None
    disk: Amount | None = None
    auto_stop_interval: int | None = None
    auto_archive_interval: int | None = None
    auto_delete_interval: int | None = None
    volumes: list[dict[str, Any]] | None = None
    secrets: list[dict[str, str]] | None = None
    build_info: BuildInfo | None = None


class NetworkSettings(Wire):
    """A change of what a sandbox may reach."""

    network_block_all: bool | None = None
    network_allow_list: str | None = None
    domain_allow_list: str | None = None


class SandboxLabels(Wire):
    """Labels that take the place of the caller's earlier ones."""

    labels: dict[str, str]


def machine_memory() -> int:
    """Whole gigabytes of memory that this machine has, at least one."""
    return max(1, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // _GIB)


def sandbox_json(
    access: Access, sandbox: Sandbox, toolbox_url: str, *, state: str | None = None
) -> dict[str, object]:
    """One sandbox as a client reads it. Its environment is left out: it may hold secrets."""
    note = access.note(sandbox.id)
    created = (sandbox.created_at or datetime.now(UTC)).isoformat()
    now = state or ("stopped" if note.stopped else "started")
    return {
        "id": sandbox.id,
        "organizationId": "local",
        "name": sandbox.name,
        "user": note.user or "root",
        "env": {},
        "labels": access.effective_labels(sandbox),
        "public": False,
        "networkBlockAll": False,
        "kvm": False,
        "target": "local",
        "cpu": os.cpu_count() or 1,
        "gpu": 0,
        "memory": machine_memory(),
        "disk": _DEFAULT_DISK,
        "autoStopInterval": 0,
        "autoArchiveInterval": 0,
        "autoDeleteInterval": -1,
        "createdAt": created,
        "updatedAt": created,
        **note.settings,
        "state": now,
        "desiredState": now,
        "toolboxProxyUrl": toolbox_url,
    }
