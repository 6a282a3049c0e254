"""The only truth: SQL for state, folders for what is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sandboxes.lazy_names import lazy_names

if TYPE_CHECKING:
    from sqlalchemy import Connection as Connection

    from valkyrie.store.database import Store as Store

REVISION = "0011"
"""The migration this program's schema stands at."""

__getattr__, __dir__ = lazy_names(__name__, {"valkyrie.store.database": ("Store",)})
