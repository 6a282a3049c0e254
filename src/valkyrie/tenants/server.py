"""One organisation of a server: its own secrets, agents and AWS settings, nothing of the server's."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from valkyrie import aws
from valkyrie.config.values import NO_LOGS, find_key
from valkyrie.domain import DEFAULT_ORG, Identity, Json
from valkyrie.errors import UsageError, UserError
from valkyrie.secrets import SecretSource
from valkyrie.store import tenants
from valkyrie.store import tenants as kept
from valkyrie.store.layout import DataFolder
from valkyrie.tenants.organisation import (
    DEFAULT_LOG_GROUP,
    DEFAULT_RETENTION,
    Placement,
    StoredSecrets,
    any_session,
    as_keys,
    open_artifacts,
    open_library,
    open_logs,
    own_placement,
    own_session,
    require_sealer,
    secrets_manager,
    session_for,
)
from valkyrie.text import did_you_mean
from valkyrie.views import SecretView

if TYPE_CHECKING:
    from valkyrie.agents.library import Library
    from valkyrie.artifact_store.protocol import ArtifactStore, LogKeeper
    from valkyrie.aws.session import AwsAccess, AwsSession
    from valkyrie.secrets.delivery import Sealer
    from valkyrie.store import Store


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
    """Return what the trust policy of an organisation's role must ask for: ours for it, and for no other."""
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
    aws.AwsSession(access).credential()
    if os.environ.get(OPEN_ROLES, "").strip().lower() in ("1", "true", "yes", "on"):
        return
    try:
        aws.AwsSession(replace(access, external_id=None)).credential()
    except UserError:
        return
    raise UserError(
        f"The role {access.role_arn} can be assumed without an external id, so anyone could name it. Give "
        f'its trust policy the condition {{"StringEquals": {{"sts:ExternalId": "{access.external_id}"}}}}.',
        cause="aws_config",
    )


def check_keys(keys: Mapping[str, str], region: str | None) -> None:
    aws.AwsSession(aws.AwsAccess(region=region, keys=as_keys(keys))).identity()


def check_bucket(access: AwsAccess, bucket: str) -> None:
    aws.S3Artifacts(aws.AwsSession(access), bucket, patience=5).check()


# One organisation of a server: its own secrets, agents and AWS; nothing of the server's environment.


