"""Where secret values come from, and how they are kept out of what is written down."""

from __future__ import annotations

from sandboxes.masker import Masker
from valkyrie.secrets.sources import (
    DotenvSource,
    EnvironmentSource,
    Resolution,
    Secrets,
    SecretSource,
    SecretStore,
    default_sources,
    resolve,
)

__all__ = [
    "DotenvSource",
    "EnvironmentSource",
    "Masker",
    "Resolution",
    "SecretSource",
    "SecretStore",
    "Secrets",
    "default_sources",
    "resolve",
]
