"""Requests and sources of sandboxes, under the path services import them by."""

from sandboxes.types import (
    ComposeSource,
    ExecResult,
    ImageSource,
    Resources,
    SandboxCreateRequest,
    SandboxQuery,
    SandboxSource,
    SnapshotSource,
    TargetedSnapshotSource,
)

__all__ = [
    "ComposeSource",
    "ExecResult",
    "ImageSource",
    "Resources",
    "SandboxCreateRequest",
    "SandboxQuery",
    "SandboxSource",
    "SnapshotSource",
    "TargetedSnapshotSource",
]
