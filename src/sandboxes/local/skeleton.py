"""The root folder every sandbox starts from: built once, by allow-list, from the host's own system.

What is not named here does not exist inside: homes, sockets, secrets in `/etc`, other people's data.
Of `/etc` only files every local user may read are taken, and none that carries a password in an address.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterable

from sandboxes.local import layout

_VAR_FOLDERS = (
    *("backups", "cache/apt/archives/partial", "cache/debconf", "cache/ldconfig", "lib/apt/lists/partial"),
    *("lib/misc", "lib/pam", "lib/systemd", "lib/ucf", "local", "log/apt", "mail", "opt", "spool"),
)
_ETC = frozenset(
    """
    adduser.conf alternatives bash.bashrc bash_completion.d bindresvport.blacklist ca-certificates
    ca-certificates.conf crypto-policies debconf.conf debian_version deluser.conf dpkg emacs fedora-release
    fonts gai.conf gdb glvnd groff host.conf ImageMagick-6 ImageMagick-7 inputrc iproute2 issue issue.net ld.so.cache ld.so.conf
    ld.so.conf.d locale.alias locale.conf locale.gen localtime login.defs magic magic.mime mailcap
    manpath.config mime.types mke2fs.conf nanorc netconfig networks nsswitch.conf opt os-release pam.conf
    pam.d perl pki profile protocols python3 redhat-release rmt rpc securetty security services sgml shells
    skel ssl system-release terminfo texmf timezone ucf.conf vim vimrc X11 xattr.conf xdg xml
    """.split()
)
_ETC_PREFIXES = ("java-", "python3.", "R")
_ETC_PARTS = (
    *("apt/keyrings", "apt/trusted.gpg.d", "apt/sources.list", "apt/sources.list.d", "apt/preferences.d"),
    *("apt/apt.conf.d", "default/useradd", "default/locale", "default/keyboard"),
)
_ETC_NEVER = frozenset({"ssl/private", "pki/nssdb", "pki/tls/private"})
_CREDENTIALS = re.compile(rb"://[^/\s@]+:[^/\s@]+@")
_MAX_SCANNED = 1 << 20
_FIRST_HUMAN = 1000
_NOBODY = 65534


def build(target: str) -> None:
    """Fill the empty folder `target` with the skeleton of a root file system."""
    for name in (*layout.MOUNT_POINTS, *layout.PRIVATE_FOLDERS, "etc", "root", "tmp", "var", "var/tmp"):
        os.makedirs(os.path.join(target, name), exist_ok=True)
    os.chmod(os.path.join(target, "root"), 0o700)
    for name in ("tmp", "var/tmp"):
        os.chmod(os.path.join(target, name), 0o1777)
    for name in _VAR_FOLDERS:
        os.makedirs(os.path.join(target, "var", name), exist_ok=True)
    os.symlink("/run", os.path.join(target, "var/run"))
    os.symlink("/run/lock", os.path.join(target, "var/lock"))
    for name in layout.SYSTEM_TREES:
        place, origin = os.path.join(target, name), os.path.join("/", name)
        if os.path.islink(origin):
            os.symlink(os.readlink(origin), place)
        elif os.path.isdir(origin):
            os.makedirs(place, exist_ok=True)
    _fill_etc(os.path.join(target, "etc"))


def _fill_etc(target: str) -> None:
    for name in sorted(os.listdir("/etc")):
        if name in _ETC or name.startswith(_ETC_PREFIXES):
            _copy(os.path.join("/etc", name), os.path.join(target, name))
    for name in _ETC_PARTS:
        if os.path.lexists(os.path.join("/etc", name)):
            os.makedirs(os.path.dirname(os.path.join(target, name)), exist_ok=True)
            _copy(os.path.join("/etc", name), os.path.join(target, name))
    for name, text in account_files().items():
        mode = 0o640 if name in ("shadow", "gshadow") else 0o644
        _write(os.path.join(target, name), text, mode)
    os.symlink("../proc/self/mounts", os.path.join(target, "mtab"))
    _write(os.path.join(target, "hosts"), layout.HOSTS)
    _write(os.path.join(target, "hostname"), f"{layout.HOSTNAME}\n")
    _write(os.path.join(target, "resolv.conf"), "")
    _write(os.path.join(target, "environment"), "")
    _write(os.path.join(target, "machine-id"), "")


def account_files() -> dict[str, str]:
    """passwd, group and their shadows: the host's system users, no people, no passwords."""
    users = [line for line in _lines("/etc/passwd", 7) if _is_system(line[2])]
    groups = [line for line in _lines("/etc/group", 4) if _is_system(line[2])]
    if not any(user[0] == "root" for user in users):
        users.insert(0, ["root", "x", "0", "0", "root", "/root", "/bin/sh"])
    names = {user[0] for user in users}
    for group in groups:
        group[3] = ",".join(member for member in group[3].split(",") if member in names)
    return {
        "passwd": _joined([name, "x", *rest] for name, _, *rest in users),
        "group": _joined([name, "x", *rest] for name, _, *rest in groups),
        "shadow": _joined([user[0], "*", "19000", "0", "99999", "7", "", "", ""] for user in users),
        "gshadow": _joined([group[0], "*", "", group[3]] for group in groups),
        "subuid": "",
        "subgid": "",
    }


def _lines(path: str, fields: int) -> list[list[str]]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            split = [line.rstrip("\n").split(":") for line in file]
    except FileNotFoundError:
        return []
    return [line for line in split if len(line) == fields and line[2].isdigit()]


def _joined(lines: Iterable[list[str]]) -> str:
    return "".join(":".join(line) + "\n" for line in lines)


def _is_system(number: str) -> bool:
    return int(number) < _FIRST_HUMAN or int(number) == _NOBODY


def may_show(path: str) -> bool:
    """Whether a file of the allow-list is fit to be seen: readable by all, and without credentials."""
    info = os.stat(path)
    if not stat.S_ISREG(info.st_mode) or not info.st_mode & stat.S_IROTH:
        return False
    if info.st_size > _MAX_SCANNED:
        return True
    with open(path, "rb") as file:
        content = file.read()
    return b"\0" in content or not _CREDENTIALS.search(content)


def _copy(source: str, target: str) -> None:
    if source.removeprefix("/etc/") in _ETC_NEVER:
        return
    info = os.lstat(source)
    if stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(source), target)
        return
    if stat.S_ISDIR(info.st_mode):
        if not info.st_mode & stat.S_IROTH:
            return
        os.makedirs(target, exist_ok=True)
        for name in os.listdir(source):
            _copy(os.path.join(source, name), os.path.join(target, name))
    elif may_show(source):
        shutil.copyfile(source, target)
    else:
        return
    os.chmod(target, stat.S_IMODE(info.st_mode))
    if os.geteuid() == 0:
        os.chown(target, info.st_uid, info.st_gid)


def _write(path: str, text: str, mode: int = 0o644) -> None:
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)
