"""How a benchmark is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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

    host_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The variables of the asker's that tasks may be given: where their `${VAR}` is looked up."""
    allow_paths: Sequence[str] = ()
    """What tasks may read outside the benchmark's folder, for who is on this machine."""
