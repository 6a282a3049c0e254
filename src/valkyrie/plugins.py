"""Find an implementation by name: an installed entry point, or `module:Class`."""

from __future__ import annotations

import importlib
import re
from typing import Any

from valkyrie.errors import UsageError, UserError

_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


def is_target(name: str) -> bool:
    """Whether this reads as `module:Class`."""
    return _TARGET.fullmatch(name) is not None


def names(group: str) -> list[str]:
    """Names installed packages offer in this entry point group; nothing is imported."""
    from importlib import metadata

    return sorted({entry.name for entry in metadata.entry_points(group=group)})


def load(name: str, *, group: str) -> Any:
    """The object `name` stands for: `module:Class`, or an entry point of `group`."""
    if is_target(name):
        return load_target(name)
    from importlib import metadata

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
