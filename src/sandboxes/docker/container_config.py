"""Describe a container to the engine: labels, limits, mounts, system-call filter and our own static
programs."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, get_args

from sandboxes.docker.engine import Engine
from sandboxes.errors import SandboxUnsupportedError
from sandboxes.protocol import DEFAULT_DISK_MB, DEFAULT_PIDS, ImageDefaults, with_defaults
from sandboxes.scripted_sandbox import check_names
from sandboxes.static_programs import PROCESSORS, ProgramName, assemble
from sandboxes.types import Mount, SandboxCreateRequest, SandboxLimits

KIND, LABELS, NAME, NETWORK, ALLOWED, CONTEXT, IMAGE_DEFAULTS = (
    f"valkyrie.{word}"
    for word in ("kind", "labels", "name", "network", "allowed-networks", "context", "image-defaults")
)
OWNER, MADE = "valkyrie.owner", "valkyrie.made"
"""Labels of ours: what a thing is, the request's labels (which those of an image cannot forge), its name, its
network policy, the private networks it reaches, the digest of the folder an image or volume was made from,
what the image of a container says of user and entrypoint; the data folder whose processes made a container
for a moment, and a mark that no two volumes have in common."""
SANDBOX, GUARD, BUILD, NETWORK_KIND, FOLDER_KIND = "sandbox", "guard", "build", "network", "folder"

PUBLIC_NETWORK = "valkyrie-public"
PROGRAMS = "/.valkyrie"
"""Where our own static programs are in a container."""
PIDS_PER_MB = 2
"""No more processes than there is memory for: the kernel spends minutes on killing thousands one by one for
want of memory while a fork bomb makes new ones."""
MIB = 1 << 20
WORKDIR = "/app"

SHELL_INIT = """
if env --ignore-signal=CHLD true 2>/dev/null; then exec env --ignore-signal=CHLD sleep infinity; fi
while :; do sleep 86400 & wait $!; done
"""
"""The first process on a processor our own is not written for. It ignores its children's deaths, so that the
kernel reaps every orphan, and signals from inside do not reach it; but an agent that is root can trace it."""

READ_ONLY_PATHS = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
MASKED_PATHS = [
    *("/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats"),
    *("/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats"),
    *("/sys/devices/virtual/powercap", "/sys/firmware"),
]
"""What engines protect by themselves; a request that names one path of its own has to name all."""
OUT_OF_MEMORY_SETTINGS = [
    f"/proc/1{task}/oom_{name}" for task in ("", "/task/1") for name in ("adj", "score_adj")
]
"""Settings of the first process that root may write without tracing it: the kernel would kill it first."""

CAPABILITIES = [
    *("AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE"),
    *("SETFCAP", "SETGID", "SETUID", "SYS_CHROOT"),
]
"""What package managers and `su` need; no raw sockets, no devices, nothing over the host."""

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """What a container is made with."""

    image: str
    defaults: ImageDefaults
    """What the image says."""
    engine: Engine
    programs: Mapping[str, Any] | None = None
    """The mount of our own programs; without it a shell of the image is the first process."""
    shown: tuple[Mapping[str, Any], ...] = ()
    """The mounts of folders of ours."""
    image_env: tuple[str, ...] = ()
    """Names of the variables the image sets."""
    network: str = "none"
    """The network it is on, as the engine knows it."""
    seccomp: str | None = None
    """The filter of system calls, as the engine takes it; None leaves the engine's own."""

    @property
    def volumes(self) -> list[Mapping[str, Any]]:
        """All mounts of folders of ours."""
        return [*self.shown, *([self.programs] if self.programs else [])]


def container_name(request: SandboxCreateRequest, token: str) -> str:
    """The id of a sandbox to be."""
    asked = _UNSAFE.sub("-", request.name or "sandbox")[:80].strip("-.") or "sandbox"
    return f"valkyrie-{asked}-{token}"


