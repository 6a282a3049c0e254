"""Refuses addresses in the network namespace it runs in. A program of its own: it imports nothing of ours.

    python3 - DENIED,DENIED,… DNS,DNS,… ALLOWED,ALLOWED,…

DENIED are networks, DNS are name servers that stay reachable on port 53, ALLOWED are networks that stay
reachable although they are in a denied one. Of IPv6 only the loopback is left.

A packet filter, because routes alone hold nobody back: a socket that is bound to an interface passes by them.
Routes are laid down as well, so that a connection fails at once instead of waiting for an answer.
"""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
import sys
from collections.abc import Iterable, Iterator

Networks = list[ipaddress.IPv4Network]
TABLE = "valkyrie"
NETFILTER, ROUTE = 12, 0
NFTABLES = 10
OUT_HOOK, NETWORK_HEADER, TRANSPORT_HEADER = 3, 1, 2
DROP, ACCEPT = 0, 1
NESTED = 0x8000
REQUEST, ACK, CREATE, EXCLUSIVE, APPEND = 0x1, 0x4, 0x400, 0x200, 0x800


def attribute(kind: int, value: int | str | bytes | list[bytes]) -> bytes:
    """One padded attribute: 32 bits in network order, text, bytes, or a list of attributes."""
    if isinstance(value, int):
        value = struct.pack(">I", value)
    elif isinstance(value, str):
        value = value.encode() + b"\0"
    elif isinstance(value, list):
        kind, value = kind | NESTED, b"".join(value)
    length = 4 + len(value)
    return struct.pack("=HH", length, kind) + value + b"\0" * (-length % 4)


def expression(name: str, *attributes: bytes) -> bytes:
    return attribute(1, [attribute(1, name), attribute(2, list(attributes))])


def load(base: int, offset: int, length: int) -> bytes:
    return expression(
        "payload", attribute(1, 1), attribute(2, base), attribute(3, offset), attribute(4, length)
    )


def equals(value: bytes) -> bytes:
    return expression("cmp", attribute(1, 1), attribute(2, 0), attribute(3, [attribute(1, value)]))


def masked(mask: bytes) -> bytes:
    nothing = [attribute(1, bytes(len(mask)))]
    return expression(
        "bitwise",
        *(attribute(1, 1), attribute(2, 1), attribute(3, len(mask))),
        *(attribute(4, [attribute(1, mask)]), attribute(5, nothing)),
    )


def verdict(code: int) -> bytes:
    told = attribute(2, [attribute(1, code)])
    return expression("immediate", attribute(1, 0), attribute(2, [told]))


def to(network: ipaddress.IPv4Network) -> list[bytes]:
    mask = [] if network.prefixlen == 32 else [masked(network.netmask.packed)]
    return [load(NETWORK_HEADER, 16, 4), *mask, equals(network.network_address.packed)]


class NetlinkSocket:
    """One socket of one family; every message is acknowledged."""

    def __init__(self, family: int) -> None:
        self.socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, family)
        self.socket.bind((0, 0))

    def send(self, messages: list[tuple[int, int, bytes, bool]]) -> None:
        """Send `(type, flags, body, acknowledged)` together, and raise what the kernel objects to."""
        data, awaited = b"", 0
        for number, (kind, flags, body, acknowledged) in enumerate(messages, start=1):
            flags |= REQUEST | (ACK if acknowledged else 0)
            awaited += acknowledged
            data += struct.pack("=IHHII", 16 + len(body), kind, flags, number, 0) + body
        self.socket.send(data)
        while awaited:
            answer = self.socket.recv(1 << 16)
            while len(answer) >= 20:
                length, kind = struct.unpack_from("=IH", answer)
                (code,) = struct.unpack_from("=i", answer, 16)
                if kind == 2 and code:
                    raise OSError(-code, os.strerror(-code))
                awaited -= 1
                answer = answer[(length + 3) & ~3 :]


def filter_message(
    kind: int, flags: int, *attributes: bytes, family: int = socket.AF_INET
) -> tuple[int, int, bytes, bool]:
    head = struct.pack(">BBH", family, 0, 0)
    return NFTABLES << 8 | kind, flags, head + b"".join(attributes), True


def refuse(denied: Networks, servers: Networks, allowed: Networks) -> None:
    """The filter, made whole or not at all; a second time replaces the first."""
    rules = [
        [*to(server), load(TRANSPORT_HEADER, 2, 2), equals(struct.pack(">H", 53)), verdict(ACCEPT)]
        for server in servers
    ]
    rules += [[*to(network), verdict(ACCEPT)] for network in allowed]
    rules += [[*to(network), verdict(DROP)] for network in denied]
    send_table(socket.AF_INET, rules)
    loopback = ipaddress.IPv6Address("::1").packed
    try:
        send_table(
            socket.AF_INET6,
            [[load(NETWORK_HEADER, 24, 16), equals(loopback), verdict(ACCEPT)], [verdict(DROP)]],
        )
    except OSError:
        if has_ipv6():
            raise


def send_table(family: int, rules: list[list[bytes]]) -> None:
    batch = struct.pack(">BBH", 0, 0, NFTABLES)
    named = attribute(1, TABLE)
    hook = attribute(4, [attribute(1, OUT_HOOK), attribute(2, 0)])
    chain = (named, attribute(3, "out"), hook, attribute(7, "filter"), attribute(5, ACCEPT))
    messages = [(0x10, 0, batch, False)]
    messages += [filter_message(0, CREATE, named, family=family), filter_message(2, 0, named, family=family)]
    messages += [
        filter_message(0, CREATE, named, family=family),
        filter_message(3, CREATE, *chain, family=family),
    ]
    for rule in rules:
        body = (named, attribute(2, "out"), attribute(4, rule))
        messages.append(filter_message(6, CREATE | APPEND, *body, family=family))
    messages.append((0x11, 0, batch, False))
    NetlinkSocket(NETFILTER).send(messages)


def has_ipv6() -> bool:
    """Return whether an interface other than the loopback has an IPv6 address."""
    try:
        with open("/proc/net/if_inet6") as table:
            return any(line.split()[-1] != "lo" for line in table)
    except OSError:
        return False


def route_nowhere(networks: Iterable[ipaddress.IPv4Network]) -> None:
    """Unreachable routes; one that is there already is fine."""
    routes = NetlinkSocket(ROUTE)
    for network in networks:
        body = struct.pack("=BBBBBBBBI", socket.AF_INET, network.prefixlen, 0, 0, 254, 4, 0, 7, 0)
        try:
            routes.send([(24, CREATE | EXCLUSIVE, body + attribute(1, network.network_address.packed), True)])
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise


def gateways() -> Iterator[ipaddress.IPv4Network]:
    """Yield where this namespace's routes lead: addresses of the host itself."""
    with open("/proc/net/route") as table:
        for line in list(table)[1:]:
            address = struct.pack("=I", int(line.split()[2], 16))
            if any(address):
                yield ipaddress.IPv4Network((address, 32))


def main() -> None:
    """Fence in the namespace this runs in."""
    denied, servers, allowed = (
        [ipaddress.IPv4Network(text, strict=False) for text in word.split(",") if text]
        for word in sys.argv[1:4]
    )
    denied += [network for network in gateways() if network not in denied]
    refuse(denied, servers, allowed)
    reachable = [*servers, *allowed]
    route_nowhere(net for net in denied if not any(one.overlaps(net) for one in reachable))


if __name__ == "__main__":
    main()
