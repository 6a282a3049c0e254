"""What an organisation offers: who of it asks, its secrets, and where its artifacts and logs are kept."""

from __future__ import annotations

import hmac
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from valkyrie import aws
from valkyrie.agents.library import AgentLibrary, Library, StoredLibrary
from valkyrie.artifact_store.disk import DiskArtifacts
from valkyrie.artifact_store.logs import FileLogs
from valkyrie.config import values as config
from valkyrie.config.values import config_path, secrets_path
from valkyrie.domain import Identity, Json
from valkyrie.errors import AccessError, StoreError, UnknownError, UsageError, UserError
from valkyrie.secrets import SecretSource, SecretStore, default_sources
from valkyrie.secrets.sources import split_name
from valkyrie.store import tenants
from valkyrie.store.layout import DataFolder
from valkyrie.views import SecretView

if TYPE_CHECKING:
    from valkyrie.artifact_store.protocol import ArtifactStore, LogKeeper
    from valkyrie.aws.session import AwsAccess, AwsKeys, AwsSession
    from valkyrie.secrets.delivery import Sealer
    from valkyrie.store import Store


class Organisation(Protocol):
    """One organisation, opened for one request or one executor."""

    identity: Identity
    trusted: bool
    """Embedded: whoever asks owns this machine and may name its paths, plugins and environment variables."""
    caller_headers: Mapping[str, str]
    """What tells hosted benchmark services who asks; empty where nobody does, or they need not know."""

    def secret_sources(self) -> Sequence[SecretSource]:
        """Return where secrets are looked up, in order."""
        ...

    def variables(self) -> Mapping[str, str]:
        """Return what `${VAR}` of a task may name: the environment where that is the user's own, else
        nothing."""
        ...

    def secrets(self) -> Sequence[SecretView]:
        """Return names of the secrets kept for it."""
        ...

    def set_secret(self, name: str, value: str) -> None: ...

    def remove_secret(self, name: str) -> None: ...

    def library(self) -> Library:
        """Its pushed agents."""
        ...

    def uploads(self) -> Path:
        """The folder of what came with requests, by digest."""
        ...

    def aws(self) -> AwsSession | None:
        """Its way into AWS; None when there is none."""
        ...

    def artifacts(self, place: Json | None = None) -> ArtifactStore | None:
        """Return where artifacts of new runs are kept (of a run, at the `place` it remembers); None: only
        here."""
        ...

    def logs(self, place: Json | None = None) -> LogKeeper | None:
        """Return where logs of new runs are shipped (of a run, the `place` it remembers); None: nowhere."""
        ...


# Who asks: from the key a request shows to a person of an organisation.

Mode = Literal["self-hosted", "hosted"]
LONGEST_KEY = 8192
MOST_REMEMBERED = 10_000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Joined:
    """The answer of `POST /v1/init`."""

    org_name: str
    created: bool
    """Whether this very call made the organisation."""
    person: str | None


class Authenticator(Protocol):
    """How callers of a server are known. Blocking, and may be asked from any thread."""

    @property
    def mode(self) -> Mode: ...

    def identify(self, api_key: str | None, bearer: str | None) -> Identity:
        """Return whose key (`X-Api-Key`) or token (`Authorization: Bearer`) this is; AccessError when
        nobody's."""
        ...

    def init(self, api_key: str | None, bearer: str | None) -> Joined:
        """Make the caller's organisation, unless it is there."""
        ...


