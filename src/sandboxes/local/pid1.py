"""The first process of a sandbox: sleeps, and lets the kernel reap every orphan.

It must exist on any root file system, cost next to nothing, survive `kill -9 -1` (the kernel spares the
first process of a namespace), leave no zombies (a parent that ignores SIGCHLD has none) and not be
traceable: it outlives `kill_all`, so nobody may hide in it. So it is a program of some two hundred bytes,
assembled here and run from memory. Where that does not work a shell does all but the last.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct

READY_FD = 3
PROGRAM_FD = 4
FIRST_FREE_FD = 20
"""Descriptors to be handed over are kept from here on, so that none is overwritten on the way."""

_BASE = 0x400000
_ELF_HEADER = 64
_PROGRAM_HEADER = 56
_MFD_CLOEXEC = 0x1
_MFD_ALLOW_SEALING = 0x2
_MFD_EXEC = 0x10
_F_ADD_SEALS = 1033
_ALL_SEALS = 0x1 | 0x2 | 0x4 | 0x8
_CHECK_MS = 2000

_PR_SET_DUMPABLE = 4
_SIGCHLD = 17
_IGNORE_ACTION = struct.pack("<QQQQ", 1, 0, 0, 0)  # SIG_IGN, no flags, no restorer, empty mask

_SHELL = ("/bin/sh", "-c", f"trap '' CHLD HUP INT TERM; echo >&{READY_FD}; exec sleep 2147483647 3>&- 4>&-")


class _X86_64:
    """How to call the kernel on this processor, and its numbers."""

    elf_machine = 62
    prctl, sigaction, write, close_range = 157, 13, 1, 436
    sleep: tuple[int, ...] = (34,)  # pause
    _registers = (b"\xbf", b"\xbe", b"\xba", b"\x41\xba")  # mov edi, esi, edx, r10d

    def call(self, number: int, *arguments: int) -> bytes:
        loads = [self._registers[at] + struct.pack("<I", value) for at, value in enumerate(arguments)]
        return b"".join(loads) + b"\xb8" + struct.pack("<I", number) + b"\x0f\x05"  # mov eax; syscall

    def back(self, size: int) -> bytes:
        return b"\xeb" + struct.pack("<b", -size - 2)  # jmp


class _Aarch64:
    """How to call the kernel on this processor, and its numbers."""

    elf_machine = 183
    prctl, sigaction, write, close_range = 167, 134, 64, 436
    sleep: tuple[int, ...] = (73, 0, 0, 0, 0)  # ppoll

    def call(self, number: int, *arguments: int) -> bytes:
        words = [word for at, value in enumerate(arguments) for word in self._load(at, value)]
        return struct.pack(f"<{len(words) + 3}I", *words, *self._load(8, number), 0xD4000001)  # svc 0

    def _load(self, register: int, value: int) -> tuple[int, int]:
        low, high = value & 0xFFFF, value >> 16
        return 0xD2800000 | low << 5 | register, 0xF2A00000 | high << 5 | register  # movz, movk lsl 16

    def back(self, size: int) -> bytes:
        return struct.pack("<I", 0x14000000 | -size // 4 & 0x3FFFFFF)  # b


_PROCESSORS: dict[str, _X86_64 | _Aarch64] = {"x86_64": _X86_64(), "aarch64": _Aarch64()}


def _code(cpu: _X86_64 | _Aarch64, action: int) -> bytes:
    """Refuse to be traced, ignore SIGCHLD, say we are ready, close every descriptor, sleep for ever."""
    sleep = cpu.call(*cpu.sleep)
    return b"".join(
        (
            cpu.call(cpu.prctl, _PR_SET_DUMPABLE, 0),
            cpu.call(cpu.sigaction, _SIGCHLD, action, 0, 8),
            cpu.call(cpu.write, READY_FD, action, 1),
            cpu.call(cpu.close_range, 0, 0xFFFFFFFF, 0),
            sleep,
            cpu.back(len(sleep)),
        )
    )


def _elf(cpu: _X86_64 | _Aarch64) -> bytes:
    start = _BASE + _ELF_HEADER + _PROGRAM_HEADER
    body = _code(cpu, start + len(_code(cpu, 0))) + _IGNORE_ACTION
    size = _ELF_HEADER + _PROGRAM_HEADER + len(body)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    fields = (2, cpu.elf_machine, 1, start, _ELF_HEADER, 0, 0, _ELF_HEADER, _PROGRAM_HEADER, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x10000)
    return ident + struct.pack("<HHIQQQIHHHHHH", *fields) + segment + body


def open_program() -> int | None:
    """The program as a sealed descriptor to run, or None where the shell must do."""
    cpu = _PROCESSORS.get(os.uname().machine)
    if cpu is None:
        return None
    try:
        fd = os.memfd_create("init", _MFD_CLOEXEC | _MFD_ALLOW_SEALING | _MFD_EXEC)
    except OSError:  # Linux before 6.3 does not know MFD_EXEC and makes it executable anyway
        fd = os.memfd_create("init", _MFD_CLOEXEC | _MFD_ALLOW_SEALING)
    os.write(fd, _elf(cpu))
    os.fchmod(fd, 0o555)
    fcntl.fcntl(fd, _F_ADD_SEALS, _ALL_SEALS)
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE_FD)
    os.close(fd)
    if _works(high):
        return high
    os.close(high)
    return None


def _works(program: int) -> bool:
    """Whether the program says it is ready: some systems forbid programs in memory."""
    read, write = os.pipe()
    high = fcntl.fcntl(write, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE_FD)
    os.close(write)
    try:
        actions = [(os.POSIX_SPAWN_DUP2, high, READY_FD)]
        pid = os.posix_spawn(f"/proc/self/fd/{program}", ["init"], {}, file_actions=actions)
    except OSError:
        return False
    finally:
        os.close(high)
    poller = select.poll()
    poller.register(read, select.POLLIN)
    ready = bool(poller.poll(_CHECK_MS)) and os.read(read, 1) != b""
    os.close(read)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return ready


def argv(program_fd: int | None) -> tuple[str, ...]:
    """What bubblewrap runs as process 1, given the descriptor it finds at PROGRAM_FD."""
    return (f"/proc/self/fd/{PROGRAM_FD}",) if program_fd is not None else _SHELL
