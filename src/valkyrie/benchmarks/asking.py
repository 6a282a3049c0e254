"""How a benchmark is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from valkyrie.benchmarks.service.address import Reach


@dataclass(frozen=True, slots=True)
class Asking:
    """How a benchmark is asked for, and by whom."""

    host_image: bool = False
    headers: Mapping[str, str] | None = None
    """Sent to a service with every request, over the credential kept for it."""
    ignore_custom: bool = False
    trusted: bool = True
    """Whoever asks is on this machine: its paths, modules, environment and loopback are theirs."""
    uploads: Callable[[str], Path] | None = None
    """The archive of `upload:<digest>`; raises UnknownError."""
    url: str | None = None
    """Where the asker's own config says that the service of this name is."""
    cache: Path | None = None
    """Where uploads are unpacked."""
    caller_headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Who asks, told to services of our own registry or base URL and to no others."""
    reach: Reach | None = None
    """Where an address the asker named may lead; None is anywhere."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """What an eval spec is read with."""

    @property
    def host_env(self) -> Mapping[str, str] | None:
        """Where `${VAR}` of a task is looked up: for strangers nowhere, else in the environment."""
        return None if self.trusted else {}
