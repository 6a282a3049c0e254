"""What `config init` asks of a tracker and of AWS before anything is written."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from valkyrie.errors import MissingSecretError, UsageError, UserError, ValkyrieError
from valkyrie.nouns import Json

if TYPE_CHECKING:
    from valkyrie.aws.session import AwsSession

TIMEOUT_S = 10.0
ORGANISATION = "/v1/organisation"


def check_tracker(url: str) -> str:
    """A tracker answers there; what it says of itself."""
    health = _asked(url, None, "GET", "/health")
    if not isinstance(health, dict) or health.get("status") != "ok":
        raise UserError(f"What answers at {url} is no tracker, or one that is not well.")
    return f"it answers: version {str(health.get('version'))[:40]}"


def whoami(url: str, key: str | None) -> Json:
    """Whom a tracker takes us for."""
    return _object(url, _asked(url, key, "GET", "/v1/me"))


def is_open(url: str) -> bool:
    """Whether a tracker asks for no key."""
    try:
        whoami(url, None)
    except ValkyrieError:
        return False
    return True


def check_key(url: str, key: str) -> str:
    """The tracker knows this key; whom it takes us for."""
    me = whoami(url, key)
    if me.get("mode") == "hosted":
        raise UserError(f"The tracker at {url} is hosted: valk config init --mode hosted")
    return f"it is accepted: {str(me.get('person'))[:200]} of organisation {str(me.get('org'))[:200]}"


def join(url: str, key: str) -> str:
    """The hosted tracker knows this key, and its organisation from now on."""
    try:
        joined = _object(url, _asked(url, key, "POST", "/v1/init"))
    except UsageError:
        raise UserError(f"The tracker at {url} is self-hosted: valk config init --mode self-hosted") from None
    verb = "was made" if joined.get("created") else "is known"
    return f"it is accepted: organisation {str(joined.get('org_name'))[:200]} {verb}"


def organisation(url: str, key: str) -> Json:
    """The organisation's own settings."""
    return _object(url, _asked(url, key, "GET", ORGANISATION))


def change_organisation(url: str, key: str, changes: Mapping[str, object]) -> None:
    """Change settings of the organisation; the tracker asks AWS first."""
    _asked(url, key, "PATCH", ORGANISATION, dict(changes))


def send_credentials(url: str, key: str, keys: Mapping[str, str]) -> None:
    """Give the organisation AWS keys to keep, once."""
    body = {name.lower(): value for name, value in keys.items()}
    _asked(url, key, "PUT", f"{ORGANISATION}/credentials", body)


def aws_session(region: str, keys: Mapping[str, str]) -> AwsSession:
    """The way into AWS that is about to be configured."""
    from valkyrie.aws.session import AwsAccess, AwsSession
    from valkyrie.organisation.own_aws import as_keys

    return AwsSession(AwsAccess(region=region, keys=as_keys(keys) if keys else None))


def check_bucket(bucket: str, session: AwsSession) -> str:
    """Objects can be written to the bucket, read and removed."""
    from valkyrie.aws.s3 import S3Artifacts

    S3Artifacts(session, bucket, patience=5).check()
    return f"s3://{bucket} can be written"


def check_secret(name: str, session: AwsSession | None) -> str:
    """The secret has a value in one of the places runs of this machine look."""
    from valkyrie import secrets
    from valkyrie.organisation.sources import secrets_manager
    from valkyrie.settings import secrets_path

    sources = secrets.default_sources(secrets.SecretStore(secrets_path()))
    if session:
        sources.append(secrets_manager(session, sources))
    try:
        secrets.resolve({name: name}, sources)
    except MissingSecretError:
        raise UserError(f"No secret is called {name!r}: valk secret set {name}") from None
    return f"the secret {name} is there"


def _asked(url: str, key: str | None, method: str, path: str, body: Any = None) -> Any:
    from valkyrie.client.connection import Call, Connection
    from valkyrie.client.retries import SilenceLimits

    async def ask() -> Any:
        connection = Connection(url, key, timeout=TIMEOUT_S, limits=SilenceLimits.within(2))
        try:
            return await connection.ask(Call(method, path, body=body))
        finally:
            await connection.close()

    return asyncio.run(ask())


def _object(url: str, answer: Any) -> Json:
    if not isinstance(answer, dict):
        raise UserError(f"What answers at {url} is no tracker of this version.")
    return answer
