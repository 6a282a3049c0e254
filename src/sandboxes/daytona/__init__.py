"""Daytona's cloud, or anything that speaks its REST. Importing this does not import the SDK."""

from sandboxes.daytona.provider import DaytonaSandboxProvider
from sandboxes.daytona.sandbox import DaytonaSandbox

__all__ = ["DaytonaSandbox", "DaytonaSandboxProvider"]
