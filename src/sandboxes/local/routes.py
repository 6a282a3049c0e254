"""Route between a sandbox and the user-mode network tool: netlink requests, what is forwarded and refused,
and the tools themselves."""

from __future__ import annotations

import errno
import os
import shutil
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final, Literal

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
        """Return every destination this namespace delivers to itself, broadcast addresses among them.

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


# The programs that give a network namespace its way out, and how each is told to.

LINK: Final = IPv4Network("192.0.0.128/25")
"""Addresses between sandbox and tool: of a block that is IANA's own and on nobody's LAN."""
GATEWAY: Final = IPv4Address("192.0.0.130")
DNS: Final = IPv4Address("192.0.0.131")
ROUTER: Final = IPv4Address("192.0.0.200")
SANDBOX: Final = IPv4Address("192.0.0.201")
TAP: Final = "tap0"
MTU: Final = 65520

RESOLV_CONF: Final = f"nameserver {DNS}\n"
"""What `/etc/resolv.conf` of a sandbox with a network must say; known before its start."""

ToolName = Literal["pasta", "slirp4netns"]
PREFERENCE: Final[tuple[ToolName, ...]] = ("pasta", "slirp4netns")


@dataclass(frozen=True, slots=True)
class NetworkTool:
    """A user-mode network program on this machine."""

    name: ToolName
    path: str

    def argv(self, *, join_userns: bool) -> list[str]:
        """Its command line; `join_userns`: it starts outside the user namespace and must enter it.

        `{pid}` stands for a process in the namespaces to enter, `{ready}` for the fd that takes a number
        when the tool serves: that is standard output unless asked for, which pasta cannot, as it closes
        all other fds.
        """
        return self._pasta(join_userns) if self.name == "pasta" else self._slirp(join_userns)

    def _pasta(self, join_userns: bool) -> list[str]:
        argv = [self.path, "--foreground", "--quiet", "--pid", "/proc/self/fd/1"]
        argv += ["--ipv4-only", "--address", str(SANDBOX), "--netmask", str(LINK.prefixlen)]
        argv += ["--gateway", str(GATEWAY), "--dns-forward", str(DNS), "--mtu", str(MTU)]
        argv += ["--no-map-gw", "--no-dhcp", "--no-dhcpv6", "--no-ndp", "--no-ra"]
        # The defaults forward whatever listens, in both directions: -T and -U would open the host's loopback.
        for direction in ("-t", "-u", "-T", "-U"):
            argv += [direction, "none"]
        argv += ["--userns", "/proc/{pid}/ns/user"] if join_userns else ["--netns-only", "--runas", "0:0"]
        # The path goes away with the process that held it, the namespace does not.
        return [*argv, "--no-netns-quit", "--ns-ifname", TAP, "--netns", "/proc/{pid}/ns/net"]

    def _slirp(self, join_userns: bool) -> list[str]:
        argv = [self.path, "--ready-fd={ready}", "--exit-fd=0", "--disable-host-loopback", f"--cidr={LINK}"]
        argv += [f"--mtu={MTU}", "--enable-sandbox", "--enable-seccomp"]
        if join_userns:
            # Given a path instead, 1.2 forgets to enter the user namespace before it shuts itself in.
            return [*argv, "{pid}", TAP]
        return [*argv, "--netns-type=path", "/proc/{pid}/ns/net", TAP]


def find_tool(name: ToolName | None = None) -> NetworkTool | None:
    """The best tool installed here, or the named one; None when there is none."""
    for candidate in PREFERENCE if name is None else (name,):
        path = shutil.which(candidate)
        if path is not None:
            return NetworkTool(candidate, path)
    return None


def why_unavailable() -> str | None:
    """Return why a sandbox cannot have a network here and what to do about it; None when it can."""
    if find_tool() is None:
        return "no user-mode network program is installed; install passt: apt install passt"
    tun = Path("/dev/net/tun")
    if not tun.exists():
        return f"{tun} is missing; load the tun module: modprobe tun (in a container: --device {tun})"
    if not os.access(tun, os.R_OK | os.W_OK):
        return f"{tun} is closed to this user; open it: sudo chmod 666 {tun}"
    return None


# The router between a sandbox and the user-mode network tool: what it forwards and what it refuses.
#
# sandbox's namespace                router's namespace                      host eth0 192.0.0.201 ─────
# veth0 192.0.0.200 ─ rules ─ tap0 ───── pasta or slirp4netns
#
# Routes in the sandbox's own namespace would not do: a socket bound to an interface (SO_BINDTODEVICE,
# IP_UNICAST_IF; no privilege needed) passes by unreachable routes, the kernel then takes any address to be
# on the link, and pasta answers for every address. What arrives from outside a namespace gets no such
# favour.


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
