"""What an organisation offers, who of it asks, how it is opened, and the embedded one."""

from __future__ import annotations

import hmac
import logging
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from valkyrie.config.values import secrets_path
from valkyrie.domain import Identity, Json
from valkyrie.errors import AccessError, StoreError, UnknownError, UsageError
from valkyrie.secrets import SecretSource, SecretStore, default_sources
from valkyrie.store.layout import DataFolder
from valkyrie.views import SecretView

if TYPE_CHECKING:
    from valkyrie.agents.library import Library
    from valkyrie.artifact_store.protocol import ArtifactStore, LogKeeper
    from valkyrie.aws.session import AwsSession
    from valkyrie.secrets.delivery import Sealer
    from valkyrie.store import Store
    from valkyrie.tenants.storage import Placement


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
        from valkyrie.store import tenants

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
        from valkyrie.store.tenants import TOUCH_EVERY_S

        now = self._clock()
        with self._lock:
            if now - self._touched.get(key_id, 0.0) < TOUCH_EVERY_S:
                return False
            self._touched[key_id] = now
            self._touched.move_to_end(key_id)
            while len(self._touched) > MOST_REMEMBERED:
                self._touched.popitem(last=False)
            return True

    def _touch(self, key_id: str) -> None:
        from valkyrie.store import tenants

        try:
            with self._store.writing() as connection:
                tenants.touch_key(connection, key_id, self._clock())
        except StoreError as error:
            # Looking must go on while nothing can be written: on a full disk, say.
            log.warning("the use of key %s could not be written down: %s", key_id, error)


def one_of(api_key: str | None, bearer: str | None) -> str:
    """The one key a request shows."""
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
    from valkyrie.store import tenants
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
        from valkyrie.tenants.storage import open_library

        return open_library(self.artifacts(), self._data.agents, self._data.cache / "agents")

    def uploads(self) -> Path:
        return self._data.root / "uploads"

    def aws(self) -> AwsSession | None:
        return self._session

    def artifacts(self, place: Json | None = None) -> ArtifactStore | None:
        if place is None:
            return self._placing.artifacts()
        from valkyrie.tenants.storage import open_artifacts

        return open_artifacts(place, self._session_anyway)

    def logs(self, place: Json | None = None) -> LogKeeper | None:
        if place is None:
            return self._placing.logs()
        from valkyrie.tenants.storage import open_logs

        return open_logs(place, self._session_anyway)

    @cached_property
    def _sources(self) -> Sequence[SecretSource]:
        sources = default_sources(SecretStore(secrets_path()))
        from valkyrie.tenants.storage import NotAsked, chosen_in_environment, secrets_manager

        if session := self.aws():
            sources.append(secrets_manager(session, sources))
        elif variable := chosen_in_environment():
            sources.append(NotAsked(variable))
        return sources

    @cached_property
    def _session(self) -> AwsSession | None:
        from valkyrie.tenants.storage import own_session

        # An executor has not all of the environment the run was started in: whether AWS is used was decided
        # there.
        return own_session() if self._credentials is None else self._session_anyway

    @cached_property
    def _session_anyway(self) -> AwsSession:
        from valkyrie.tenants.storage import any_session

        return any_session(self._credentials)

    @cached_property
    def _placing(self) -> Placement:
        from valkyrie.tenants.storage import own_placement

        return own_placement(self._session)
