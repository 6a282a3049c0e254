"""How this program was installed: where it came from, and the command that adds an optional part to it.

No command names our distribution to a package index: somebody else may hold the name there.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

DISTRIBUTION = "valkyrie-bench"
_OF_EXTRA = re.compile(r"""^(?P<package>[^;]+);.*\bextra\s*==\s*["'](?P<extra>[^"']+)["']""")

_PROGRAM = re.compile(r"(?<![^\s])(?:valk|valkyrie)(?= )")
"""The program's name where a command begins; options and texts are never called so in panels."""


def origin() -> str | None:
    """Return where this program was installed from (PEP 610) as a requirement takes it, or None."""
    from importlib import metadata  # costs a command 15 ms, and few need it

    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    return reference_of(json.loads(text)) if text else None


def public_origin() -> str | None:
    """Return the origin if other machines can reach it too: no folder or file of this one."""
    found = origin()
    return None if found is None or urlsplit(found).scheme in ("file", "git+file") else found


def reference_of(record: dict[str, Any]) -> str | None:
    """Return the URL of a PEP 610 record as a requirement takes it; None when it leads nowhere from here."""
    url = _without_password(str(record["url"]))
    if urlsplit(url).scheme == "file" and not Path(unquote(urlsplit(url).path)).exists():
        return None
    if vcs := record.get("vcs_info"):
        revision = vcs.get("requested_revision") or vcs["commit_id"]
        url = f"{vcs['vcs']}+{url}@{revision}"
    folder = record.get("subdirectory")
    return f"{url}#subdirectory={folder}" if folder else url


def add_extra(extra: str) -> str:
    """Return the command that installs what an extra needs beside this program, however that is installed."""
    return add_packages(extra_packages(extra))


def extra_packages(extra: str) -> list[str]:
    """Return the requirements of an extra, as the installed distribution names them."""
    from importlib import metadata

    try:
        lines = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        lines = []
    found = [match for line in lines if (match := _OF_EXTRA.match(line))]
    return [one["package"].strip() for one in found if one["extra"] == extra] or [extra]


def add_packages(packages: list[str]) -> str:
    """Return the command that adds packages to the environment this program runs in."""
    wanted = " ".join(shlex.quote(package) for package in packages)
    prefix = Path(sys.prefix)
    if (prefix / "pipx_metadata.json").exists():
        return f"pipx inject {shlex.quote(prefix.name)} {wanted}"
    python = shlex.quote(_from_here(Path(sys.executable)))
    if (prefix / "uv-receipt.toml").exists() or find_spec("pip") is None:
        return f"uv pip install --python {python} {wanted}"
    return f"{python} -m pip install {wanted}"


def as_typed(command: str) -> str:
    """Return a command line that begins with `valk` or `valkyrie` as it works in the caller's shell.

    Where the name on PATH is not this program, its own path stands there instead.
    """
    return _PROGRAM.sub(lambda found: _program(found[0], whole="cd " in command), command)


def _program(name: str, *, whole: bool) -> str:
    own = Path(sys.executable).parent / name
    on_path = shutil.which(name)
    if not own.exists() or (on_path is not None and Path(on_path).resolve() == own.resolve()):
        return name
    return shlex.quote(str(own) if whole else _from_here(own))


def _from_here(path: Path) -> str:
    """Return the path relative to the current folder where it lies below it."""
    below = os.path.relpath(path)
    return str(path) if below.startswith(os.pardir) else below


def _without_password(url: str) -> str:
    """Return the URL without a literal password, which must not end up in someone's repository."""
    parts = urlsplit(url)
    user, at, host = parts.netloc.rpartition("@")
    if not at or ":" not in user or "${" in user:
        return url
    return urlunsplit(parts._replace(netloc=host))
