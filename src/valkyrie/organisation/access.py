"""Who asks: from the key a request shows to a person of an organisation."""

from __future__ import annotations

import hmac
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from valkyrie.errors import AccessError, StoreError, UsageError
from valkyrie.nouns import Identity

if TYPE_CHECKING:
    from valkyrie.store import Store

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
        """Whose key (`X-Api-Key`) or token (`Authorization: Bearer`) this is; AccessError when nobody's."""
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
        from valkyrie.store import people

        key = one_of(api_key, bearer)
        with self._store.reading() as connection:
            identity = people.find_key(connection, key, self._clock())
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
        """Whether its use is to be written down now: most requests write nothing."""
        from valkyrie.store.people import TOUCH_EVERY_S

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
        from valkyrie.store import people

        try:
            with self._store.writing() as connection:
                people.touch_key(connection, key_id, self._clock())
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
    from valkyrie.organisation.hosted import HostedAuthenticator, hosted_settings

    return HostedAuthenticator(store, hosted_settings())
