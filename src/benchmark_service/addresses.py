"""What a URL says of where it leads."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit


def shown(url: str) -> str:
    """A URL as messages may show it: without user, password and query."""
    head, separator, rest = url.partition("://")
    if not separator:
        return url[:200]
    place = re.split(r"[?#]", rest, maxsplit=1)[0]
    authority, slash, path = place.partition("/")
    return f"{head}://{authority.rpartition('@')[2]}{slash}{path}"[:300]


def is_loopback(url: str) -> bool:
    """Whether a URL names this very machine."""
    return _is_this_machine(urlsplit(url).hostname or "")


def proxy_for(scheme: str, host: str) -> str | None:
    """The proxy the environment names for a place; none for this very machine."""
    if _is_this_machine(host):
        return None
    import urllib.request

    if urllib.request.proxy_bypass_environment(host):  # type: ignore[attr-defined]
        return None
    proxies = urllib.request.getproxies_environment()
    return proxies.get(scheme) or proxies.get("all")


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def same_place(old: str, new: str) -> bool:
    """Whether a redirect stays with the service: headers hold credentials no other host may see."""
    before, after = urlsplit(old), urlsplit(new)
    if before.hostname != after.hostname:
        return False
    upgraded = before.scheme in ("http", "ws") and after.scheme in ("https", "wss")
    return upgraded or (before.scheme, before.port) == (after.scheme, after.port)