class ServerOrganisation:
    """An organisation's row, opened for one request or one executor.

    The default organisation is whoever runs the server, and uses the server's own AWS. Every other one has
    a way into AWS only if it brought one: a role the server may assume, or keys. Without, its artifacts and
    logs are kept in the server's, below `orgs/<its id>/`, and nothing else of the server's AWS is its own.
    """

    trusted = False

    def __init__(
        self,
        row: tenants.Org,
        data: DataFolder,
        store: Store,
        sealer: Sealer | None,
        identity: Identity,
        caller_headers: Mapping[str, str] | None = None,
    ) -> None:
        self.identity = identity
        self.caller_headers: Mapping[str, str] = caller_headers or {}
        self._row = row
        self._data = data
        self._store = store
        self._sealer = sealer

    def __repr__(self) -> str:
        return f"ServerOrganisation({self._row.id!r})"

    # Secrets

    def secret_sources(self) -> Sequence[SecretSource]:
        return self._sources

    @cached_property
    def _sources(self) -> Sequence[SecretSource]:
        stored = StoredSecrets(self._store, self._sealer, self._row.id)
        return [stored, secrets_manager(session, [stored])] if (session := self.aws()) else [stored]

    def variables(self) -> Mapping[str, str]:
        return {}

    def secrets(self) -> Sequence[SecretView]:
        with self._store.reading() as connection:
            return kept.list_secrets(connection, self._row.id)

    def set_secret(self, name: str, value: str) -> None:
        sealer = require_sealer(self._sealer)
        with self._store.writing() as connection:
            kept.set_secret(connection, sealer, self._row.id, name, value, self.identity.person)

    def remove_secret(self, name: str) -> None:
        with self._store.writing() as connection:
            kept.remove_secret(connection, self._row.id, name)

    # Agents and what comes with requests

    def library(self) -> Library:
        folder = self._data.agents if self._is_default else self._folder / "agents"
        return open_library(self.artifacts(), folder, self._folder / "cache" / "agents")

    def uploads(self) -> Path:
        return self._folder / "uploads"

    @property
    def _folder(self) -> Path:
        return self._data.root / self._prefix if self._prefix else self._data.root

    # AWS

    def aws(self) -> AwsSession | None:
        return self._servers_session if self._is_default else self._own_session

    def artifacts(self, place: Json | None = None) -> ArtifactStore | None:
        if place is None:
            return self._placing.artifacts()
        return open_artifacts(place, self._reaching(shared=place.get("prefix") == self._prefix))

    def logs(self, place: Json | None = None) -> LogKeeper | None:
        if place is None:
            return self._placing.logs()
        return open_logs(place, self._reaching(shared=str(place.get("group")).endswith(f"/{self._prefix}")))

    def _reaching(self, *, shared: bool) -> AwsSession | None:
        """The way to where a run is kept: what is shared is reached as the server itself."""
        return any_session() if shared or self._is_default else self._own_session

    @property
    def _is_default(self) -> bool:
        return self._row.id == DEFAULT_ORG

    @property
    def _prefix(self) -> str:
        return "" if self._is_default else f"{SHARED}{self._row.id}"

    @cached_property
    def _servers_session(self) -> AwsSession | None:
        return own_session(server=True)

    @cached_property
    def _own_session(self) -> AwsSession | None:
        access = self._access(self._row.settings)
        return session_for(access) if access else None

    def _access(self, chosen: Json) -> AwsAccess | None:
        """The way into AWS the organisation brought along."""
        region = chosen.get("aws_region")
        if self._row.sealed:
            opened = require_sealer(self._sealer).open(self._row.sealed, self._about)
            return aws.AwsAccess(region=region, keys=as_keys(opened))
        if role := chosen.get("role_arn"):
            return aws.AwsAccess(
                region=region,
                role_arn=role,
                external_id=external_id(self._row.id),
                session_name=f"valkyrie-{self._row.id}",
            )
        return None

    @property
    def _placing(self) -> Placement:
        chosen = self._row.settings
        if self._is_default or not chosen.get("s3_bucket") or self._own_session is None:
            return own_placement(self._servers_session, self._prefix)
        group = chosen.get("log_group", DEFAULT_LOG_GROUP)
        return Placement(
            self._own_session,
            bucket=chosen["s3_bucket"],
            log_group=None if group == NO_LOGS else group,
            retention_days=int(chosen.get("log_retention_days", DEFAULT_RETENTION)),
        )

    # Its settings

    @property
    def _about(self) -> str:
        return f"org:{self._row.id}:aws"

    def describe(self) -> Json:
        """Its settings, what its role must ask for, and whether keys are kept; never the keys."""
        return {
            **{name: self._row.settings.get(name) for name in SETTINGS},
            "external_id": external_id(self._row.id),
            "credentials": self._row.sealed is not None,
        }

    def change(self, changes: Mapping[str, object]) -> Json:
        """Replace some settings (None removes one), once AWS agrees with them; what they are then."""
        self._refuse_default()
        after = changed(self._row.settings, changes)
        if after.get("role_arn") and self._row.sealed:
            raise UsageError("AWS keys are kept already; remove them before naming a role instead.")
        access = self._access(after)
        if access is None and after.get("s3_bucket"):
            raise UsageError("A bucket of its own needs a way into AWS: name a role_arn, or give keys first.")
        if access and {"role_arn", "aws_region"} & set(changes) and access.role_arn:
            check_role(access)
        if access and after.get("s3_bucket") and {"s3_bucket", "role_arn", "aws_region"} & set(changes):
            check_bucket(access, after["s3_bucket"])
        with self._store.writing() as connection:
            tenants.set_org(connection, self._row.id, settings=after)
        return self._now(replace(self._row, settings=after)).describe()

    def set_credentials(self, given: Mapping[str, object]) -> None:
        """Keep AWS keys, encrypted, once AWS knows them."""
        self._refuse_default()
        if self._row.settings.get("role_arn"):
            raise UsageError("A role is named already; remove role_arn before giving keys instead.")
        sealer, keys = require_sealer(self._sealer), checked_credentials(given)
        check_keys(keys, self._row.settings.get("aws_region"))
        self._keep_sealed(sealer.seal(keys, self._about))

    def remove_credentials(self) -> None:
        self._keep_sealed(None)

    def _keep_sealed(self, sealed: bytes | None) -> None:
        with self._store.writing() as connection:
            tenants.set_org(connection, self._row.id, sealed=sealed)
        self._now(replace(self._row, sealed=sealed))

    def _now(self, row: tenants.Org) -> ServerOrganisation:
        self._row = row
        self.__dict__.pop("_own_session", None)
        return self

    def _refuse_default(self) -> None:
        if self._is_default:
            raise UsageError(
                "The default organisation uses the AWS of the machine the tracker runs on: it is configured "
                "there (`valk config set S3_BUCKET …`), not here."
            )
