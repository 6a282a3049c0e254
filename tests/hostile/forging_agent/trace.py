"""Make another process run a program of ours, by ptrace: PID PROGRAM. Only on x86-64."""

import ctypes
import os
import platform
import struct
import sys

ATTACH, GETREGS, SETREGS, DETACH = 16, 12, 13, 17
pid, program = int(sys.argv[1]), sys.argv[2].encode()
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
if pid == os.getpid() or platform.machine() != "x86_64":
    raise SystemExit
if libc.ptrace(ATTACH, pid, None, None) != 0:
    raise SystemExit(f"refused: {os.strerror(ctypes.get_errno())}")
os.waitpid(pid, 0)
registers = (ctypes.c_ulonglong * 27)()
libc.ptrace(GETREGS, pid, None, registers)
RAX, RDX, RSI, RDI, ORIG_RAX, RIP, RSP = 10, 12, 13, 14, 15, 16, 19
room = (registers[RSP] - 4096) & ~0xF
text = program + b"\0"
argv = room + 512
with open(f"/proc/{pid}/mem", "r+b", 0) as memory:
    memory.seek(room)
    memory.write(text)
    memory.seek(argv)
    memory.write(struct.pack("<QQ", room, 0))
    memory.seek(registers[RIP])
    memory.write(b"\x0f\x05\xcc")
registers[RAX], registers[RDI], registers[RSI], registers[RDX] = 59, room, argv, 0
registers[ORIG_RAX] = 0xFFFFFFFFFFFFFFFF
libc.ptrace(SETREGS, pid, None, registers)
libc.ptrace(DETACH, pid, None, None)
print("traced", pid)
