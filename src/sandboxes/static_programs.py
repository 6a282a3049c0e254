"""Assemble static programs of a few hundred bytes, among them the first process of a sandbox."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
from typing import Literal

ProgramName = Literal["init", "kill", "remove"]
READY_FD = 3

_BASE = 0x400000
_ELF_HEADER = 64
_PROGRAM_HEADER = 56
_PR_SET_DUMPABLE = 4
_SIGCHLD, _SIGKILL = 17, 9
_ALL_PROCESSES = -1 & 0xFFFFFFFF
_AT_FDCWD = -100 & 0xFFFFFFFF
_AT_REMOVEDIR = 0x200
_IGNORE_ACTION = struct.pack("<QQQQ", 1, 0, 0, 0)  # SIG_IGN, no flags, no restorer, empty mask


class X86_64:
    """How to call the kernel on this processor, and its numbers."""

    elf_machine = 62
    prctl, sigaction, write, close_range, kill, unlinkat, exit = 157, 13, 1, 436, 62, 263, 60
    sleep: tuple[int, ...] = (34,)  # pause
    _registers = (b"\xbf", b"\xbe", b"\xba", b"\x41\xba")  # mov edi, esi, edx, r10d

    def call(self, number: int, *arguments: int) -> bytes:
        """Call the kernel with 32-bit arguments."""
        loads = [self._registers[at] + struct.pack("<I", value) for at, value in enumerate(arguments)]
        return b"".join(loads) + b"\xb8" + struct.pack("<I", number) + b"\x0f\x05"  # mov eax; syscall

    def kill_everyone(self) -> bytes:
        """Call kill(-1, SIGKILL), which spares the caller and the first process."""
        return self.call(self.kill, _ALL_PROCESSES, _SIGKILL)

    def remove_arguments(self) -> bytes:
        """Unlink each argument, or remove it as an empty folder."""
        unlink = b"\x48\x8b\x33" + self._unlink(0)  # mov rsi, [rbx]
        as_folder = b"\x48\x8b\x33" + self._unlink(_AT_REMOVEDIR)
        following = b"\x48\x83\xc3\x08"  # add rbx, 8
        retry = b"\x85\xc0\x74" + struct.pack("<b", len(as_folder))  # test eax, eax; jz
        body = unlink + retry + as_folder + following
        # mov rax, [rbx]; test rax, rax; jz
        check = b"\x48\x8b\x03\x48\x85\xc0\x74" + struct.pack("<b", len(body) + 2)
        return b"\x48\x8d\x5c\x24\x10" + check + body + self.back(len(check) + len(body))  # lea rbx, [rsp+16]

    def _unlink(self, flags: int) -> bytes:
        folder, flag = struct.pack("<I", _AT_FDCWD), struct.pack("<I", flags)
        return b"\xbf" + folder + b"\xba" + flag + b"\xb8" + struct.pack("<I", self.unlinkat) + b"\x0f\x05"

    def back(self, size: int) -> bytes:
        """Jump back over `size` bytes."""
        return b"\xeb" + struct.pack("<b", -size - 2)  # jmp


class Aarch64:
    """How to call the kernel on this processor, and its numbers."""

    elf_machine = 183
    prctl, sigaction, write, close_range, kill, unlinkat, exit = 167, 134, 64, 436, 129, 35, 93
    sleep: tuple[int, ...] = (73, 0, 0, 0, 0)  # ppoll
    _svc = 0xD4000001

    def call(self, number: int, *arguments: int) -> bytes:
        """Call the kernel with 32-bit arguments."""
        words = [word for at, value in enumerate(arguments) for word in self._load(at, value)]
        return struct.pack(f"<{len(words) + 3}I", *words, *self._load(8, number), self._svc)

    def kill_everyone(self) -> bytes:
        """Call kill(-1, SIGKILL), which spares the caller and the first process."""
        words = (0x92800000, *self._load(1, _SIGKILL), *self._load(8, self.kill), self._svc)  # movn x0, 0
        return struct.pack(f"<{len(words)}I", *words)

    def remove_arguments(self) -> bytes:
        """Unlink each argument, or remove it as an empty folder."""
        unlink, as_folder = self._unlink(0), self._unlink(_AT_REMOVEDIR)
        body = (
            *unlink,
            0xB4000000 | (len(as_folder) + 1) << 5,  # cbz x0
            *as_folder,
            0x91002273,  # add x19, x19, 8
        )
        check = 0xF9400261, 0xB4000001 | (len(body) + 2) << 5  # ldr x1, [x19]; cbz x1
        words = (0x910043F3, *check, *body)  # add x19, sp, 16
        return struct.pack(f"<{len(words)}I", *words) + self.back(4 * (len(check) + len(body)))

    def _unlink(self, flags: int) -> tuple[int, ...]:
        # movn x0, 99; ldr x1, [x19]
        return 0x92800C60, 0xF9400261, *self._load(2, flags), *self._load(8, self.unlinkat), self._svc

    def _load(self, register: int, value: int) -> tuple[int, int]:
        low, high = value & 0xFFFF, value >> 16
        return 0xD2800000 | low << 5 | register, 0xF2A00000 | high << 5 | register  # movz, movk lsl 16

    def back(self, size: int) -> bytes:
        """Jump back over `size` bytes."""
        return struct.pack("<I", 0x14000000 | -size // 4 & 0x3FFFFFF)  # b


Processor = X86_64 | Aarch64
PROCESSORS: dict[str, Processor] = {"x86_64": X86_64(), "aarch64": Aarch64()}


def assemble(name: ProgramName, cpu: Processor) -> bytes:
    """Return the program as an ELF file.

    init: refuse to be traced, ignore SIGCHLD, write a byte to READY_FD, close every descriptor, sleep for
    ever. kill: kill every other process but the first. remove: delete each argument, a file, a link or an
    empty folder; what cannot be deleted stays.
    """
    start = _BASE + _ELF_HEADER + _PROGRAM_HEADER
    if name == "init":
        return _elf(cpu, _sleep_for_ever(cpu, start + len(_sleep_for_ever(cpu, 0))) + _IGNORE_ACTION)
    work = cpu.kill_everyone() if name == "kill" else cpu.remove_arguments()
    return _elf(cpu, work + cpu.call(cpu.exit, 0))


def _sleep_for_ever(cpu: Processor, action: int) -> bytes:
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


def _elf(cpu: Processor, body: bytes) -> bytes:
    start = _BASE + _ELF_HEADER + _PROGRAM_HEADER
    size = _ELF_HEADER + _PROGRAM_HEADER + len(body)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    fields = (2, cpu.elf_machine, 1, start, _ELF_HEADER, 0, 0, _ELF_HEADER, _PROGRAM_HEADER, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x10000)
    return ident + struct.pack("<HHIQQQIHHHHHH", *fields) + segment + body


# The first process of a sandbox: sleeps, and lets the kernel reap every orphan.
#
# It must exist on any root file system, cost next to nothing, survive `kill -9 -1` (the kernel spares the
# first process of a namespace), leave no zombies (a parent that ignores SIGCHLD has none) and not be
# traceable: it outlives `kill_all`, so nobody may hide in it. So it is a program of some two hundred bytes,
# assembled here and run from memory. Where that does not work a shell does all but the last.

PROGRAM_FD = 4
FIRST_FREE_FD = 20
"""Descriptors to be handed over are kept from here on, so that none is overwritten on the way."""

_MFD_CLOEXEC = 0x1
_MFD_ALLOW_SEALING = 0x2
_MFD_EXEC = 0x10
_F_ADD_SEALS = 1033
_ALL_SEALS = 0x1 | 0x2 | 0x4 | 0x8
_CHECK_MS = 2000

_SHELL = ("/bin/sh", "-c", f"trap '' CHLD HUP INT TERM; echo >&{READY_FD}; exec sleep 2147483647 3>&- 4>&-")


def open_first_process() -> int | None:
    """The program as a sealed descriptor to run, or None where the shell must do."""
    cpu = PROCESSORS.get(os.uname().machine)
    if cpu is None:
        return None
    try:
        fd = os.memfd_create("init", _MFD_CLOEXEC | _MFD_ALLOW_SEALING | _MFD_EXEC)
    except OSError:  # Linux before 6.3 does not know MFD_EXEC and makes it executable anyway
        fd = os.memfd_create("init", _MFD_CLOEXEC | _MFD_ALLOW_SEALING)
    os.write(fd, assemble("init", cpu))
    os.fchmod(fd, 0o555)
    fcntl.fcntl(fd, _F_ADD_SEALS, _ALL_SEALS)
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE_FD)
    os.close(fd)
    if _works(high):
        return high
    os.close(high)
    return None


def _works(program: int) -> bool:
    """Return whether the program says it is ready: some systems forbid programs in memory."""
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


def first_process_argv(program_fd: int | None) -> tuple[str, ...]:
    """Return what bubblewrap runs as process 1, given the descriptor it finds at PROGRAM_FD."""
    return (f"/proc/self/fd/{PROGRAM_FD}",) if program_fd is not None else _SHELL


__all__ = [
    "FIRST_FREE_FD",
    "PROGRAM_FD",
    "READY_FD",
    "first_process_argv",
    "open_first_process",
]
