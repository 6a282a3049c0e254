"""How much one server takes on, and from whom."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field

from valkyrie.errors import UsageError

DEFAULT_UPLOAD_LIMIT = 1 << 30
UPLOAD_LIMIT = "VALKYRIE_UPLOAD_LIMIT"
METRICS_TOKEN = "VALKYRIE_METRICS_TOKEN"  # noqa: S105 - the variable's name


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """Limits and openness of one server."""

    host: str = "127.0.0.1"
    """The address it is bound to; on loopback only requests that name loopback are answered."""
    auth: bool = True
    """False: whoever reaches it is the default organisation."""
    json_limit: int = 1 << 20
    """Bytes of a JSON body."""
    upload_limit: int = DEFAULT_UPLOAD_LIMIT
    """Bytes of an archive."""
    metrics_token: str | None = field(default=None, repr=False)
    """Opens /metrics; None: any key does."""
    body_pause_s: float = 20.0
    """Longest wait for the next piece of a request's body."""
    body_rate: int = 4096
    """Bytes a second a body must come with on average, after that first wait."""
    stuck_s: float = 30.0
    """A client that takes nothing for so long is dropped."""
    followers: int = 64
    """Logs followed at one time; each holds a thread."""
    downloads: int = 64
    """Streamed downloads and uploads at one time; each holds a file."""
    watchers: int = 2000
    """Event streams at one time."""
    keep_alive_s: float = 15.0
    """A quiet event stream says that it lives every so often."""
    update_every_s: float = 0.2
    """Shortest time between two updates of one run; longer with many watchers."""

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Whether an address, or a name, is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def upload_limit() -> int:
    """Bytes an archive may have: `VALKYRIE_UPLOAD_LIMIT`, else 1 GiB."""
    text = os.environ.get(UPLOAD_LIMIT)
    if not text:
        return DEFAULT_UPLOAD_LIMIT
    if not text.isdecimal() or not int(text):
        raise UsageError(f"{UPLOAD_LIMIT} must be a number of bytes, not {text!r}.")
    return int(text)


def settings_for(host: str, *, auth: bool = True) -> ApiSettings:
    """What the environment says, for a server on this address."""
    if not auth and not is_loopback(host):
        raise UsageError(
            f"--no-auth would let everyone who reaches {host} in. Listen on 127.0.0.1, or leave it out and "
            "make keys with `valkyrie admin key create`."
        )
    return ApiSettings(
        host=host,
        auth=auth,
        upload_limit=upload_limit(),
        metrics_token=os.environ.get(METRICS_TOKEN) or None,
    )
