"""The whole contract in one class."""

from __future__ import annotations

from sandboxes.testing.commands import CommandContract
from sandboxes.testing.files import FileContract
from sandboxes.testing.lifecycle import LifecycleContract
from sandboxes.testing.limits import LimitContract
from sandboxes.testing.mounts import MountContract
from sandboxes.testing.work import WorkContract


class ProviderContract(
    LifecycleContract, FileContract, CommandContract, LimitContract, MountContract, WorkContract
):
    """Subclass it, give a `provider` fixture, and declare what does not hold (see `ContractBase`)."""
