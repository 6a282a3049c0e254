"""The Daytona provider, under the path services import it by."""

from sandboxes.daytona import DaytonaSandbox, DaytonaSandboxProvider
from sandboxes.types import DaytonaProviderConfig

__all__ = ["DaytonaProviderConfig", "DaytonaSandbox", "DaytonaSandboxProvider"]
