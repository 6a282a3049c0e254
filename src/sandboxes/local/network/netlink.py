"""The few rtnetlink requests the sandbox network needs, so that no `ip` program is."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv4Network
from typing import Final

RTM_NEWLINK: Final = 16
RTM_DELLINK: Final = 17
RTM_GETLINK: Final = 18
RTM_NEWADDR: Final = 20
RTM_NEWROUTE: Final = 24
RTM_GETROUTE: Final = 26
RTM_NEWRULE: Final = 32

NLM_F_REQUEST: Final = 0x1
NLM_F_ACK: Final = 0x4
NLM_F_DUMP: Final = 0x300
NLM_F_EXCL: Final = 0x200
NLM_F_CREATE: Final = 0x400

NLMSG_ERROR: Final = 2
NLMSG_DONE: Final = 3

RTMGRP_IPV4_ROUTE: Final = 0x40

RT_TABLE_MAIN: Final = 254
RTN_UNICAST: Final = 1
RTN_LOCAL: Final = 2
RTN_BROADCAST: Final = 3
RTN_ANYCAST: Final = 4
RTN_UNREACHABLE: Final = 7
RTN_THROW: Final = 9
RTPROT_STATIC: Final = 4
RT_SCOPE_UNIVERSE: Final = 0
RTNH_F_ONLINK: Final = 4

IFF_UP: Final = 1
FR_ACT_TO_TBL: Final = 1

_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_NESTED: Final = 0x8000


def attribute(kind: int, value: bytes | int | str | IPv4Address) -> bytes:
    """One padded attribute; an int is 32 bits wide, text ends in NUL."""
    if isinstance(value, int):
        data = struct.pack("=I", value)
    elif isinstance(value, str):
        data = value.encode() + b"\0"
    elif isinstance(value, IPv4Address):
        data = value.packed
    else:
        data = value
    length = _ATTRIBUTE.size + len(data)
    return _ATTRIBUTE.pack(length, kind) + data + b"\0" * (-length % 4)


def attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The (kind, value) pairs in a row of attributes."""
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            return
        yield kind & ~_NESTED, data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]


def open_socket(groups: int = 0) -> socket.socket:
    """A netlink socket of the calling thread's network namespace; with `groups` for notices alone."""
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.NETLINK_ROUTE)
    opened.bind((0, groups))
    opened.setblocking(not groups)
    return opened


