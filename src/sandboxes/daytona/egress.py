"""Egress rules in the form Daytona takes them: all domains, or all networks."""

from __future__ import annotations

import ipaddress
import re
from typing import TypedDict
from urllib.parse import urlsplit

from sandboxes.errors import SandboxError

_DOMAIN = re.compile(r"(\*\.)?([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?")


class NetworkSettings(TypedDict, total=False):
    """Keywords of the SDK's `update_network_settings`."""

    network_allow_list: str
    domain_allow_list: str


def settings_for(rules: list[str]) -> NetworkSettings:
    """URLs, hosts or IPv4 networks as one list of either kind; mixing the kinds is refused."""
    if not rules:
        raise SandboxError("an empty list of egress rules allows nothing; block the network instead")
    domains: list[str] = []
    networks: list[str] = []
    for rule in rules:
        text = rule.strip()
        host = (urlsplit(text).hostname or "") if "://" in text else text
        network = _network(host, rule)
        if network is not None:
            networks.append(network)
        elif _DOMAIN.fullmatch(host.lower()):
            domains.append(host.lower())
        else:
            raise SandboxError(f"{rule!r} is no URL, host or IPv4 network")
    if domains and networks:
        raise SandboxError("Daytona takes domains or networks as egress rules, not both at once")
    return {"domain_allow_list": ",".join(domains)} if domains else {"network_allow_list": ",".join(networks)}


def _network(host: str, rule: str) -> str | None:
    try:
        network = ipaddress.ip_network(host, strict=False)
    except ValueError:
        if ":" in host:
            raise SandboxError(f"{rule!r}: egress rules take neither IPv6 nor ports") from None
        return None
    if network.version == 6:
        raise SandboxError(f"{rule!r}: Daytona takes no IPv6 in egress rules")
    return str(network)
