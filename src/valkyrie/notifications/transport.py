"""Post one message to a checked address within a time, following no redirects."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from sandboxes.retry import parse_retry_after
from valkyrie.targets import ConnectionTarget, Resolver, resolve_target, system_resolver

if TYPE_CHECKING:
    import httpx


T = TypeVar("T")


async def in_own_thread(work: Callable[[], T]) -> T:
    """Return what `work` returns or raises; when cancelled, it is left to itself."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    def run() -> None:
        value: T | None = None
        error: BaseException | None = None
        try:
            value = work()
        except BaseException as problem:  # noqa: BLE001 - whatever it is belongs to whoever waits
            error = problem
        with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(settle, value, error)

    threading.Thread(target=run, name="hook", daemon=True).start()
    return await future


# One message, posted: to a checked address, within a time, without following anyone elsewhere.

TIMEOUT_S = 5.0
MOST_ADDRESSES = 4
MOST_ANSWER_BYTES = 500


class DeliveryError(Exception):
    """Nothing came back; `maybe_taken` when the message may have arrived all the same."""

    def __init__(self, message: str, *, maybe_taken: bool) -> None:
        super().__init__(message)
        self.maybe_taken = maybe_taken


@dataclass(frozen=True, slots=True)
class EndpointAnswer:
    """What the other side said."""

    status: int
    retry_after: float | None
    """Seconds it asks to be left alone for."""
    text: str
    """The beginning of what it said, if it refused."""


class Sender:
    """Posts messages.

    It speaks to the transport below httpx's client, which would write every address into the log: a Slack
    webhook's address is a secret.
    """

    def __init__(
        self,
        allow_local: bool | Callable[[], bool],
        *,
        timeout: float = TIMEOUT_S,
        resolver: Resolver = system_resolver,
        tls: ssl.SSLContext | None = None,
        networks: Callable[[], Sequence[str]] | None = None,
    ) -> None:
        """`networks`: of a tracker's executor, what besides public addresses messages may be sent to."""
        self._allow_local = allow_local if callable(allow_local) else lambda: allow_local
        self._timeout = timeout
        self._resolver = resolver
        self._given_tls = tls
        self._networks = networks

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        import httpx

        return self._given_tls or httpx.create_ssl_context()

    async def post(self, url: str, headers: Mapping[str, str], body: bytes) -> EndpointAnswer:
        """Send once. TargetError: it may not be sent there; SendingError: no answer."""
        sent = False
        try:
            async with asyncio.timeout(self._timeout):
                target = await in_own_thread(lambda: self._resolved(url))
                sent = True
                return await self._to_first(target, headers, body)
        except TimeoutError:
            why = "no answer" if sent else "its name was not resolved"
            raise DeliveryError(f"{why} within {self._timeout:g} s", maybe_taken=sent) from None
        except OSError:
            raise DeliveryError("its name could not be resolved", maybe_taken=False) from None

    def _resolved(self, url: str) -> ConnectionTarget:
        """Return where it leads now, by the rules of now: an executor outlives changes of the config file."""
        networks = self._networks() if self._networks else None
        return resolve_target(url, self._allow_local(), self._resolver, networks=networks)

    async def _to_first(
        self, target: ConnectionTarget, headers: Mapping[str, str], body: bytes
    ) -> EndpointAnswer:
        """To the first of the checked addresses that a connection can be made to."""
        import httpx

        for address in target.addresses[:MOST_ADDRESSES]:
            try:
                return await self._to(address, target.url, headers, body)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                continue
            except (httpx.TransportError, httpx.InvalidURL, ValueError) as error:
                why = f"the connection broke ({type(error).__name__})"
                raise DeliveryError(why, maybe_taken=True) from None
        raise DeliveryError("no connection could be made", maybe_taken=False)

    async def _to(
        self, address: str, url: httpx.URL, headers: Mapping[str, str], body: bytes
    ) -> EndpointAnswer:
        import httpx

        name = url.raw_host.decode("ascii")
        request = httpx.Request(
            "POST",
            url.copy_with(host=address),
            headers={"Host": url.netloc.decode("ascii"), "User-Agent": "valkyrie", **headers},
            content=body,
            extensions={"timeout": httpx.Timeout(self._timeout).as_dict(), "sni_hostname": name},
        )
        async with httpx.AsyncHTTPTransport(verify=self._tls, trust_env=False) as transport:
            response = await transport.handle_async_request(request)
            try:
                refused = response.status_code >= 400
                return EndpointAnswer(
                    response.status_code,
                    parse_retry_after(response.headers.get("retry-after")),
                    await _beginning(response) if refused else "",
                )
            finally:
                await response.aclose()


async def _beginning(response: httpx.Response) -> str:
    held = b""
    async for piece in response.aiter_raw():
        held += piece
        if len(held) >= MOST_ANSWER_BYTES:
            break
    return held[:MOST_ANSWER_BYTES].decode("utf-8", "replace")
