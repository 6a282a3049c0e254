"""What an engine answers, in the protocol's own terms."""

from __future__ import annotations

from sandboxes.errors import (
    SandboxConnectionError,
    SandboxError,
    SandboxFullError,
    SandboxNotFoundError,
    SandboxUnsupportedError,
    SandboxUserError,
)

_MESSAGE_LIMIT = 500


def message_of(error: BaseException) -> str:
    """The engine's own words, on one line."""
    text = " ".join(str(getattr(error, "message", "") or error).split()) or type(error).__name__
    return text[:_MESSAGE_LIMIT] + "…" if len(text) > _MESSAGE_LIMIT else text


def translated(error: BaseException, what: str) -> SandboxError:
    """The protocol's error for a failed call."""
    status = getattr(error, "status", None)
    text = f"cannot {what}: {message_of(error)}"
    lower = text.lower()
    if status is None or status == 900:  # aiodocker's own number for a lost connection
        return SandboxConnectionError(f"{text}; does the container engine still run?")
    if status == 404 and "container" in lower:
        return SandboxNotFoundError(text)
    if "unable to find user" in lower or "unable to find group" in lower:
        return SandboxUserError(text)
    if "no space left" in lower or "disk quota exceeded" in lower:
        return SandboxFullError(text)
    if "could not select device driver" in lower:
        return SandboxUnsupportedError(
            f"{text}; the engine needs the NVIDIA container toolkit to pass on GPUs"
        )
    return SandboxError(text)


def is_not_running(error: BaseException) -> bool:
    """Whether a container was there, but not alive."""
    return getattr(error, "status", None) == 409 and "not running" in message_of(error).lower()
