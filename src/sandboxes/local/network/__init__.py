"""Network policy `public`: the sandbox reaches the public internet, and nothing of the host or its networks.

Refused, by routes in a namespace between sandbox and host: every address the host has or gains, loopback,
private and shared ranges, link-local and the clouds' metadata services, multicast and broadcast, other
sandboxes, and what `NetworkSettings.deny` adds; `NetworkSettings.allow` opens networks among them. IPv4
only: the sandbox has IPv6 on its own loopback alone, so that there is no second policy to keep. No port of
the sandbox is reachable from outside. Names are resolved by the host's own resolver, at port 53 of one
address.
"""

from sandboxes.local.network.attachment import Attachment, NetworkSettings, attach
from sandboxes.local.network.tools import RESOLV_CONF, Tool, find_tool, why_unavailable

__all__ = [
    "RESOLV_CONF",
    "Attachment",
    "NetworkSettings",
    "Tool",
    "attach",
    "find_tool",
    "why_unavailable",
]
