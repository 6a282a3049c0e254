"""Where things are kept, and what the user has set. Precedence: flag > environment > file > default."""

from __future__ import annotations

import os
from pathlib import Path

FETCH_PREFIX = "VALKYRIE_FETCH_"
"""Before names of variables that an executor hands on to npm, pip and uv and does not heed itself."""


def data_folder() -> Path:
    """State of embedded mode: `VALKYRIE_HOME`, else XDG's data folder."""
    if home := os.environ.get("VALKYRIE_HOME"):
        return Path(home).expanduser().absolute()
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "valkyrie"


def config_path() -> Path:
    """The config file: `VALKYRIE_CONFIG_PATH`, else XDG's config folder."""
    if path := os.environ.get("VALKYRIE_CONFIG_PATH"):
        return Path(path).expanduser().absolute()
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "valkyrie" / "valkyrie.yaml"


def secrets_path() -> Path:
    """The secret store, beside the config file."""
    return config_path().parent / "secrets.json"


def database_url() -> str | None:
    """Where the store is, when it is not in the data folder: `VALKYRIE_DATABASE_URL`."""
    return os.environ.get("VALKYRIE_DATABASE_URL") or None
