"""The first process of a sandbox: sleeps, and lets the kernel reap every orphan.

It must exist on any root file system, cost next to nothing, survive `kill -9 -1` (the kernel spares the
first process of a namespace), leave no zombies (a parent that ignores SIGCHLD has none) and not be
traceable: it outlives `kill_all`, so nobody may hide in it. So it is a program of some two hundred bytes,
assembled here and run from memory. Other processors use a shell, which does all but the last.
"""

from __future__ import annotations

import fcntl
import os
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

_SHELL = ("/bin/sh", "-c", f"trap '' CHLD HUP INT TERM; echo >&{READY_FD}; exec sleep 2147483647 3>&- 4>&-")


def _x86_64_code(data_address: int) -> bytes:
    """Refuse to be traced, ignore SIGCHLD, say we are ready, close every descriptor, sleep for ever."""
    return b"".join(
        (
            b"\xb8" + struct.pack("<I", 157),  # mov eax, prctl
            b"\xbf" + struct.pack("<I", 4),  # mov edi, PR_SET_DUMPABLE
            b"\x31\xf6",  # xor esi, esi
            b"\x0f\x05",  # syscall
            b"\xb8" + struct.pack("<I", 13),  # mov eax, rt_sigaction
            b"\xbf" + struct.pack("<I", 17),  # mov edi, SIGCHLD
            b"\xbe" + struct.pack("<I", data_address),  # mov esi, action
            b"\x31\xd2",  # xor edx, edx
            b"\x41\xba" + struct.pack("<I", 8),  # mov r10d, size of a signal mask
            b"\x0f\x05",  # syscall
            b"\xb8" + struct.pack("<I", 1),  # mov eax, write
            b"\xbf" + struct.pack("<I", READY_FD),  # mov edi, READY_FD
            b"\xbe" + struct.pack("<I", data_address),  # mov esi, any byte
            b"\xba" + struct.pack("<I", 1),  # mov edx, 1
            b"\x0f\x05",  # syscall
            b"\xb8" + struct.pack("<I", 436),  # mov eax, close_range
            b"\x31\xff",  # xor edi, edi
            b"\xbe" + struct.pack("<I", 0xFFFFFFFF),  # mov esi, ~0
            b"\x31\xd2",  # xor edx, edx
            b"\x0f\x05",  # syscall
            b"\xb8" + struct.pack("<I", 34),  # mov eax, pause
            b"\x0f\x05",  # syscall
            b"\xeb\xf7",  # jmp to the last mov
        )
    )


def _elf() -> bytes:
    start = _BASE + _ELF_HEADER + _PROGRAM_HEADER
    code_size = len(_x86_64_code(0))
    data_address = start + code_size
    action = struct.pack("<QQQQ", 1, 0, 0, 0)  # SIG_IGN, no flags, no restorer, empty mask
    body = _x86_64_code(data_address) + action
    size = _ELF_HEADER + _PROGRAM_HEADER + len(body)
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = ident + struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, start, _ELF_HEADER, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return header + segment + body


def open_program() -> int | None:
    """The program as a sealed descriptor to run, or None where the shell must do."""
    if os.uname().machine != "x86_64":
        return None
    try:
        fd = os.memfd_create("init", _MFD_CLOEXEC | _MFD_ALLOW_SEALING | _MFD_EXEC)
    except OSError:  # Linux before 6.3 does not know MFD_EXEC and makes it executable anyway
        fd = os.memfd_create("init", _MFD_CLOEXEC | _MFD_ALLOW_SEALING)
    os.write(fd, _elf())
    os.fchmod(fd, 0o555)
    fcntl.fcntl(fd, _F_ADD_SEALS, _ALL_SEALS)
    high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_FREE_FD)
    os.close(fd)
    return high


def argv(program_fd: int | None) -> tuple[str, ...]:
    """What bubblewrap runs as process 1, given the descriptor it finds at PROGRAM_FD."""
    return (f"/proc/self/fd/{PROGRAM_FD}",) if program_fd is not None else _SHELL
