"""What can go wrong with a sandbox. One root, `SandboxError`."""

from __future__ import annotations


class SandboxError(Exception):
    """Something about a sandbox failed; the message says what, and what to do."""


class SandboxNotFoundError(SandboxError):
    """The sandbox is gone: never made, deleted, or lost with its host."""


class SandboxDiedError(SandboxNotFoundError):
    """A sandbox ended that nobody asked to end, and its provider looked for the cause.

    `outside`: the cause was seen outside the sandbox (its keeper was killed, the host ran out of memory
    although the sandbox was within its limit, an operator removed it). Otherwise it came from inside.
    """

    def __init__(self, message: str, *, outside: bool = False) -> None:
        super().__init__(message)
        self.outside = outside


class SandboxConnectionError(SandboxError):
    """The sandbox may live, but its provider cannot be reached right now."""


class SandboxCommandError(SandboxError):
    """A streamed command ended with a non-zero exit code."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class SandboxUnsupportedError(SandboxError):
    """This provider, on this machine, cannot give what was asked; the message names the way out."""


class SandboxImageError(SandboxError):
    """An image cannot be built, or does not start, for a reason of its own: its author must act, and trying
    again changes nothing."""


class SandboxUserError(SandboxError):
    """No such user in the sandbox, or none a command may run as; the message says which and why."""


class SandboxCapacityError(SandboxError):
    """The provider has no room now; trying later may work."""

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class SandboxFullError(SandboxError):
    """The sandbox's own disk is full; the host's is not."""


class SandboxCrowdedError(SandboxError):
    """There are more names in the sandbox than a search looks at."""


class SandboxFileNotFoundError(SandboxError, FileNotFoundError):
    """No regular file (or folder) at that path inside the sandbox."""


class MissingSandboxConfigError(ValueError):
    """A provider was asked for without the settings it needs."""
