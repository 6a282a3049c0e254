"""Restrict processes: capabilities and parent-death signal, system calls, and membership in cgroups."""

from __future__ import annotations

import ctypes
import errno
import os
import select
import signal
import struct

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


# System calls commands in a sandbox never get, on top of namespaces and capabilities.
#
# Much like Docker's filter: what reaches across namespaces (keys), what makes new namespaces with full
# rights in them, what loads code into the kernel or has often been a way into it. Everything else passes.
# Processors that are not in the table get no filter; the other walls stand there too.

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


class _X86_64:
    """Where one processor's system calls differ from another's."""

    architecture = 0xC000003E
    # add_key, request_key, keyctl, bpf, perf_event_open, userfaultfd, kexec_load, init_module, finit_module,
    # delete_module, open_by_handle_at, acct, swapon
    refused = (248, 249, 250, 321, 298, 323, 246, 175, 313, 176, 304, 163, 167)
    mounting = (165, 166, 155)  # mount, umount2, pivot_root
    clone, unshare, ioctl = 56, 272, 16
    sockets = (41, 53)  # socket, socketpair
    socketcall: int | None = None
    """The one call for all of sockets that came first; its arguments lie in memory."""


class _I386(_X86_64):
    architecture = 0x40000003
    refused = (286, 287, 288, 357, 336, 374, 283, 128, 350, 129, 342, 51, 87)
    mounting = (21, 52, 217)
    clone, unshare, ioctl = 120, 310, 54
    sockets = (359, 360)
    socketcall = 102


class _Aarch64(_X86_64):
    architecture = 0xC00000B7
    refused = (217, 218, 219, 280, 241, 282, 104, 105, 273, 106, 265, 89, 224)
    mounting = (40, 39, 41)
    clone, unshare, ioctl = 220, 97, 29
    sockets = (198, 199)


_MACHINES: dict[str, tuple[type[_X86_64], ...]] = {"x86_64": (_X86_64, _I386), "aarch64": (_Aarch64,)}

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


def _rules_for(numbers: type[_X86_64], *, mounting: bool) -> list[_Rule]:
    """The rules once the architecture is known. Each check falls through to the next when it misses."""
    rules = [_rule(_LOAD, _AT_NUMBER)]
    if numbers is _X86_64:
        rules += [_rule(_JUMP_AT_LEAST, _X32_BIT, 0, 1), _rule(_RETURN, _UNKNOWN)]
    refused = (*numbers.refused, *_IO_URING)
    for number in refused if mounting else (*refused, *numbers.mounting, *_NEW_MOUNTING):
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


def seccomp_program(machine: str, *, mounting: bool) -> bytes | None:
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


def install_seccomp(*, mounting: bool) -> None:
    """Filter this process and all it starts. Needs CAP_SYS_ADMIN in its own user namespace.

    `mounting` leaves mounts to the capability they need, for a keeper whose wardens have yet to mount.
    """
    rules = seccomp_program(os.uname().machine, mounting=mounting)
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


# Cgroups for the keeper: joining and removing, by folders opened before it drops the host's mounts.
#
# Making them, with their limits, is the engine's part (`sandboxes.cgroups`).

_PATIENCE_SECONDS = 10.0
_PAUSE_MS = 2
_NEAR_PART = 16
_NO_LIMIT = 1 << 60
_PIDS = "pids.max"
_LIMITS = (_PIDS, "memory.memsw.limit_in_bytes", "memory.limit_in_bytes", "memory.max")
"""In the order in which they are changed: version 1 keeps memory with swap above memory alone."""


