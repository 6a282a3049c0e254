"""The router between a sandbox and the user-mode network tool: what it forwards and what it refuses.

    sandbox's namespace                router's namespace                      host
    eth0 192.0.0.201 ───── veth0 192.0.0.200 ─ rules ─ tap0 ───── pasta or slirp4netns

Routes in the sandbox's own namespace would not do: a socket bound to an interface (SO_BINDTODEVICE,
IP_UNICAST_IF; no privilege needed) passes by unreachable routes, the kernel then takes any address to be
on the link, and pasta answers for every address. What arrives from outside a namespace gets no such favour.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import IPv4Network
from typing import Final

from sandboxes.local.network.netlink import Netlink, open_socket
from sandboxes.local.network.tools import DNS, GATEWAY, LINK, MTU, ROUTER, SANDBOX, TAP

VETH: Final = "veth0"
SANDBOX_INTERFACE: Final = "eth0"
DENY_TABLE: Final = 100
OUT_TABLE: Final = 101

PRIVATE: Final = tuple(
    IPv4Network(text)
    for text in (
        "10.0.0.0/8",
        "100.64.0.0/10",  # of providers' own networks, and of many a VPN
        "172.16.0.0/12",
        "192.168.0.0/16",
    )
)
"""Refused unless they are allowed by name."""

ALWAYS_DENIED: Final = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8",
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local, and with it the metadata services of most clouds
        "100.100.100.200/32",  # the metadata service of Alibaba Cloud
        "168.63.129.16/32",  # the host agent of Azure
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)


def connect_sandbox(
    router: Netlink,
    sandbox: Netlink,
    sandbox_netns: int,
    deny: Sequence[IPv4Network],
    allow: Sequence[IPv4Network],
) -> set[IPv4Network]:
    """Join the two namespaces and lay down what is refused; nothing leads out yet. Returns what is decided.

    Of what is denied and what is allowed the narrower one holds: a private network that is allowed does not
    open the host's own addresses in it. Those that are the same are allowed.
    """
    try:
        router.add_veth(VETH, SANDBOX_INTERFACE, sandbox_netns, MTU)
    except FileExistsError:
        # Of an attachment just closed: the kernel takes its interface away at leisure, we need not.
        sandbox.remove_link(SANDBOX_INTERFACE)
        router.add_veth(VETH, SANDBOX_INTERFACE, sandbox_netns, MTU)
    near = router.link_index(VETH)
    router.set_up(near)
    router.add_address(near, ROUTER, 31)
    for network in allow:
        router.add_exception(network, DENY_TABLE)
    denied = {*ALWAYS_DENIED, *PRIVATE, *deny, *host_networks()} - set(allow)
    for network in (LINK, *denied):  # LINK, because slirp would pass on any port of its resolver's address
        router.add_unreachable(network, DENY_TABLE)
    for priority, protocol in enumerate((socket.IPPROTO_UDP, socket.IPPROTO_TCP), start=10):
        router.add_rule(
            priority,
            OUT_TABLE,
            arriving_on=VETH,
            source=SANDBOX,
            destination=DNS,
            service=(protocol, 53),
        )
    router.add_rule(20, DENY_TABLE, arriving_on=VETH, source=SANDBOX)
    router.add_rule(30, OUT_TABLE, arriving_on=VETH, source=SANDBOX)

    far = sandbox.link_index(SANDBOX_INTERFACE)
    sandbox.set_up(far)
    sandbox.add_address(far, SANDBOX, 31)
    sandbox.add_default_route(far, ROUTER)
    for network in denied:
        if any(network.overlaps(one) for one in allow):
            continue
        # A courtesy that holds nobody back: software that looks for a metadata service learns at once that
        # there is none, where the router's answers are few and a datagram's sender never sees them.
        sandbox.add_unreachable(network)
    return denied | set(allow)


def open_way_out(router: Netlink) -> None:
    """Lead out through the tool's interface, for the sandbox's packets alone.

    The router's own packets find no way: pasta would take their source for the sandbox's address.
    """
    tap = router.link_index(TAP)
    router.set_up(tap, MTU)
    router.add_default_route(tap, GATEWAY, OUT_TABLE)


def refuse_host(router: Netlink, refused: set[IPv4Network]) -> None:
    """Refuse what the host calls its own by now; `refused` are those decided on already, and grows."""
    for network in host_networks() - refused:
        router.add_unreachable(network, DENY_TABLE)
        refused.add(network)


def host_networks() -> set[IPv4Network]:
    """Every IPv4 address this host (this network namespace) takes for its own."""
    netlink = Netlink(open_socket())
    try:
        return netlink.local_networks()
    finally:
        netlink.close()