class SelfHostedAuthenticator:
    """Keys made with `valkyrie admin key create`, sent in either header."""

    mode: Mode = "self-hosted"

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._touched: OrderedDict[str, float] = OrderedDict()
        self._lock = threading.Lock()

    def identify(self, api_key: str | None, bearer: str | None) -> Identity:
        key = one_of(api_key, bearer)
        with self._store.reading() as connection:
            identity = tenants.find_key(connection, key, self._clock())
        if identity is None:
            raise AccessError(
                "This key is unknown, revoked or expired. Whoever runs the tracker makes keys with "
                "`valkyrie admin key create`."
            )
        if identity.key_id and self._is_due(identity.key_id):
            self._touch(identity.key_id)
        return identity

    def init(self, api_key: str | None, bearer: str | None) -> Joined:
        self.identify(api_key, bearer)
        raise UsageError(
            "This tracker is self-hosted: organisations are made with `valkyrie admin org create` on its "
            "machine. `valk config init --mode self-hosted` is the way to use it."
        )

    def _is_due(self, key_id: str) -> bool:
        """Return whether its use is to be written down now: most requests write nothing."""
        now = self._clock()
        with self._lock:
            if now - self._touched.get(key_id, 0.0) < tenants.TOUCH_EVERY_S:
                return False
            self._touched[key_id] = now
            self._touched.move_to_end(key_id)
            while len(self._touched) > MOST_REMEMBERED:
                self._touched.popitem(last=False)
            return True

    def _touch(self, key_id: str) -> None:
        try:
            with self._store.writing() as connection:
                tenants.touch_key(connection, key_id, self._clock())
        except StoreError as error:
            # Looking must go on while nothing can be written: on a full disk, say.
            log.warning("the use of key %s could not be written down: %s", key_id, error)


def one_of(api_key: str | None, bearer: str | None) -> str:
    if api_key and bearer and not hmac.compare_digest(api_key.encode(), bearer.encode()):
        raise UsageError("Two different keys were sent, as X-Api-Key and as Authorization; send one.")
    key = api_key or bearer
    if not key:
        raise AccessError(
            "No key was sent. The client takes it from VALKYRIE_API_KEY or the config key api_key "
            "(`valk config init`); over HTTP it is `Authorization: Bearer KEY`."
        )
    if len(key) > LONGEST_KEY:
        raise AccessError("What was sent as a key is too long to be one.")
    return key


def open_authenticator(store: Store) -> Authenticator:
    """As the server's environment says: AUTH_REQUIRED=true is hosted mode."""
    from benchmark_service.auth import auth_required

    if not auth_required():
        return SelfHostedAuthenticator(store)
    from valkyrie.tenants.hosted import HostedAuthenticator, hosted_settings

    return HostedAuthenticator(store, hosted_settings())


# From who asks to the things of their organisation.


def open_organisation(
    identity: Identity,
    data: DataFolder,
    *,
    store: Store | None = None,
    sealer: Sealer | None = None,
    credentials: Mapping[str, str] | None = None,
    caller_headers: Mapping[str, str] | None = None,
) -> Organisation:
    """The organisation of `identity`: on a server (`store` given) from its row, else the user's own.

    `credentials` is what an executor was handed of the user's cloud; organisations of a server have theirs.
    `caller_headers` tell hosted benchmark services who asks.
    """
    if store is None:
        return EmbeddedOrganisation(data, identity, credentials)
    from valkyrie.tenants.server import ServerOrganisation

    with store.reading() as connection:
        row = tenants.org_by_id(connection, identity.org_id)
    if row is None:
        raise UnknownError(
            f"There is no organisation {identity.org_id[:80]!r}.", cause="unknown_organisation"
        )
    return ServerOrganisation(row, data, store, sealer, identity, caller_headers)


# Embedded mode: the one organisation whose things are the user's own.


class EmbeddedOrganisation:
    """Their environment, `.env`, secret store and config file; AWS where that names it."""

    trusted = True

    def __init__(
        self,
        data: DataFolder,
        identity: Identity | None = None,
        credentials: Mapping[str, str] | None = None,
    ) -> None:
        """`credentials`: what an executor was handed of the user's cloud; None in the user's own command."""
        self.identity = identity or Identity()
        self.caller_headers: Mapping[str, str] = {}
        self._data = data
        self._credentials = credentials

    def secret_sources(self) -> Sequence[SecretSource]:
        return self._sources

    def variables(self) -> Mapping[str, str]:
        return os.environ

    def secrets(self) -> Sequence[SecretView]:
        return [SecretView(name) for name in SecretStore(secrets_path()).list()]

    def set_secret(self, name: str, value: str) -> None:
        SecretStore(secrets_path()).set(name, value)

    def remove_secret(self, name: str) -> None:
        SecretStore(secrets_path()).remove(name)

    def library(self) -> Library:

        return open_library(self.artifacts(), self._data.agents, self._data.cache / "agents")

    def uploads(self) -> Path:
        return self._data.root / "uploads"

    def aws(self) -> AwsSession | None:
        return self._session

    def artifacts(self, place: Json | None = None) -> ArtifactStore | None:
        if place is None:
            return self._placing.artifacts()

        return open_artifacts(place, self._session_anyway)

    def logs(self, place: Json | None = None) -> LogKeeper | None:
        if place is None:
            return self._placing.logs()

        return open_logs(place, self._session_anyway)

    @cached_property
    def _sources(self) -> Sequence[SecretSource]:
        sources = default_sources(SecretStore(secrets_path()))

        if session := self.aws():
            sources.append(secrets_manager(session, sources))
        elif variable := chosen_in_environment():
            sources.append(NotAsked(variable))
        return sources

    @cached_property
    def _session(self) -> AwsSession | None:

        # An executor has not all of the environment the run was started in: whether AWS is used was decided
        # there.
        return own_session() if self._credentials is None else self._session_anyway

    @cached_property
    def _session_anyway(self) -> AwsSession:

        return any_session(self._credentials)

    @cached_property
    def _placing(self) -> Placement:

        return own_placement(self._session)