class CgroupFolders:
    """The folders in which the engine makes cgroups, by path, as descriptors."""

    def __init__(self, parents: dict[str, int]) -> None:
        self._parents = parents
        self._limits: dict[tuple[str, str], int] = {}
        """What changed limits were, by group and file."""

    def join(self, group: str) -> None:
        """Put this process, which has one thread, into a group.

        Moving a thread takes no lock, moving a process waits for every fork in the whole system. Only
        version 1 lets threads go alone; there the file is called `tasks`.
        """
        try:
            fd = self._open(group, "tasks", os.O_WRONLY)
        except FileNotFoundError:
            fd = self._open(group, "cgroup.procs", os.O_WRONLY)
        try:
            os.write(fd, b"0")
        finally:
            os.close(fd)

    def open_count(self, groups: list[str]) -> int | None:
        """A file that tells how many tasks are in the sandbox right now, if one of its groups counts them."""
        for group in groups:
            try:
                return self._open(group, "pids.current", os.O_RDONLY)
            except FileNotFoundError:
                continue
        return None

    def starved_from_outside(self, groups: list[str]) -> bool:
        """Return whether the kernel killed something in these groups for lack of memory that was not theirs.

        It counts every process of a group that it kills. A group that came to its own limit is believed to
        be the cause.
        """
        for group in groups:
            events = self._numbers(group, "memory.events")  # version 2
            if events:
                return events.get("oom_kill", 0) > 0 and events.get("oom", 0) == 0
            events = self._numbers(group, "memory.oom_control")
            if events:
                return events.get("oom_kill", 0) > 0 and not self._was_full(group)
        return False

    def _was_full(self, group: str) -> bool:
        """Return whether a group of version 1 came near its limit. Not every kernel counts how often it hit
        it."""
        file = "memory.limit_in_bytes"
        limit = self._limits.get((group, file)) or self._numbers(group, file).get("", 0)
        most = self._numbers(group, "memory.max_usage_in_bytes").get("", limit)
        return most >= limit - limit // _NEAR_PART

    def _numbers(self, group: str, file: str) -> dict[str, int]:
        """The lines of a file with a name and a number each; a number alone has no name."""
        try:
            fd = self._open(group, file, os.O_RDONLY)
        except OSError:
            return {}
        with open(fd) as opened:
            lines = [line.rpartition(" ") for line in opened.read().splitlines()]
        return {name: int(number) for name, _, number in lines if number.isdigit()}

    def _write(self, group: str, file: str, number: int) -> bool:
        try:
            fd = self._open(group, file, os.O_WRONLY)
        except OSError:
            return False
        try:
            os.write(fd, str(number).encode())
        except OSError:
            return False  # the other limit of version 1 forbids it, or the group is fuller than that
        finally:
            os.close(fd)
        return True

    def make_way(self, groups: list[str]) -> None:
        """Let nothing fork any more, and double the memory limits, in groups whose processes are killed next.

        A process that looks for memory in a full group dies only when it has found some or given up, and
        thousands of them keep each other from that for minutes, while others take what the dead gave back.
        """
        for group in groups:
            for file in _LIMITS:
                limit = self._numbers(group, file).get("", 0)
                wanted = 0 if file == _PIDS else 2 * limit
                known = (group, file) in self._limits
                if not known and 0 < limit < _NO_LIMIT and self._write(group, file, wanted):
                    self._limits[group, file] = limit

    def restore(self, groups: list[str]) -> None:
        """Set the limits back to what they were before `make_way`."""
        for group in groups:
            for file in reversed(_LIMITS):
                limit = self._limits.get((group, file))
                if limit is not None and self._write(group, file, limit):
                    del self._limits[group, file]

    def remove(self, group: str) -> None:
        """Remove a group, and kill what is still in it; one that is gone is fine."""
        parent, _, name = group.rpartition("/")
        poller = select.poll()
        for _ in range(int(_PATIENCE_SECONDS * 1000 / _PAUSE_MS)):
            try:
                os.rmdir(name, dir_fd=self._parents[parent])
            except FileNotFoundError:
                break
            except OSError:
                self.make_way([group])
                self._kill(group)
                poller.poll(_PAUSE_MS)
            else:
                break
        for file in _LIMITS:
            self._limits.pop((group, file), None)

    def _kill(self, group: str) -> None:
        try:
            fd = self._open(group, "cgroup.procs", os.O_RDONLY)
        except FileNotFoundError:
            return
        with open(fd) as file:
            pids = [int(pid) for pid in file.read().split()]
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def _open(self, group: str, file: str, flags: int) -> int:
        parent, _, name = group.rpartition("/")
        return os.open(f"{name}/{file}", flags | os.O_CLOEXEC, dir_fd=self._parents[parent])
