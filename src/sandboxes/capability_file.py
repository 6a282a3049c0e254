"""What a provider last found out about this machine, kept so that plans can say it without trying again."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

from sandboxes.local.marks import boot_id
from sandboxes.values import Capabilities

_NAME = "capabilities.json"


def write(folder: Path, found: Capabilities) -> None:
    """Keep what was found, for this boot and user; a folder that cannot be written keeps nothing.

    Written in place: half of it is nothing to `read`, and no draft is left by whoever is killed here.
    """
    text = json.dumps({"found_by": _finder(), **_to_json(found)})
    target = folder / _NAME
    with suppress(OSError):
        if folder.is_dir() and (not target.exists() or target.read_text() != text):
            target.write_text(text)


def read(folder: Path) -> Capabilities | None:
    """Return what this user found since the machine started, or None."""
    try:
        kept = json.loads((folder / _NAME).read_text())
        return _from_json(kept) if kept.pop("found_by") == _finder() else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _finder() -> list[Any]:
    return [boot_id(), os.geteuid()]


def _to_json(found: Capabilities) -> Mapping[str, Any]:
    values = {one.name: getattr(found, one.name) for one in fields(found)}
    return {**values, "networks": sorted(found.networks), "enforcement": dict(found.enforcement)}


def _from_json(kept: Mapping[str, Any]) -> Capabilities:
    missing = tuple((str(what), str(way)) for what, way in kept["missing"])
    return Capabilities(**{**kept, "networks": frozenset(kept["networks"]), "missing": missing})