# Where an organisation's secrets come from and where its artifacts and logs are kept.


class StoredSecrets:
    """The secrets an organisation keeps with its tracker, encrypted."""

    by_variable = False
    remote = False
    problems: Sequence[str] = ()

    def __init__(self, store: Store, sealer: Sealer | None, org_id: str) -> None:
        self._store = store
        self._sealer = sealer
        self._org_id = org_id

    def __repr__(self) -> str:
        return f"StoredSecrets({self._org_id!r})"

    @property
    def place(self) -> str:
        return "the secrets kept by the tracker"

    def get(self, name: str) -> str | None:
        if self._sealer is None:
            return None  # nothing can have been stored
        with self._store.reading() as connection:
            return tenants.get_secret(connection, self._sealer, self._org_id, name)


class NotAsked:
    """AWS Secrets Manager where nobody said that AWS is to be used; says so to those who may expect it."""

    place = "AWS Secrets Manager"
    by_variable = False
    remote = False

    def __init__(self, variable: str) -> None:
        self.problems: Sequence[str] = (
            f"AWS Secrets Manager was not asked, although {variable} is set: "
            "`valk config set AWS_DEFAULT_REGION REGION` has it used.",
        )

    def get(self, name: str) -> str | None:  # noqa: ARG002 - whatever it is called
        return None


class LastResort:
    """A source that is asked only for what no other has: asking it takes time, and shows in its records."""

    def __init__(self, source: SecretSource, others: Sequence[SecretSource]) -> None:
        self._source = source
        self._others = others

    def __repr__(self) -> str:
        return repr(self._source)

    @property
    def place(self) -> str:
        return self._source.place

    @property
    def by_variable(self) -> bool:
        return self._source.by_variable

    @property
    def remote(self) -> bool:
        return self._source.remote

    @property
    def problems(self) -> Sequence[str]:
        return self._source.problems

    def get(self, name: str) -> str | None:
        names = {name, split_name(name)[0]}
        if any(other.get(one) is not None for other in self._others for one in names):
            return None
        return self._source.get(name)


def secrets_manager(session: AwsSession, others: Sequence[SecretSource]) -> SecretSource:
    """AWS Secrets Manager, asked for what the others do not have."""
    return LastResort(aws.SecretsManagerSource(session), tuple(others))


def require_sealer(sealer: Sealer | None) -> Sealer:
    """The sealer; UserError when the tracker has no key to encrypt with."""
    if sealer is None:
        raise UserError(
            "This tracker has no key to encrypt values with, so it keeps none. Whoever runs it sets "
            "VALKYRIE_SECRET_KEY for it and its executors (`valkyrie admin secret-key` makes one).",
            cause="sealed",
        )
    return sealer


# Where artifacts and logs are kept, and this machine's own way into AWS.


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
    """Return where `config init` keeps AWS keys: apart from secrets, which agents may name."""
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
    return aws.AwsKeys(
        values["AWS_ACCESS_KEY_ID"], values["AWS_SECRET_ACCESS_KEY"], values.get("AWS_SESSION_TOKEN")
    )


def session_for(access: AwsAccess) -> AwsSession:
    """One session per access: its clients, and the credentials of a role, are made once."""
    return _session(access, tuple(os.environ.get(name) for name in _OF_THE_CHAIN))


