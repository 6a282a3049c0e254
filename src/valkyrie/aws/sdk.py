"""The vendor's libraries, loaded when first needed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from sandboxes.installation import add_extra
from valkyrie.errors import UserError


def sdk(module: str) -> Any:
    """The module; UserError naming the extra when it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise UserError(f"AWS needs {error.name}: {add_extra('aws')}", cause="missing_extra") from None
