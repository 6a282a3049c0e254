"""Where callers may have us connect to: not to this machine, its link, or a cloud's metadata.

Callers of a tracker may have it connect to public addresses only, and to networks its operator names: whether
something listens at a private address must not be told to those who cannot reach it themselves. What is
refused is refused before a connection is made, so that open and closed ports look the same.

A name is resolved once, every address it has is checked, and the connection is made to a checked address:
a name that answers differently the second time gains nothing.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from valkyrie.errors import UserError

if TYPE_CHECKING:
    import httpx

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolver = Callable[[str, int], Sequence[str]]
"""The addresses of a host's name; OSError when it has none."""

MOST_CHARACTERS = 2000
_WAY_OUT = "VALKYRIE_ALLOW_LOCAL_WEBHOOKS=1 where the executor (or `valkyrie serve`) runs allows it."
_NETWORKS_WAY_OUT = (
    "Whoever runs the tracker allows networks: `valk config set tracker.allowed_networks 10.1.0.0/16` "
    "where the tracker and its executors run."
)
_METADATA = frozenset(
    map(
        ipaddress.ip_address,
        (
            "169.254.169.254",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "fd00:ec2::254",
            "fd20:ce::254",
        ),
    )
)
"""Where clouds tell a machine its own credentials."""
_THIS_NETWORK = ipaddress.ip_network("0.0.0.0/8")
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_COMPATIBLE = ipaddress.ip_network("::/96")


class TargetError(UserError):
    """An address nothing may be sent to."""

    default_cause = "target"


@dataclass(frozen=True, slots=True)
class ConnectionTarget:
    """Where to connect to, and what to say there."""

    url: httpx.URL
    addresses: Sequence[str]
    """Checked; at least one."""


def system_resolver(host: str, port: int) -> Sequence[str]:
    """The addresses this machine's resolver gives."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def parse_target(url: str, what: str = "The address") -> httpx.URL:
    """An http(s) address as such; what is wrong with it is told without it, for it may be a secret."""
    import httpx

    if len(url) > MOST_CHARACTERS:
        raise TargetError(f"{what} has more than {MOST_CHARACTERS} characters.")
    try:
        parsed = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        raise TargetError(f"{what} is not an http(s) address.") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise TargetError(f"{what} is not an http(s) address.")
    if parsed.userinfo:
        raise TargetError(f"{what} has a user name or password in it; leave them out.")
    if parsed.port is not None and not 0 < parsed.port < 65536:
        raise TargetError(f"{what} names port {parsed.port}, which is none.")
    return parsed


def check_target(
    url: str,
    allow_local: bool,
    resolver: Resolver = system_resolver,
    what: str = "The address",
    *,
    only_loopback: bool = False,
    networks: Sequence[str] | None = None,
) -> None:
    """Refuse an address that a caller may not make us connect to; TargetError says why.

    A name that cannot be resolved now is not refused: nothing is at it. With `only_loopback`, allowing what
    is local allows this machine itself, neither its link nor a cloud's metadata. With `networks`, only public
    addresses are allowed, and those of the networks.
    """
    try:
        resolve_target(url, allow_local, resolver, what, only_loopback=only_loopback, networks=networks)
    except OSError:
        return


def resolve_target(
    url: str,
    allow_local: bool,
    resolver: Resolver = system_resolver,
    what: str = "The address",
    *,
    only_loopback: bool = False,
    networks: Sequence[str] | None = None,
) -> ConnectionTarget:
    """The checked addresses behind a URL; OSError when its name has none."""
    parsed = parse_target(url, what)
    host = parsed.raw_host.decode("ascii")
    found = _addresses(host, parsed.port or (443 if parsed.scheme == "https" else 80), resolver)
    for text in found:
        address = ipaddress.ip_address(text)
        if why := refusal(address, allow_local, only_loopback=only_loopback, networks=networks):
            way = _way_out(address, only_loopback=only_loopback, networks=networks)
            raise TargetError(f"{what} leads to {host[:80]}, which is {why}; nothing is sent there.{way}")
    return ConnectionTarget(parsed, found)


def connectable(
    host: str, port: int, *, allow_local: bool, networks: Sequence[str] | None = None
) -> Sequence[str]:
    """The addresses of a host a caller named, checked for the connection that is made now: a name may lead
    elsewhere than when it was first looked at. Loopback if `allow_local`, never the link or metadata; with
    `networks`, only public addresses and those."""
    place = f"[{host}]" if ":" in host else host
    url = f"http://{place}:{port}"
    return resolve_target(url, allow_local, only_loopback=True, networks=networks).addresses


def _addresses(host: str, port: int, resolver: Resolver) -> Sequence[str]:
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass  # a name, or a number in one of the forms only resolvers read
    if re.fullmatch(r"(.+\.)?localhost\.?", host):
        return ["127.0.0.1"]  # by definition, whatever a resolver makes of it
    try:
        found = resolver(host, port)
    except UnicodeError:
        raise TargetError(f"{host[:80]!r} is no host name.") from None
    if not found:
        raise OSError("the name has no address")
    return found


def refusal(
    address: Address,
    allow_local: bool,
    *,
    only_loopback: bool = False,
    networks: Sequence[str] | None = None,
) -> str | None:
    """Return why an address is refused, in words; None when it is not."""
    inner = _inside(address)
    if inner.is_multicast or inner.is_unspecified or inner in _THIS_NETWORK:
        return "no single machine's address"
    if isinstance(inner, ipaddress.IPv4Address) and inner.is_reserved:
        return "a reserved address"
    if any(inner in ipaddress.ip_network(network) for network in networks or ()):
        return None
    local = _kind_of_local(inner)
    if local:
        return None if allow_local and (inner.is_loopback or not only_loopback) else local
    if networks is None:
        return None
    return "no public address" if not inner.is_global or _is_own(inner) else None


def _kind_of_local(address: Address) -> str | None:
    if address.is_loopback:
        return "a loopback address"
    if address in _METADATA:
        return "a cloud's metadata service"
    return "a link-local address" if address.is_link_local else None


def _is_own(address: Address) -> bool:
    """Return whether it is an address of this machine: only to such a one can a socket be bound."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def _way_out(address: Address, *, only_loopback: bool, networks: Sequence[str] | None) -> str:
    """Return what allows an address that is refused; nothing where nothing should."""
    inner = _inside(address)
    if networks is not None:
        known = inner in _METADATA or inner.is_link_local or refusal(inner, True)
        return "" if known else f" {_NETWORKS_WAY_OUT}"
    return "" if refusal(address, allow_local=True, only_loopback=only_loopback) else f" {_WAY_OUT}"


def _inside(address: Address) -> Address:
    """The IPv4 address an IPv6 one stands for, if it does."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    bare = ipaddress.IPv6Address(int(address))  # without a zone, which no comparison expects
    if found := bare.ipv4_mapped or bare.sixtofour:
        return found
    if bare.teredo:
        return bare.teredo[1]
    if bare in _NAT64 or (bare in _COMPATIBLE and int(bare) > 1):
        return ipaddress.IPv4Address(int(bare) & 0xFFFFFFFF)
    return bare
