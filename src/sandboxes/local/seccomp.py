"""System calls commands in a sandbox never get, on top of namespaces and capabilities.

Much like Docker's filter: what reaches across namespaces (keys), what makes new namespaces with full
rights in them, what loads code into the kernel or has often been a way into it. Everything else passes.
Processors that are not in the table get no filter; the other walls stand there too.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_ALLOW = 0x7FFF0000
_REFUSE = 0x00050000 | errno.EPERM
_UNKNOWN = 0x00050000 | errno.ENOSYS
_NO_FAMILY = 0x00050000 | errno.EAFNOSUPPORT

_CLONE_NEWUSER = 0x10000000
_TIOCSTI = 0x5412
_TIOCLINUX = 0x541C
_X32_BIT = 0x40000000

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_AT_NUMBER, _AT_ARCHITECTURE, _AT_ARGUMENT_0, _AT_ARGUMENT_1 = 0, 4, 16, 24

_IO_URING = (425, 426, 427)
# open_tree, move_mount, fsopen, fsconfig, fsmount, fspick, mount_setattr
_NEW_MOUNTING = (428, 429, 430, 431, 432, 433, 442)
_CLONE3 = 435

_FAMILIES = (1, 2, 10, 16)
"""Of sockets: AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. The others (AF_VSOCK, AF_PACKET, AF_ALG, AF_BLUETOOTH,
AF_TIPC and some thirty more) lead past the sandbox's network, or deep into the kernel."""
_SOCKETCALL_SOCKET, _SOCKETCALL_SOCKETPAIR = 1, 8


class _Numbers:
    """Where one processor's system calls differ from another's."""

    def __init__(
        self,
        architecture: int,
        refused: tuple[int, ...],
        mounting: tuple[int, ...],
        clone: int,
        unshare: int,
        ioctl: int,
        sockets: tuple[int, ...],
        socketcall: int | None = None,
    ) -> None:
        self.architecture = architecture
        self.refused = (*refused, *_IO_URING)
        self.mounting = (*mounting, *_NEW_MOUNTING)
        self.clone = clone
        self.unshare = unshare
        self.ioctl = ioctl
        self.sockets = sockets
        """socket, socketpair"""
        self.socketcall = socketcall
        """The one call for all of sockets that came first; its arguments lie in memory."""


# Refused, in this order: add_key, request_key, keyctl, bpf, perf_event_open, userfaultfd, kexec_load,
# init_module, finit_module, delete_module, open_by_handle_at, acct, swapon; and mount, umount2, pivot_root.
_X86_64 = _Numbers(
    0xC000003E,
    (248, 249, 250, 321, 298, 323, 246, 175, 313, 176, 304, 163, 167),
    (165, 166, 155),
    clone=56,
    unshare=272,
    ioctl=16,
    sockets=(41, 53),
)
_I386 = _Numbers(
    0x40000003,
    (286, 287, 288, 357, 336, 374, 283, 128, 350, 129, 342, 51, 87),
    (21, 52, 217),
    clone=120,
    unshare=310,
    ioctl=54,
    sockets=(359, 360),
    socketcall=102,
)
_AARCH64 = _Numbers(
    0xC00000B7,
    (217, 218, 219, 280, 241, 282, 104, 105, 273, 106, 265, 89, 224),
    (40, 39, 41),
    clone=220,
    unshare=97,
    ioctl=29,
    sockets=(198, 199),
)
_MACHINES = {"x86_64": (_X86_64, _I386), "aarch64": (_AARCH64,)}

_Rule = tuple[int, int, int, int]


def _rule(code: int, value: int, then: int = 0, otherwise: int = 0) -> _Rule:
    return code, then, otherwise, value


def _if_bits(argument: int, bits: int, answer: int) -> list[_Rule]:
    return [
        _rule(_LOAD, argument),
        _rule(_JUMP_ANY_BIT, bits, 0, 1),
        _rule(_RETURN, answer),
        _rule(_RETURN, _ALLOW),
    ]


def _if_equal(argument: int, values: tuple[int, ...], answer: int) -> list[_Rule]:
    return [*_matches(argument, values), _rule(_RETURN, _ALLOW), _rule(_RETURN, answer)]


