"""Find an implementation by name: an installed entry point, `module:Class`, or a `.py` file."""

from __future__ import annotations

import hashlib
import importlib
import re
import sys
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from valkyrie.errors import UsageError, UserError

_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_target(name: str) -> bool:
    """Return whether this reads as `module:Class`."""
    return _TARGET.fullmatch(name) is not None


def names(group: str) -> list[str]:
    """Return names installed packages offer in this entry point group; nothing is imported."""
    return sorted({entry.name for entry in metadata.entry_points(group=group)})


def load(name: str, *, group: str) -> Any:
    """The object `name` stands for: `module:Class`, or an entry point of `group`."""
    if is_target(name):
        return load_target(name)
    targets = {entry.value: entry for entry in metadata.entry_points(group=group, name=name)}
    if not targets:
        known = ", ".join(names(group)) or "none"
        raise UsageError(f"no plugin {name!r} in {group}. Installed: {known}. `module:Class` works too.")
    if len(targets) > 1:
        raise UsageError(
            f"{name!r} is offered twice in {group}: {', '.join(sorted(targets))}. Use one of these."
        )
    return load_target(next(iter(targets)).split(" ")[0])


def load_target(target: str) -> Any:
    """The object at `module:Class`."""
    module_name, _, path = target.partition(":")
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UsageError(
                f"{target}: there is no module {error.name!r}. Install it, or set PYTHONPATH."
            ) from None
        raise UserError(f"{target}: importing it needs the missing module {error.name!r}.") from error
    except Exception as error:
        # Other people's code runs here, and may raise anything.
        raise UserError(f"{target}: importing it failed: {type(error).__name__}: {error}") from error
    for part in path.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{target}: {module_name} has no {path!r}.")
        found = getattr(found, part)
    return found


def load_file(path: Path, *, digest: str | None = None) -> ModuleType:
    """The module in a `.py` file; with `digest` (sha256 of its bytes) only if it is still that file."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: the plugin cannot be read: {error.strerror or error}.") from None
    found = hashlib.sha256(data).hexdigest()
    if digest is not None and found != digest:
        raise UserError(f"{path} was changed since the run was planned; the plugin is not the same any more.")
    name = f"valkyrie_plugin_{hashlib.sha256(f'{path}:{found}'.encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(path)
    # Dataclasses and typing look their module up while it is being made.
    sys.modules[name] = module
    try:
        exec(compile(data, str(path), "exec"), module.__dict__)  # noqa: S102 - a plugin is code to run
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception):
            raise
        # Other people's code runs here, and may raise anything.
        raise UserError(f"{path}: importing it failed: {type(error).__name__}: {error}") from error
    return module


def file_digest(path: Path) -> str:
    """Return what `load_file` compares: sha256 of the file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
