"""The filter of system calls a container runs under, in place of the engine's own.

It refuses what engines refuse (kernel modules, mounts, namespaces, keys, clocks, tracing of the kernel) and
besides: sockets other than local, internet and netlink ones (AF_VSOCK leads to the hypervisor, AF_ALG and the
like to kernel code nobody needs here), `socketcall`, behind which a 32-bit program could hide them, and
io_uring, whose requests no filter sees.
"""

from __future__ import annotations

import json
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from sandboxes.docker.engine import Engine

SOCKET_FAMILIES: Final = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
_PERSONALITIES: Final = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
_NAMESPACES: Final = 0x7E020000
"""The flags of `clone` that make new namespaces."""
_ENOSYS: Final = 38

_ALLOWED: Final = """
_llseek _newselect accept accept4 access adjtimex alarm arch_prctl arm_fadvise64_64 arm_sync_file_range bind
breakpoint brk cacheflush cachestat capget capset chdir chmod chown chown32 chroot clock_adjtime
clock_adjtime64 clock_getres clock_getres_time64 clock_gettime clock_gettime64 clock_nanosleep
clock_nanosleep_time64 close close_range connect copy_file_range creat dup dup2 dup3 epoll_create
epoll_create1 epoll_ctl epoll_ctl_old epoll_pwait epoll_pwait2 epoll_wait epoll_wait_old eventfd eventfd2
execve execveat exit exit_group faccessat faccessat2 fadvise64 fadvise64_64 fallocate fanotify_mark fchdir
fchmod fchmodat fchmodat2 fchown fchown32 fchownat fcntl fcntl64 fdatasync fgetxattr flistxattr flock fork
fremovexattr fsetxattr fstat fstat64 fstatat64 fstatfs fstatfs64 fsync ftruncate ftruncate64 futex
futex_requeue futex_time64 futex_wait futex_waitv futex_wake futimesat get_robust_list get_thread_area
get_tls getcpu getcwd getdents getdents64 getegid getegid32 geteuid geteuid32 getgid getgid32 getgroups
getgroups32 getitimer getpeername getpgid getpgrp getpid getppid getpriority getrandom getresgid getresgid32
getresuid getresuid32 getrlimit getrusage getsid getsockname getsockopt gettid gettimeofday getuid getuid32
getxattr getxattrat inotify_add_watch inotify_init inotify_init1 inotify_rm_watch io_cancel io_destroy
io_getevents io_pgetevents io_pgetevents_time64 io_setup io_submit ioctl ioprio_get ioprio_set ipc kill
landlock_add_rule landlock_create_ruleset landlock_restrict_self lchown lchown32 lgetxattr link linkat
listen listxattr listxattrat llistxattr llseek lremovexattr lseek lsetxattr lstat lstat64 madvise
map_shadow_stack membarrier memfd_create memfd_secret mincore mkdir mkdirat mknod mknodat mlock mlock2
mlockall mmap mmap2 modify_ldt mprotect mq_getsetattr mq_notify mq_open mq_timedreceive
mq_timedreceive_time64 mq_timedsend mq_timedsend_time64 mq_unlink mremap mseal msgctl msgget msgrcv msgsnd
msync munlock munlockall munmap name_to_handle_at nanosleep newfstatat nice oldfstat oldlstat oldolduname
oldstat olduname open openat openat2 pause pidfd_getfd pidfd_open pidfd_send_signal pipe pipe2 pkey_alloc
pkey_free pkey_mprotect poll ppoll ppoll_time64 prctl pread64 preadv preadv2 prlimit64 process_madvise
process_mrelease process_vm_readv process_vm_writev pselect6 pselect6_time64 ptrace pwrite64 pwritev
pwritev2 read readahead readdir readlink readlinkat readv recv recvfrom recvmmsg recvmmsg_time64 recvmsg
remap_file_pages removexattr removexattrat rename renameat renameat2 restart_syscall riscv_flush_icache
riscv_hwprobe rmdir rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigqueueinfo rt_sigreturn
rt_sigsuspend rt_sigtimedwait rt_sigtimedwait_time64 rt_tgsigqueueinfo sched_get_priority_max
sched_get_priority_min sched_getaffinity sched_getattr sched_getparam sched_getscheduler
sched_rr_get_interval sched_rr_get_interval_time64 sched_setaffinity sched_setattr sched_setparam
sched_setscheduler sched_yield seccomp select semctl semget semop semtimedop semtimedop_time64 send sendfile
sendfile64 sendmmsg sendmsg sendto set_robust_list set_thread_area set_tid_address set_tls setfsgid
setfsgid32 setfsuid setfsuid32 setgid setgid32 setgroups setgroups32 setitimer setpgid setpriority setregid
setregid32 setresgid setresgid32 setresuid setresuid32 setreuid setreuid32 setrlimit setsid setsockopt
setuid setuid32 setxattr setxattrat sgetmask shmat shmctl shmdt shmget shutdown sigaction sigaltstack signal
signalfd signalfd4 sigpending sigprocmask sigreturn sigsuspend splice ssetmask stat stat64 statfs statfs64
statx symlink symlinkat sync sync_file_range sync_file_range2 syncfs sysinfo tee tgkill time timer_create
timer_delete timer_getoverrun timer_gettime timer_gettime64 timer_settime timer_settime64 timerfd_create
timerfd_gettime timerfd_gettime64 timerfd_settime timerfd_settime64 times tkill truncate truncate64
ugetrlimit umask uname unlink unlinkat utime utimensat utimensat_time64 utimes vfork vmsplice wait4 waitid
waitpid write writev
""".split()  # noqa: SIM905 - a list of words

_ARCHITECTURES: Final = (
    ("SCMP_ARCH_X86_64", ("SCMP_ARCH_X86", "SCMP_ARCH_X32")),
    ("SCMP_ARCH_AARCH64", ("SCMP_ARCH_ARM",)),
)


def profile() -> dict[str, Any]:
    """Return the filter in the form engines read."""
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "archMap": [
            {"architecture": whole, "subArchitectures": list(parts)} for whole, parts in _ARCHITECTURES
        ],
        "syscalls": [
            {"names": _ALLOWED, "action": "SCMP_ACT_ALLOW", "args": []},
            *(_allow("socket", family) for family in SOCKET_FAMILIES.values()),
            _allow("socketpair", SOCKET_FAMILIES["AF_UNIX"]),
            *(_allow("personality", value) for value in _PERSONALITIES),
            {
                "names": ["clone"],
                "action": "SCMP_ACT_ALLOW",
                "args": [{"index": 0, "value": _NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
            },
            # Its flags lie in memory, where no filter sees them; C libraries then take `clone`.
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS, "args": []},
        ],
    }


def for_engine(engine: Engine, state_dir: Path) -> str | None:
    """Return the filter as the engine takes it: its text, or for Podman the path of a file. None leaves the
    engine's own, for a Podman elsewhere."""
    text = json.dumps(profile(), separators=(",", ":"))
    if not engine.is_podman:
        return text
    if not engine.is_local:
        return None
    state_dir.mkdir(parents=True, exist_ok=True)
    path = (state_dir / "seccomp.json").absolute()
    draft = path.with_name(f"seccomp.{token_hex(6)}")
    draft.write_text(text)
    draft.replace(path)
    return str(path)


def _allow(name: str, first: int) -> dict[str, Any]:
    """Allow a call whose first argument is `first`."""
    arguments = [{"index": 0, "value": first, "op": "SCMP_CMP_EQ"}]
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": arguments}
