"""This machine's own way into AWS: what its user or operator configured, and nothing that was not."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from valkyrie import config
from valkyrie.errors import UserError
from valkyrie.secrets import SecretStore
from valkyrie.settings import config_path

if TYPE_CHECKING:
    from valkyrie.aws.session import AwsAccess, AwsKeys, AwsSession

_CHOSEN_IN_ENVIRONMENT = ("AWS_ACCESS_KEY_ID", "AWS_PROFILE")
_OF_THE_CHAIN = (
    *_CHOSEN_IN_ENVIRONMENT,
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
)
"""What sessions read when they are made."""


def kept_keys_path() -> Path:
    """Where `config init` keeps AWS keys: apart from secrets, which agents may name."""
    return config_path().parent / "aws.json"


def keep_keys(values: Mapping[str, str]) -> Callable[[], None]:
    """Keep AWS keys, by the names of environment variables, over earlier ones; how to undo it."""
    store = SecretStore(kept_keys_path())
    before = {name: value for name in config.AWS_KEYS if (value := store.get(name))}

    def write(wanted: Mapping[str, str]) -> None:
        for name in config.AWS_KEYS:
            if value := wanted.get(name):
                store.set(name, value)
            elif store.get(name):
                store.remove(name)

    write(values)
    return lambda: write(before)


def chosen_in_environment() -> str | None:
    """The environment variable that says whose AWS it is, over all that is kept."""
    return next((name for name in _CHOSEN_IN_ENVIRONMENT if os.environ.get(name)), None)


def configured_keys() -> Mapping[str, str]:
    """AWS keys of the config file, else those `config init` kept; by the names of environment variables."""
    held = config.load()
    found = {name: str(held[name]) for name in config.AWS_KEYS if name in held}
    if not found:
        store = SecretStore(kept_keys_path())
        found = {name: value for name in config.AWS_KEYS if (value := store.get(name))}
    if found and not {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= found.keys():
        raise UserError(
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY belong together; only one of them is configured.",
            cause="aws_config",
        )
    return found


def as_keys(values: Mapping[str, str]) -> AwsKeys:
    """AWS keys by the names of their environment variables, as a session takes them."""
    from valkyrie.aws.session import AwsKeys

    return AwsKeys(
        values["AWS_ACCESS_KEY_ID"], values["AWS_SECRET_ACCESS_KEY"], values.get("AWS_SESSION_TOKEN")
    )


def session_for(access: AwsAccess) -> AwsSession:
    """One session per access: its clients, and the credentials of a role, are made once."""
    return _session(access, tuple(os.environ.get(name) for name in _OF_THE_CHAIN))


@lru_cache(maxsize=64)
def _session(access: AwsAccess, _environment: tuple[str | None, ...]) -> AwsSession:
    from valkyrie.aws.session import AwsSession

    return AwsSession(access)


def own_session(*, server: bool = False) -> AwsSession | None:
    """The way into AWS, when S3_BUCKET, AWS keys or AWS_DEFAULT_REGION are configured; else None.

    A region of the environment counts on a server only: on a person's machine it is there for other
    programs, and must not make us ask AWS for every secret that is missing.
    """
    region = _configured_region() or (server and os.environ.get("AWS_DEFAULT_REGION"))
    configured = config.effective("S3_BUCKET").value or configured_keys() or (region and find_spec("boto3"))
    return any_session() if configured else None


def any_session(handed: Mapping[str, str] | None = None) -> AwsSession:
    """The way into AWS, configured or not: what was handed over, else what is kept, else AWS's own."""
    from valkyrie.aws.session import AwsAccess

    if handed and handed.get("AWS_ACCESS_KEY_ID"):
        access = AwsAccess(
            handed.get("AWS_DEFAULT_REGION"), as_keys(handed), endpoint=handed.get("AWS_ENDPOINT_URL")
        )
        return session_for(access)
    keys = {} if chosen_in_environment() else configured_keys()
    # What the environment says of the region is read by the session itself, as AWS's own programs do.
    named = None if os.environ.get("AWS_DEFAULT_REGION") else _configured_region()
    return session_for(AwsAccess(named, as_keys(keys) if keys else None))


def _configured_region() -> str | None:
    region = config.load().get("AWS_DEFAULT_REGION")
    return str(region) if region else None
