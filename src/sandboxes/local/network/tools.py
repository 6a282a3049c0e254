"""The programs that give a network namespace its way out, and how each is told to."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Final, Literal

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
class Tool:
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


def find_tool(name: ToolName | None = None) -> Tool | None:
    """The best tool installed here, or the named one; None when there is none."""
    for candidate in PREFERENCE if name is None else (name,):
        path = shutil.which(candidate)
        if path is not None:
            return Tool(candidate, path)
    return None


def why_unavailable() -> str | None:
    """Why a sandbox cannot have a network here and what to do about it; None when it can."""
    if find_tool() is None:
        return "no user-mode network program is installed; install passt: apt install passt"
    tun = Path("/dev/net/tun")
    if not tun.exists():
        return f"{tun} is missing; load the tun module: modprobe tun (in a container: --device {tun})"
    if not os.access(tun, os.R_OK | os.W_OK):
        return f"{tun} is closed to this user; open it: sudo chmod 666 {tun}"
    return None
