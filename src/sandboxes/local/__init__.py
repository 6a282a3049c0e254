"""Sandboxes on this machine: bubblewrap, a keeper process that owns the mounts, a warden per sandbox."""

from __future__ import annotations

__all__ = ["LocalProvider"]


def __getattr__(name: str) -> object:
    # Loaded on first use: the keeper is a part of this package and must not pay for the engine's side.
    if name == "LocalProvider":
        from sandboxes.local.provider import LocalProvider

        return LocalProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
