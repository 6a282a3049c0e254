"""The Daytona provider, under the path services import it by."""

from sandboxes.configs import DaytonaProviderConfig
from sandboxes.daytona import DaytonaSandbox, DaytonaSandboxProvider

__all__ = ["DaytonaProviderConfig", "DaytonaSandbox", "DaytonaSandboxProvider"]
