"""What an organisation of a server says about its own AWS, and how that is checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from valkyrie.config import find_key
from valkyrie.errors import UsageError, UserError
from valkyrie.nouns import Json
from valkyrie.suggest import did_you_mean

if TYPE_CHECKING:
    from valkyrie.aws.session import AwsAccess

_LIKE = {
    "s3_bucket": "S3_BUCKET",
    "aws_region": "AWS_DEFAULT_REGION",
    "log_group": "LOG_GROUP",
    "log_retention_days": "LOG_RETENTION_POLICY",
}
"""Settings that are the same as a config key."""
SETTINGS = (*_LIKE, "role_arn")
CREDENTIALS = {
    "aws_access_key_id": "AWS_ACCESS_KEY_ID",
    "aws_secret_access_key": "AWS_SECRET_ACCESS_KEY",
    "aws_session_token": "AWS_SESSION_TOKEN",
}
SHARED = "orgs/"
"""Where other organisations than the default one are below the server's own bucket and log group."""
OPEN_ROLES = "VALKYRIE_ALLOW_OPEN_ROLES"


def external_id(org_id: str) -> str:
    """What the trust policy of an organisation's role must ask for: ours for it, and for no other."""
    return f"valkyrie-{org_id}"


def changed(settings: Json, changes: Mapping[str, object]) -> Json:
    """Settings with some of them replaced, or (None) removed; UsageError says what is wrong with one."""
    after = dict(settings)
    for name, value in changes.items():
        if name not in SETTINGS:
            hint = did_you_mean(name, SETTINGS) or f" There are: {', '.join(SETTINGS)}."
            raise UsageError(f"An organisation has no setting {name[:80]!r} that can be changed.{hint}")
        if value is None:
            after.pop(name, None)
        else:
            after[name] = _parsed(name, value)
    return after


def _parsed(name: str, value: object) -> str | int | float:
    if name == "role_arn":
        if not isinstance(value, str):
            raise UsageError("role_arn must be text.")
        return value.strip()
    try:
        parsed = find_key(_LIKE[name]).parse(value)
    except ValueError as error:
        raise UsageError(f"{name}: {error}.") from None
    if name == "log_group" and SHARED in f"{parsed}/":
        raise UsageError(f"log_group: a name with {SHARED!r} in it is the tracker's own.")
    return parsed


def checked_credentials(given: Mapping[str, object]) -> dict[str, str]:
    """AWS keys as they came, by the names of their environment variables; no value is in any message."""
    found: dict[str, str] = {}
    for name, variable in CREDENTIALS.items():
        value = given.get(name)
        if value is None:
            continue
        try:
            found[variable] = str(find_key(variable).parse(value))
        except ValueError as error:
            raise UsageError(f"{error}.") from None
    if unknown := sorted(set(given) - set(CREDENTIALS)):
        raise UsageError(f"Unknown {', '.join(unknown)[:200]}; credentials are {', '.join(CREDENTIALS)}.")
    if not {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} <= found.keys():
        raise UsageError("Credentials are aws_access_key_id and aws_secret_access_key, both of them.")
    return found


def check_role(access: AwsAccess) -> None:
    """Refuse a role that cannot be assumed, and one that can be without the organisation's external id.

    Whoever may name a role here would otherwise get at every role that trusts this server, also those of
    other organisations and of the server's own account.
    """
    from dataclasses import replace

    from valkyrie.aws.session import AwsSession

    AwsSession(access).credential()
    if os.environ.get(OPEN_ROLES, "").strip().lower() in ("1", "true", "yes", "on"):
        return
    try:
        AwsSession(replace(access, external_id=None)).credential()
    except UserError:
        return
    raise UserError(
        f"The role {access.role_arn} can be assumed without an external id, so anyone could name it. Give "
        f'its trust policy the condition {{"StringEquals": {{"sts:ExternalId": "{access.external_id}"}}}}.',
        cause="aws_config",
    )


def check_keys(keys: Mapping[str, str], region: str | None) -> None:
    """Refuse keys AWS does not know."""
    from valkyrie.aws.session import AwsAccess, AwsSession
    from valkyrie.organisation.own_aws import as_keys

    AwsSession(AwsAccess(region=region, keys=as_keys(keys))).identity()


def check_bucket(access: AwsAccess, bucket: str) -> None:
    """Refuse a bucket that cannot be written."""
    from valkyrie.aws.s3 import S3Artifacts
    from valkyrie.aws.session import AwsSession

    S3Artifacts(AwsSession(access), bucket, patience=5).check()