def container(request: SandboxCreateRequest, plan: ContainerPlan) -> dict[str, Any]:
    """The body of the call that makes the container."""
    check_names(request.env_vars)
    return {
        "Image": plan.image,
        "Hostname": "sandbox",
        # For a user that is named, were it by number, engines read the container's own list of users at each
        # command; an agent may have put a pipe in its place.
        "User": "0" if plan.defaults.user else "",
        "WorkingDir": plan.defaults.workdir,
        "Entrypoint": ["/bin/sh", "-c", SHELL_INIT] if plan.programs is None else [f"{PROGRAMS}/init"],
        "Cmd": [],
        "Env": [
            *(f"{name}={value}" for name, value in request.env_vars.items()),
            # A name alone takes the image's variable away.
            *_refused(request, plan.image_env),
        ],
        "Labels": {
            **request.labels,
            KIND: SANDBOX,
            LABELS: json.dumps(request.labels),
            NAME: request.name or "",
            NETWORK: request.network_policy,
            ALLOWED: ",".join(request.allowed_networks),
            IMAGE_DEFAULTS: json.dumps([plan.defaults.user, *plan.defaults.entrypoint]),
        },
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": {
            **_limits(request, plan.engine),
            **_devices(request),
            "NetworkMode": plan.network,
            "Mounts": [
                *_separate(request, plan.engine),
                *_doors(request),
                *plan.shown,
                *([plan.programs] if plan.programs else []),
            ],
            "CapDrop": ["ALL"],
            "CapAdd": CAPABILITIES,
            "SecurityOpt": [
                "no-new-privileges",
                *([f"seccomp={plan.seccomp}"] if plan.seccomp is not None else []),
            ],
            "ReadonlyPaths": [*READ_ONLY_PATHS, *_protected(plan.engine)],
            "MaskedPaths": MASKED_PATHS,
            "LogConfig": {"Type": "none", "Config": {}},
            "RestartPolicy": {"Name": "no"},
        },
    }


def _refused(request: SandboxCreateRequest, image_env: Sequence[str]) -> list[str]:
    refuse = request.refused_image_env
    return [name for name in image_env if refuse and refuse(name) and name not in request.env_vars]


def _protected(engine: Engine) -> list[str]:
    """Return what of the first process is read-only, besides what it protects by not being traceable."""
    # Where the engine labels processes, its runtime writes the label of the first one below /proc/1 as the
    # last thing it does, and could not.
    labels = any("selinux" in str(option) for option in engine.info.get("SecurityOptions") or ())
    return OUT_OF_MEMORY_SETTINGS if labels else ["/proc/1"]


def limits_of(request: SandboxCreateRequest, engine: Engine) -> SandboxLimits:
    """Return the limits in force: what was asked for, else what fits the engine's machine."""
    limits = with_defaults(request.effective_limits, engine.memory_mb, disk_in_memory=False)
    if request.effective_limits.pids is None:
        room = max(256, (limits.memory_mb or 0) * PIDS_PER_MB)
        limits = replace(limits, pids=min(DEFAULT_PIDS, room))
    return replace(limits, disk_mb=limits.disk_mb or DEFAULT_DISK_MB)


def _limits(request: SandboxCreateRequest, engine: Engine) -> dict[str, Any]:
    limits = limits_of(request, engine)
    memory, disk = (limits.memory_mb or 0) * MIB, (limits.disk_mb or 0) * MIB
    found: dict[str, Any] = {
        "PidsLimit": limits.pids,
        "Memory": memory,
        "MemorySwap": memory,
        "Ulimits": [{"Name": "fsize", "Soft": disk, "Hard": disk}],
    }
    if limits.cpus is not None:
        # More than the engine has is refused by it, and would limit nothing.
        cpus = min(limits.cpus, engine.cpus) if engine.cpus else limits.cpus
        found["NanoCpus"] = max(int(cpus * 1e9), 10_000_000)
    if engine.quota:
        found["StorageOpt"] = {"size": str(disk)}
    return found


def _devices(request: SandboxCreateRequest) -> dict[str, Any]:
    asked, count = request.resources, request.effective_limits.gpus
    if not count:
        return {}
    if asked is not None and asked.gpu_type is not None:
        raise SandboxUnsupportedError(
            f"provider 'docker' cannot choose a GPU by type ({asked.gpu_type}); leave gpu_type out"
        )
    return {"DeviceRequests": [{"Count": count, "Capabilities": [["gpu"]]}]}


def _separate(request: SandboxCreateRequest, engine: Engine) -> list[dict[str, Any]]:
    """A volume without a name for each folder: it goes with the container."""
    room = limits_of(request, engine).disk_mb
    options: Mapping[str, Any] = {"Labels": {KIND: SANDBOX}}
    if room is not None and engine.quota == "xfs project quota":
        options = {**options, "DriverConfig": {"Name": "local", "Options": {"size": str(room * MIB)}}}
    return [
        {"Type": "volume", "Target": folder, "VolumeOptions": options} for folder in request.separate_folders
    ]


def shown_folders(request: SandboxCreateRequest, engine: Engine) -> list[Mount]:
    """Return what is shown to a sandbox of folders that do not change. Raises for an engine elsewhere."""
    shown = [mount for mount in request.mounts if not mount.copy_on_write]
    if shown and not engine.is_local:
        raise SandboxUnsupportedError(
            f"the engine at {engine.url} is on another machine: folders of this one cannot be shown in it"
        )
    return [mount for mount in shown if not mount.sockets]


