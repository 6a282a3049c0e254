"""What a process may do: capabilities, parent-death signal, dumpability, all by prctl and capset."""

from __future__ import annotations

import ctypes
import os

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_SIGKILL = 9

_CAPABILITIES = {
    "chown": 0,
    "dac_override": 1,
    "fowner": 3,
    "fsetid": 4,
    "kill": 5,
    "setgid": 6,
    "setuid": 7,
    "setpcap": 8,
    "net_bind_service": 10,
    "net_raw": 13,
    "sys_chroot": 18,
    "mknod": 27,
    "audit_write": 29,
    "setfcap": 31,
}
"""What Docker gives a container, by name and number."""

IN_USER_NAMESPACE = frozenset(_CAPABILITIES.values())
"""What commands keep as root of their own user namespace."""

WITHOUT_USER_NAMESPACE = IN_USER_NAMESPACE - {_CAPABILITIES["mknod"], _CAPABILITIES["setfcap"]}
"""What commands keep where their root is the machine's: no device nodes, no file capabilities."""

_libc = ctypes.CDLL(None, use_errno=True)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), *(ctypes.c_ulong(0),) * 3) < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{os.strerror(number)} (prctl {option})")


def die_with(parent: int) -> None:
    """Be killed when the parent process goes. The kernel forgets this on a change of user: call again."""
    _prctl(_PR_SET_PDEATHSIG, _SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def hide_memory() -> None:
    """Keep every other user namespace's root from looking into this process or its descriptors."""
    _prctl(_PR_SET_DUMPABLE, 0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent died."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def forbid_new_privileges() -> None:
    """No program started from here gains privileges by set-user-id bits or file capabilities."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def last_capability() -> int:
    """The highest capability this kernel knows."""
    with open("/proc/sys/kernel/cap_last_cap") as file:
        return int(file.read())


def bound_capabilities(kept: frozenset[int], last: int) -> None:
    """Limit what any program started from here can ever hold; this process keeps what it has."""
    for number in range(last + 1):
        if number not in kept:
            _prctl(_PR_CAPBSET_DROP, number)
