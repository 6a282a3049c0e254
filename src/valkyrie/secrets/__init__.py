"""Where secret values come from, and how they are kept out of what is written down."""

from __future__ import annotations

from sandboxes.masker import Masker
from valkyrie.secrets.protocol import SecretSource
from valkyrie.secrets.resolve import Resolution, resolve
from valkyrie.secrets.sources import DotenvSource, EnvironmentSource, default_sources
from valkyrie.secrets.store import SecretStore
from valkyrie.secrets.values import Secrets

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
