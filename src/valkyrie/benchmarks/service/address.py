"""Where a benchmark service is, which headers it may be sent, and where connections may lead."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import urlsplit

from valkyrie.config import values as config
from valkyrie.config.schema import check_url
from valkyrie.config.values import tracker_networks
from valkyrie.errors import UsageError
from valkyrie.targets import TargetError, connectable

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OWN = ("connection", "content-length", "host", "transfer-encoding", "upgrade")


def header_problem(name: str, content: str) -> str | None:
    """Return why a header cannot be sent; its value may be secret and is not in it."""
    if not _HEADER_NAME.fullmatch(name):
        return f"{name!r} is not the name of a header."
    if name.lower() in _OWN or name.lower().startswith("sec-websocket-"):
        return f"{name} belongs to the connection itself."
    if not (content.isascii() and content.isprintable()):
        return f"the value of {name} is not plain ASCII on one line."
    return None


def check_headers(headers: Mapping[str, str]) -> None:
    """UsageError unless all of them can be sent."""
    seen: set[str] = set()
    for name, content in headers.items():
        if problem := header_problem(name, content):
            raise UsageError(f"-H: {problem}")
        if name.lower() in seen:
            raise UsageError(f"-H: {name} is given twice.")
        seen.add(name.lower())


# Where a benchmark service is: custom config, then a registry file, then a base URL, then this machine.

GradingMode = Literal["text", "sandbox"]
LOCAL_URL = "http://127.0.0.1:8001"
"""Where `make dev` of a service made with create-benchmark-service listens."""
Reach = Literal["outside", "loopback"]
"""Other machines only, or this one too; a link's neighbours and a cloud's metadata are in neither."""
HOSTED = ("registry", "base URL")
"""Services of whoever runs this program, as against those a person named."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """One service, and who says so."""

    name: str
    url: str
    where: Literal["custom", "registry", "base URL", "this machine", "given"]
    grading: GradingMode | None = None
    """As configured; None leaves it to what the service says of itself."""
    reach: Reach | None = None
    """Where it may lead, if whoever named it is not on this machine; None is anywhere."""

    @property
    def on_loopback(self) -> bool:
        """Whether it runs on this machine, and so reaches what listens on loopback."""
        host = urlsplit(self.url).hostname or ""
        if host == "localhost" or host.endswith(".localhost"):
            return True
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return False


def reach_of(*, allow_local: bool) -> Reach:
    """Return how far an address of somebody elsewhere may lead us."""
    return "loopback" if allow_local else "outside"


def given_url(spec: str) -> ServiceAddress | None:
    """`--benchmark http://…`: the service at that address, named after its host and port."""
    if not spec.startswith(("http://", "https://")):
        return None
    try:
        url = check_url(spec)
    except ValueError as error:
        raise UsageError(f"--benchmark: {error}.") from None
    return ServiceAddress(urlsplit(url).netloc, url, "given")


def custom_service(name: str) -> ServiceAddress | None:
    """Return what `config service set` says of a name."""
    return _entry(name, config.mapping("custom_benchmark_services"), "custom")


def registered_service(name: str) -> ServiceAddress | None:
    """Return what the registry file says of a name."""
    return _entry(name, config.registry(), "registry")


def patterned_service(name: str) -> ServiceAddress | None:
    """The name put into the configured base URL."""
    base = config.effective("service_base_url").value
    if not base or not _NAME.fullmatch(name):
        return None
    pattern = str(base)
    if "{name}" not in pattern:
        scheme, _, host = pattern.rpartition("://")
        pattern = f"{scheme or 'https'}://{{name}}.{host}"
    elif "://" not in pattern:
        pattern = f"https://{pattern}"
    return ServiceAddress(name, pattern.replace("{name}", name).rstrip("/"), "base URL")


def local_service(name: str) -> ServiceAddress | None:
    """A service under development on this machine, when it says that it is the one meant."""
    import httpx

    try:
        said = httpx.get(f"{LOCAL_URL}/version", timeout=1.0, trust_env=False).json()
    except (httpx.HTTPError, ValueError):
        return None
    names = {name, f"{name}-benchmark-service", f"{name}-service"}
    known = isinstance(said, dict) and str(said.get("service_name")).replace("_", "-") in names
    return ServiceAddress(name, LOCAL_URL, "this machine") if known else None


def service_names() -> list[str]:
    """Return names that are configured or registered, for suggestions and lists."""
    return sorted({*config.mapping("custom_benchmark_services"), *config.registry()})


def _entry(
    name: str, entries: Mapping[str, Any], where: Literal["custom", "registry"]
) -> ServiceAddress | None:
    entry = entries.get(name)
    if entry is None:
        return None
    values: Mapping[str, Any] = {"url": entry} if isinstance(entry, str) else entry
    return ServiceAddress(name, values["url"].rstrip("/"), where, values.get("grading"))


# Connections to a service that somebody elsewhere named: only to where they may lead us.


def guard(reach: Reach) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """Looks a host up for each new connection and gives addresses that were checked; OSError for others.

    The address was checked when the run was planned. Its name may lead elsewhere by now, and whoever owns the
    name decides where.
    """

    async def resolve(host: str, port: int) -> Sequence[str]:
        try:
            networks = tracker_networks()
            return await asyncio.to_thread(
                connectable, host, port, allow_local=reach == "loopback", networks=networks
            )
        except TargetError as error:
            raise ConnectionRefusedError(str(error)) from None

    return resolve
