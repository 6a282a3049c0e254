"""Runs as a program of its own, by path and without site packages: it is exec'd once per sandbox.

It makes the router's network namespace, hands netlink sockets of the router and of the sandbox to the
parent, and then becomes the user-mode network tool. A process of its own, because only a single-threaded
one may enter a user namespace. It imports little: every millisecond here is one of each sandbox's start.

argv: control fd, fd of the sandbox's netns, fd of the userns that owns it (-1: ours), parent's pid,
`join` or `stay`, then the tool's command line, with {pid} for a process in the router's namespaces and
{ready} for the ready pipe, which is standard output otherwise.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import stat
import struct
import sys

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
MS_REC_PRIVATE = 0x4000 | 0x40000
MS_NOSUID_NOEXEC = 0x2 | 0x8
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
CAPABILITY_VERSION_3 = 0x20080522
CAP_NET_ADMIN = 12
TUN_FOLDER = "/dev/net"
TUN = f"{TUN_FOLDER}/tun"

_libc = ctypes.CDLL(None, use_errno=True)


def _check(what: str, result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    words = (word.encode() for word in (source, target, kind))
    _check(f"mount {target}", _libc.mount(*words, ctypes.c_ulong(flags), options.encode()))


def _set_sysctl(name: str, value: str) -> None:
    with open(f"/proc/sys/net/{name}", "w") as file:
        file.write(value)


def _disable_ipv6(*scopes: str) -> None:
    try:
        for scope in scopes:
            _set_sysctl(f"ipv6/conf/{scope}/disable_ipv6", "1")
    except FileNotFoundError:
        pass  # a kernel without IPv6


def _open_netlink() -> socket.socket:
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
    opened.bind((0, 0))
    return opened


def _share_tun() -> None:
    """Let an id that is not the host's root open the tun device, in a mount namespace of our own.

    Some systems keep it 0600. It gives no rights by itself: making an interface needs CAP_NET_ADMIN over
    the network namespace.
    """
    status = os.stat(TUN)  # noqa: PTH116 - importing pathlib costs milliseconds
    if status.st_mode & 0o006 == 0o006:
        return
    _check("unshare mounts", _libc.unshare(CLONE_NEWNS))
    _mount("none", "/", "", MS_REC_PRIVATE)
    _mount("tmpfs", TUN_FOLDER, "tmpfs", MS_NOSUID_NOEXEC, "mode=755")
    os.umask(0)
    os.mknod(TUN, stat.S_IFCHR | 0o666, status.st_rdev)


def _become_namespace_root(userns: int) -> None:
    """Give up the host's root for the root of the sandbox's user namespace."""
    _share_tun()
    _check("enter the user namespace", _libc.setns(userns, CLONE_NEWUSER))
    try:
        os.setgroups([])
    except PermissionError:
        pass  # a user namespace may forbid it, and then the groups mean nothing inside
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _let_tool_look() -> None:
    """Let the tool open our /proc/PID/ns, for which we may have no capability that it gave up.

    Entering namespaces made us undumpable besides.
    """
    kept = 1 << CAP_NET_ADMIN
    header = struct.pack("=Ii", CAPABILITY_VERSION_3, 0)
    _check("drop capabilities", _libc.capset(header, struct.pack("=6I", kept, kept, 0, 0, 0, 0)))
    _check("stay dumpable", _libc.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0))


def _hold_router(control: socket.socket, netns: int, userns: int, ready: int) -> None:
    """Make the router's namespace and keep it until the tool and the parent have hold of it."""
    if userns >= 0:
        _check("enter the user namespace", _libc.setns(userns, CLONE_NEWUSER))
    _check("enter the sandbox's network namespace", _libc.setns(netns, CLONE_NEWNET))
    _disable_ipv6("default")  # of interfaces to come: the sandbox's own ::1 stays
    sandbox = _open_netlink()
    _check("make the router's network namespace", _libc.unshare(CLONE_NEWNET))
    _disable_ipv6("all", "default")
    for scope in ("all", "default"):
        # The router's tables know the way back only by interface; the host's setting is inherited.
        _set_sysctl(f"ipv4/conf/{scope}/rp_filter", "0")
        _set_sysctl(f"ipv4/conf/{scope}/accept_source_route", "0")
    _set_sysctl("ipv4/ip_forward", "1")
    router = _open_netlink()
    _let_tool_look()
    socket.send_fds(control, [b"n"], [router.fileno(), sandbox.fileno()])
    os.write(ready, str(os.getpid()).encode())
    os.close(ready)
    tap = control.recv(64).decode()
    if tap:
        # slirp asks for the sandbox's address on the tap, where only the router can answer.
        _set_sysctl(f"ipv4/neigh/{tap}/proxy_delay", "0")
        _set_sysctl(f"ipv4/conf/{tap}/proxy_arp", "1")
        control.send(b"t")


def _start_holder(control: socket.socket, netns: int, userns: int) -> int:
    """Fork twice, so that the tool has no child it does not know of; the holder's pid."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            os.close(reader)
            for standard in (0, 1):
                os.close(standard)
            _hold_router(control, netns, userns, writer)
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    answer = os.read(reader, 32)
    if not answer:
        os._exit(1)
    os.close(reader)
    return int(answer)


def main() -> None:
    """Set up, then become the tool."""
    control_fd, netns, userns, parent = (int(word) for word in sys.argv[1:5])
    for inherited in (control_fd, netns, userns):
        if inherited >= 0:
            os.set_inheritable(inherited, False)  # none of them is the tool's business
    control = socket.socket(fileno=control_fd)
    # pasta reopens its standard output by name to say that it is ready, and may have another id by then.
    os.fchmod(1, 0o622)
    if sys.argv[5] == "join":
        if userns >= 0:
            _become_namespace_root(userns)
        userns = -1
    _check("die with the parent", _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))
    if os.getppid() != parent:
        os._exit(1)
    holder = _start_holder(control, netns, userns)
    argv = [word.replace("{pid}", str(holder)) for word in sys.argv[6:]]
    if any("{ready}" in word for word in argv):
        ready = os.dup(1)
        os.set_inheritable(ready, True)
        os.dup2(2, 1)
        argv = [word.replace("{ready}", str(ready)) for word in argv]
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored_by_python, signal.SIG_DFL)
    os.execv(argv[0], argv)  # noqa: S606


if __name__ == "__main__":
    main()
