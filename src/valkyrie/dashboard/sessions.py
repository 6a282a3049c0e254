"""Browser sessions: a link that works once, a cookie that scripts cannot read, and a token for forms."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from valkyrie.domain import Identity

COOKIE = "valkyrie_session"
LASTS_S = 12 * 3600.0
"""A session ends so long after it was last used."""
MOST = 1000
LINK_LASTS_S = 15 * 60.0


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


@dataclass(slots=True)
class Session:
    """One browser that was let in."""

    identity: Identity
    form_token: str
    """Every form sends it back: a page of another site does not know it."""
    used_at: float
    messages: list[str] = field(default_factory=list)
    """Said on the next page, once."""

    def owns(self, token: str) -> bool:
        """Return whether a form came from a page of this session."""
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.form_token.encode())

    def take_messages(self) -> list[str]:
        """Return what was to be said, and forget it."""
        said, self.messages = self.messages, []
        return said


class Sessions:
    """Who is let in. Tokens are kept as digests, and in memory only: a restart ends all sessions."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._links: dict[bytes, tuple[Identity, float]] = {}
        self._sessions: dict[bytes, Session] = {}

    def link(self, identity: Identity) -> str:
        """Return a token that opens one session."""
        token = secrets.token_urlsafe(24)
        self._links[_digest(token)] = (identity, self._clock() + LINK_LASTS_S)
        return token

    def open(self, token: str) -> str | None:
        """Return the cookie of a new session; None where the link was used, is too old, or is none."""
        identity, until = self._links.pop(_digest(token), (None, 0.0))
        if identity is None or self._clock() > until:
            return None
        while len(self._sessions) >= MOST:
            del self._sessions[min(self._sessions, key=lambda one: self._sessions[one].used_at)]
        cookie = secrets.token_urlsafe(32)
        self._sessions[_digest(cookie)] = Session(identity, secrets.token_urlsafe(24), self._clock())
        return cookie

    def find(self, cookie: str | None) -> Session | None:
        """Return the session of a cookie, if it still lasts."""
        if not cookie:
            return None
        mark = _digest(cookie)
        session = self._sessions.get(mark)
        if session is None:
            return None
        now = self._clock()
        if now - session.used_at > LASTS_S:
            del self._sessions[mark]
            return None
        session.used_at = now
        return session

    def close(self, cookie: str | None) -> None:
        """End a session."""
        self._sessions.pop(_digest(cookie or ""), None)