def _unless_equal(argument: int, values: tuple[int, ...], answer: int) -> list[_Rule]:
    return [*_matches(argument, values), _rule(_RETURN, answer), _rule(_RETURN, _ALLOW)]


def _matches(argument: int, values: tuple[int, ...]) -> list[_Rule]:
    """Go on with the next rule if no value is it, and with the one after that if one is."""
    last = len(values)
    checks = [_rule(_JUMP_EQUAL, value, last - at, 0) for at, value in enumerate(values)]
    return [_rule(_LOAD, argument), *checks]


def _rules_for(numbers: _Numbers, *, mounting: bool) -> list[_Rule]:
    """The rules once the architecture is known. Each check falls through to the next when it misses."""
    rules = [_rule(_LOAD, _AT_NUMBER)]
    if numbers is _X86_64:
        rules += [_rule(_JUMP_AT_LEAST, _X32_BIT, 0, 1), _rule(_RETURN, _UNKNOWN)]
    for number in numbers.refused if mounting else (*numbers.refused, *numbers.mounting):
        rules += [_rule(_JUMP_EQUAL, number, 0, 1), _rule(_RETURN, _REFUSE)]
    # Its flags lie in memory where a filter cannot look; libraries then use clone.
    rules += [_rule(_JUMP_EQUAL, _CLONE3, 0, 1), _rule(_RETURN, _UNKNOWN)]
    for number in (numbers.clone, numbers.unshare):
        checks = _if_bits(_AT_ARGUMENT_0, _CLONE_NEWUSER, _REFUSE)
        rules += [_rule(_JUMP_EQUAL, number, 0, len(checks)), *checks]
    for number in numbers.sockets:
        checks = _unless_equal(_AT_ARGUMENT_0, _FAMILIES, _NO_FAMILY)
        rules += [_rule(_JUMP_EQUAL, number, 0, len(checks)), *checks]
    if numbers.socketcall is not None:
        # Which family is asked for cannot be seen here; libraries use the calls above where there are any.
        checks = _if_equal(_AT_ARGUMENT_0, (_SOCKETCALL_SOCKET, _SOCKETCALL_SOCKETPAIR), _NO_FAMILY)
        rules += [_rule(_JUMP_EQUAL, numbers.socketcall, 0, len(checks)), *checks]
    rules += [
        _rule(_JUMP_EQUAL, numbers.ioctl, 0, 4),
        _rule(_LOAD, _AT_ARGUMENT_1),
        _rule(_JUMP_EQUAL, _TIOCSTI, 1, 0),
        _rule(_JUMP_EQUAL, _TIOCLINUX, 0, 1),
        _rule(_RETURN, _REFUSE),
        _rule(_RETURN, _ALLOW),
    ]
    return rules


def program(machine: str, *, mounting: bool) -> bytes | None:
    """The filter for a processor, as the kernel wants it; None when there is none."""
    tables = _MACHINES.get(machine)
    if tables is None:
        return None
    rules = [_rule(_LOAD, _AT_ARCHITECTURE)]
    for numbers in tables:
        body = _rules_for(numbers, mounting=mounting)
        rules += [_rule(_JUMP_EQUAL, numbers.architecture, 0, len(body)), *body]
    rules.append(_rule(_RETURN, _UNKNOWN))
    return b"".join(struct.pack("<HBBI", *rule) for rule in rules)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("rules", ctypes.c_char_p))


def install(*, mounting: bool) -> None:
    """Filter this process and all it starts. Needs CAP_SYS_ADMIN in its own user namespace.

    `mounting` leaves mounts to the capability they need, for a keeper whose wardens have yet to mount.
    """
    rules = program(os.uname().machine, mounting=mounting)
    if rules is None:
        return
    filter_program = _Program(len(rules) // 8, rules)
    libc = ctypes.CDLL(None, use_errno=True)
    if (
        libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_SECCOMP_MODE_FILTER), ctypes.byref(filter_program), 0, 0)
        < 0
    ):
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)} (seccomp filter)")