class Netlink:
    """Requests over one netlink socket, which acts on the namespace the socket was made in."""

    def __init__(self, opened: socket.socket) -> None:
        self._socket = opened
        self._sequence = 0

    def fileno(self) -> int:
        """The socket's fd."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def request(self, kind: int, body: bytes, flags: int = NLM_F_ACK) -> list[bytes]:
        """Send one request; the bodies of the answers, or OSError as the kernel put it."""
        self._sequence += 1
        header = _HEADER.pack(_HEADER.size + len(body), kind, flags | NLM_F_REQUEST, self._sequence, 0)
        self._socket.send(header + body)
        answers: list[bytes] = []
        while True:
            data = self._socket.recv(1 << 17)
            while data:
                length, answer, _flags, sequence, _port = _HEADER.unpack_from(data)
                payload = data[_HEADER.size : length]
                data = data[(length + 3) & ~3 :]
                if sequence != self._sequence:
                    continue
                if answer == NLMSG_DONE:
                    return answers
                if answer == NLMSG_ERROR:
                    (code,) = struct.unpack_from("=i", payload)
                    if code:
                        raise OSError(-code, os.strerror(-code))
                    return answers
                answers.append(payload)
                if not flags & (NLM_F_ACK | NLM_F_DUMP):
                    return answers

    def link_index(self, name: str) -> int:
        """The index of the interface called `name`."""
        (answer,) = self.request(RTM_GETLINK, bytes(16) + attribute(3, name), flags=0)
        index: int = struct.unpack_from("=i", answer, 4)[0]
        return index

    def add_veth(self, name: str, peer: str, peer_netns_fd: int, mtu: int) -> None:
        """A veth pair: `name` here, `peer` in the namespace behind the fd."""
        far = bytes(16) + attribute(3, peer) + attribute(4, mtu) + attribute(28, peer_netns_fd)
        data = attribute(1 | _NESTED, far)
        info = attribute(1, "veth") + attribute(2 | _NESTED, data)
        near = attribute(3, name) + attribute(4, mtu) + attribute(18 | _NESTED, info)
        self.request(RTM_NEWLINK, bytes(16) + near, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL)

    def remove_link(self, name: str) -> None:
        """Delete an interface, and its veth peer with it; none there is fine."""
        try:
            self.request(RTM_DELLINK, bytes(16) + attribute(3, name))
        except OSError as error:
            if error.errno != errno.ENODEV:
                raise

    def set_up(self, index: int, mtu: int | None = None) -> None:
        """Bring an interface up."""
        body = struct.pack("=BxHiII", socket.AF_UNSPEC, 0, index, IFF_UP, IFF_UP)
        self.request(RTM_NEWLINK, body if mtu is None else body + attribute(4, mtu))

    def add_address(self, index: int, address: IPv4Address, prefix: int) -> None:
        """Give an interface an address."""
        body = struct.pack("=BBBBi", socket.AF_INET, prefix, 0, RT_SCOPE_UNIVERSE, index)
        body += attribute(2, address) + attribute(1, address)
        self.request(RTM_NEWADDR, body, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL)

    def add_default_route(self, index: int, gateway: IPv4Address, table: int = RT_TABLE_MAIN) -> None:
        """A default route through `gateway`, which need not be in a subnet of the interface."""
        body = self._route(0, table, RTN_UNICAST, RTNH_F_ONLINK) + attribute(5, gateway) + attribute(4, index)
        self.request(RTM_NEWROUTE, body, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL)

    def add_unreachable(self, network: IPv4Network, table: int = RT_TABLE_MAIN) -> None:
        """Refuse a network; already refused is fine."""
        self._add_answer(network, table, RTN_UNREACHABLE)

    def add_exception(self, network: IPv4Network, table: int) -> None:
        """Leave a network to the rules after the one that led to this table; already so is fine."""
        self._add_answer(network, table, RTN_THROW)

    def _add_answer(self, network: IPv4Network, table: int, kind: int) -> None:
        body = self._route(network.prefixlen, table, kind, 0)
        body += attribute(1, network.network_address)
        try:
            self.request(RTM_NEWROUTE, body, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL)
        except FileExistsError:
            pass

    def add_rule(
        self,
        priority: int,
        table: int,
        *,
        arriving_on: str,
        source: IPv4Address,
        destination: IPv4Address | None = None,
        service: tuple[int, int] | None = None,
    ) -> None:
        """Look in `table` for packets of `source` that arrive on an interface.

        `service` is (protocol number, destination port).
        """
        to = 0 if destination is None else 32
        body = struct.pack("=BBBBBxxBI", socket.AF_INET, to, 32, 0, 0, FR_ACT_TO_TBL, 0)
        body += attribute(3, arriving_on) + attribute(6, priority) + attribute(15, table)
        body += attribute(2, source)
        if destination is not None:
            body += attribute(1, destination)
        if service is not None:
            protocol, port = service
            body += attribute(22, bytes([protocol])) + attribute(24, struct.pack("=HH", port, port))
        self.request(RTM_NEWRULE, body, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL)

    def local_networks(self) -> set[IPv4Network]:
        """Every destination this namespace delivers to itself, broadcast addresses among them.

        Routes rather than addresses: a `local` route makes addresses its own that no interface carries.
        """
        found: set[IPv4Network] = set()
        body = struct.pack("=BBBBBBBBI", socket.AF_INET, 0, 0, 0, 0, 0, 0, 0, 0)
        for answer in self.request(RTM_GETROUTE, body, NLM_F_DUMP):
            prefix, kind = answer[1], answer[7]
            if kind not in (RTN_LOCAL, RTN_BROADCAST, RTN_ANYCAST):
                continue
            for attribute_kind, value in attributes(answer[12:]):
                if attribute_kind == 1:
                    found.add(IPv4Network((value, prefix)))
        return found

    def drain(self) -> None:
        """Forget the notices that wait on a non-blocking, subscribed socket."""
        while True:
            try:
                self._socket.recv(1 << 17)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise

    @staticmethod
    def _route(prefix: int, table: int, kind: int, flags: int) -> bytes:
        return struct.pack(
            "=BBBBBBBBI", socket.AF_INET, prefix, 0, 0, table, RTPROT_STATIC, RT_SCOPE_UNIVERSE, kind, flags
        )