@lru_cache(maxsize=64)
def _session(access: AwsAccess, _environment: tuple[str | None, ...]) -> AwsSession:
    return aws.AwsSession(access)


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
    if handed and handed.get("AWS_ACCESS_KEY_ID"):
        access = aws.AwsAccess(
            handed.get("AWS_DEFAULT_REGION"), as_keys(handed), endpoint=handed.get("AWS_ENDPOINT_URL")
        )
        return session_for(access)
    keys = {} if chosen_in_environment() else configured_keys()
    # What the environment says of the region is read by the session itself, as AWS's own programs do.
    named = None if os.environ.get("AWS_DEFAULT_REGION") else _configured_region()
    return session_for(aws.AwsAccess(named, as_keys(keys) if keys else None))


def _configured_region() -> str | None:
    region = config.load().get("AWS_DEFAULT_REGION")
    return str(region) if region else None


# Where artifacts and logs are kept: of new runs, and of one that remembers its place.

DEFAULT_LOG_GROUP, DEFAULT_RETENTION = "benchmarks", 365


@dataclass(frozen=True, slots=True)
class Placement:
    """Where new runs keep things. Logs go to CloudWatch when artifacts go to S3 and there is a log group,
    and beside the artifacts when these are in a folder."""

    session: AwsSession | None
    bucket: str | None = None
    prefix: str = ""
    folder: Path | None = None
    log_group: str | None = None
    retention_days: int = DEFAULT_RETENTION

    def artifacts(self) -> ArtifactStore | None:
        """The bucket, else the folder, else nothing."""
        if self.bucket and self.session:
            return aws.S3Artifacts(self.session, self.bucket, self.prefix)
        if self.folder:
            return DiskArtifacts(self.folder)
        return None

    def logs(self) -> LogKeeper | None:
        """CloudWatch, or files beside the artifacts, or nothing."""
        if self.folder and not self.bucket:
            return FileLogs(self.folder / "logs")
        if not (self.bucket and self.session and self.log_group):
            return None
        return aws.CloudWatchLogs(self.session, self.log_group, self.retention_days)


def own_placement(session: AwsSession | None, prefix: str = "") -> Placement:
    """As this machine's config says, below a prefix."""
    bucket, folder = config.effective("S3_BUCKET").value, config.effective("artifacts_folder").value
    group = str(config.effective("LOG_GROUP").value)
    root = Path(str(folder)) if folder else None
    return Placement(
        session,
        bucket=str(bucket) if bucket else None,
        prefix=prefix,
        folder=root / prefix if root and prefix else root,
        log_group=None if group == config.NO_LOGS else "/".join(filter(None, (group, prefix))),
        retention_days=int(config.effective("LOG_RETENTION_POLICY").value or DEFAULT_RETENTION),
    )


def open_library(artifacts: ArtifactStore | None, folder: Path, cache: Path) -> Library:
    """Pushed agents: with the artifacts, else in a folder of this machine."""
    return AgentLibrary(folder) if artifacts is None else StoredLibrary(artifacts, cache)


def open_artifacts(place: Json, session: AwsSession | None) -> ArtifactStore:
    if place.get("kind") == "disk":
        return DiskArtifacts(Path(place["folder"]))
    if place.get("kind") == "s3":
        where = f"s3://{place['bucket']}"
        return aws.S3Artifacts(_there(place, session, where), place["bucket"], place.get("prefix") or "")
    raise _strange(place)


def open_logs(place: Json, session: AwsSession | None) -> LogKeeper:
    if place.get("kind") == "files":
        return FileLogs(Path(place["folder"]))
    if place.get("kind") != "cloudwatch":
        raise _strange(place)
    group = str(place["group"])
    days = int(place.get("retention_days") or DEFAULT_RETENTION)
    return aws.CloudWatchLogs(_there(place, session, f"log group {group}"), group, days)


def _there(place: Json, session: AwsSession | None, where: str) -> AwsSession:
    """The same way in, to the region of the place: the organisation may have moved since."""
    if session is None:
        raise UserError(
            f"Kept at {where}, and no AWS credentials are configured any more to reach it.",
            cause="artifacts_config",
        )
    region = place.get("region")
    if not region or region == session.access.region:
        return session

    return session_for(replace(session.access, region=str(region)))


def _strange(place: Json) -> StoreError:
    return StoreError(
        f"A run is kept at a place of a kind this program does not know: {place.get('kind')!r}."
    )
