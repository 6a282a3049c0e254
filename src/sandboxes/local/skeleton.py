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
from pathlib import Path

from sandboxes.local import root_filesystem

_VAR_FOLDERS = (
    *("backups", "cache/apt/archives/partial", "cache/debconf", "cache/ldconfig", "lib/apt/lists/partial"),
    *("lib/misc", "lib/pam", "lib/systemd", "lib/ucf", "local", "log/apt", "mail", "opt", "spool"),
)
_ETC = frozenset(
    {
        *("adduser.conf", "alternatives", "bash.bashrc", "bash_completion.d", "bindresvport.blacklist"),
        *("ca-certificates", "ca-certificates.conf", "crypto-policies", "debconf.conf", "debian_version"),
        *("deluser.conf", "dpkg", "emacs", "fedora-release", "fonts", "gai.conf", "gdb", "glvnd", "groff"),
        *("host.conf", "ImageMagick-6", "ImageMagick-7", "inputrc", "iproute2", "issue", "issue.net"),
        *("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias", "locale.conf", "locale.gen"),
        *("localtime", "login.defs", "magic", "magic.mime", "mailcap", "manpath.config", "mime.types"),
        *("mke2fs.conf", "nanorc", "netconfig", "networks", "nsswitch.conf", "os-release", "pam.conf"),
        *("pam.d", "perl", "pki", "profile", "protocols", "python3", "redhat-release", "rmt", "rpc"),
        *("securetty", "security", "services", "sgml", "shells", "skel", "ssl", "system-release"),
        *("terminfo", "texmf", "timezone", "ucf.conf", "vim", "vimrc", "X11", "xattr.conf", "xdg", "xml"),
    }
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


def build(target: Path) -> None:
    """Fill the empty folder `target` with the skeleton of a root file system."""
    for name in (
        *root_filesystem.MOUNT_POINTS,
        *root_filesystem.PRIVATE_FOLDERS,
        "etc",
        "root",
        "tmp",
        "var",
        "var/tmp",
    ):
        (target / name).mkdir(parents=True, exist_ok=True)
    (target / "root").chmod(0o700)
    for name in ("tmp", "var/tmp"):
        (target / name).chmod(0o1777)
    for name in _VAR_FOLDERS:
        (target / "var" / name).mkdir(parents=True, exist_ok=True)
    (target / "var/run").symlink_to("/run")
    (target / "var/lock").symlink_to("/run/lock")
    for name in root_filesystem.SYSTEM_TREES:
        origin = Path("/", name)
        if origin.is_symlink():
            (target / name).symlink_to(origin.readlink())
        elif origin.is_dir():
            (target / name).mkdir(parents=True, exist_ok=True)
    _fill_etc(target / "etc")


def _fill_etc(target: Path) -> None:
    for name in (*_chosen(), *_ETC_PARTS):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        _copy(Path("/etc", name), target / name)
    for name, text in own_files().items():
        (target / name).write_text(text, encoding="utf-8")
        (target / name).chmod(0o640 if name in ("shadow", "gshadow") else 0o644)
    (target / "mtab").symlink_to("../proc/self/mounts")


def _chosen() -> list[str]:
    names = sorted(path.name for path in Path("/etc").iterdir())
    return [name for name in names if name in _ETC or name.startswith(_ETC_PREFIXES)]


def shown_files() -> list[str]:
    """Paths below `/etc` an ordinary user's sandbox is shown: what can be read, and is fit to be."""
    paths = [Path("/etc", name) for name in _chosen()]
    return [str(path) for path in paths if path.is_dir() or (os.access(path, os.R_OK) and may_show(path))]


def hidden_files(shown: Iterable[str]) -> list[str]:
    """Return paths below those shown that this user may read, by a group perhaps, and a sandbox must not."""
    found: list[Path] = []
    for top, folders, files in (step for path in shown for step in os.walk(path)):
        closed = [name for name in folders if not _is_open_folder(Path(top, name))]
        folders[:] = [name for name in folders if name not in closed]
        readable = [Path(top, name) for name in files if os.access(f"{top}/{name}", os.R_OK)]
        found += [path for path in readable if not path.is_symlink() and not may_show(path)]
        found += [Path(top, name) for name in closed if os.access(f"{top}/{name}", os.X_OK)]
    return [str(path) for path in found]


def _is_open_folder(path: Path) -> bool:
    if str(path).removeprefix("/etc/") in _ETC_NEVER:
        return False
    return path.is_symlink() or bool(path.stat().st_mode & stat.S_IROTH)


def own_files() -> dict[str, str]:
    """Files of `/etc` that are made and not copied: by name, their text."""
    return {
        **_account_files(),
        "hosts": root_filesystem.HOSTS,
        "hostname": f"{root_filesystem.HOSTNAME}\n",
        "resolv.conf": "",
        "environment": "",
        "machine-id": "",
    }


def _account_files() -> dict[str, str]:
    """passwd, group and their shadows: the host's system users, no people, no passwords."""
    users = [line for line in _lines(Path("/etc/passwd"), 7) if _is_system(line[2])]
    groups = [line for line in _lines(Path("/etc/group"), 4) if _is_system(line[2])]
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


def _lines(path: Path, fields: int) -> list[list[str]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    split = [line.split(":") for line in text.splitlines()]
    return [line for line in split if len(line) == fields and line[2].isdigit()]


def _joined(lines: Iterable[list[str]]) -> str:
    return "".join(":".join(line) + "\n" for line in lines)


def _is_system(number: str) -> bool:
    return int(number) < _FIRST_HUMAN or int(number) == _NOBODY


def may_show(path: Path) -> bool:
    """Return whether a file of the allow-list is fit to be seen: readable by all, and without credentials."""
    try:
        info = path.stat()
    except FileNotFoundError:  # a link to nowhere
        return False
    if not stat.S_ISREG(info.st_mode) or not info.st_mode & stat.S_IROTH:
        return False
    if info.st_size > _MAX_SCANNED:
        return True
    content = path.read_bytes()
    return b"\0" in content or not _CREDENTIALS.search(content)


def _copy(source: Path, target: Path) -> None:
    """Copy a file, link or folder of the allow-list, leaving out what must not be seen."""
    if str(source).removeprefix("/etc/") in _ETC_NEVER:
        return
    try:
        info = source.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(info.st_mode):
        target.symlink_to(source.readlink())
        return
    if stat.S_ISDIR(info.st_mode):
        if not info.st_mode & stat.S_IROTH:
            return
        target.mkdir(exist_ok=True)
        for entry in source.iterdir():
            _copy(entry, target / entry.name)
    elif may_show(source):
        shutil.copyfile(source, target)
    else:
        return
    target.chmod(stat.S_IMODE(info.st_mode))
    os.chown(target, info.st_uid, info.st_gid)
