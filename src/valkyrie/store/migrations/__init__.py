"""Schema changes, one file each in `versions/`. Imported only when a database must be migrated."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Engine

HERE = Path(__file__).parent


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(HERE))
    config.set_main_option("path_separator", "os")
    return config


def known_revisions() -> set[str]:
    """Every schema this program can migrate from."""
    return {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Bring the database to `revision` in one transaction."""
    config = _config()
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