def _doors(request: SandboxCreateRequest) -> list[dict[str, Any]]:
    """Return the mounts of folders with sockets, which no copy would do for."""
    return [
        {"Type": "bind", "Source": mount.source, "Target": mount.target, "ReadOnly": True}
        for mount in request.mounts
        if mount.sockets and not mount.copy_on_write
    ]


# The filter of system calls a container runs under, in place of the engine's own.
#
# It refuses what engines refuse (kernel modules, mounts, namespaces, keys, clocks, tracing of the kernel)
# and besides: sockets other than local, internet and netlink ones (AF_VSOCK leads to the hypervisor, AF_ALG
# and the like to kernel code nobody needs here), `socketcall`, behind which a 32-bit program could hide
# them, and io_uring, whose requests no filter sees.

SOCKET_FAMILIES: Final = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16}
_PERSONALITIES: Final = (0x0, 0x8, 0x20000, 0x20008, 0xFFFFFFFF)
_NAMESPACES: Final = 0x7E020000
"""The flags of `clone` that make new namespaces."""
_ENOSYS: Final = 38

_ALLOWED_CALLS: Final = """
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


def seccomp_profile() -> dict[str, Any]:
    """Return the filter in the form engines read."""
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "archMap": [
            {"architecture": whole, "subArchitectures": list(parts)} for whole, parts in _ARCHITECTURES
        ],
        "syscalls": [
            {"names": _ALLOWED_CALLS, "action": "SCMP_ACT_ALLOW", "args": []},
            *(_allow_calls("socket", family) for family in SOCKET_FAMILIES.values()),
            _allow_calls("socketpair", SOCKET_FAMILIES["AF_UNIX"]),
            *(_allow_calls("personality", value) for value in _PERSONALITIES),
            {
                "names": ["clone"],
                "action": "SCMP_ACT_ALLOW",
                "args": [{"index": 0, "value": _NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}],
            },
            # Its flags lie in memory, where no filter sees them; C libraries then take `clone`.
            {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": _ENOSYS, "args": []},
        ],
    }


def seccomp_for_engine(engine: Engine, state_dir: Path) -> str | None:
    """Return the filter as the engine takes it: its text, or for Podman the path of a file. None leaves the
    engine's own, for a Podman elsewhere."""
    text = json.dumps(seccomp_profile(), separators=(",", ":"))
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


def _allow_calls(name: str, first: int) -> dict[str, Any]:
    """Allow a call whose first argument is `first`."""
    arguments = [{"index": 0, "value": first, "op": "SCMP_CMP_EQ"}]
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": arguments}


# Our own static programs in a container, mounted read-only: the first process, and what runs after an agent
# was there. None of them needs a file of the image.

INIT_PROGRAM: Final = f"{PROGRAMS}/init"
KILL_PROGRAM: Final = f"{PROGRAMS}/kill"
REMOVE_PROGRAM: Final = f"{PROGRAMS}/remove"


class StaticPrograms:
    """The programs for one engine, as a folder of this machine that is shown to its containers."""

    def __init__(self, engine: Engine, state_dir: Path) -> None:
        self._state_dir = state_dir
        cpu = PROCESSORS.get(str(engine.info.get("Architecture", "")))
        self._content: dict[ProgramName, bytes] = (
            {} if cpu is None else {name: assemble(name, cpu) for name in get_args(ProgramName)}
        )
        digest = hashlib.sha256(b"".join(self._content.values())).hexdigest()[:12]
        self._name = f"valkyrie-programs-{digest}"

    async def folder(self) -> Path | None:
        """Return where they are, or None for a processor they are not written for."""
        return await asyncio.to_thread(self._write) if self._content else None

    def _write(self) -> Path:
        folder = (self._state_dir / self._name).absolute()
        if folder.is_dir():
            return folder
        draft = folder.with_name(f"{folder.name}.{token_hex(6)}")
        draft.mkdir(parents=True)
        for name, content in self._content.items():
            (draft / name).write_bytes(content)
            (draft / name).chmod(0o555)
        draft.chmod(0o755)
        try:
            draft.rename(folder)
        except OSError:  # another process was first
            for name in self._content:
                (draft / name).unlink()
            draft.rmdir()
        return folder


def uses_programs(found: Mapping[str, Any]) -> bool:
    """Return whether a container's first process is ours, which nothing inside can trace, kill or replace."""
    return list(found["Config"].get("Entrypoint") or ()) == [INIT_PROGRAM]
