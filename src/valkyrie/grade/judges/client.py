"""Asks endpoints, patiently: what may pass is tried again, what will not is said at once."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Self

from sandboxes.retry import Backoff, Retries
from valkyrie.errors import JudgeError
from valkyrie.grade.judges.faults import NotForcedError, PassingError, failure_of, object_in
from valkyrie.grade.judges.speaking import Answer, Tool, UnreadableAnswerError, dialect_of
from valkyrie.nouns import Json

if TYPE_CHECKING:
    from ssl import SSLContext

    import httpx

    from valkyrie.grade.judges.endpoint import Endpoint

BACKOFF = Backoff(first_s=0.5, longest_s=20.0, attempts=4)
"""Within one call. What an endpoint asks for beyond `longest_s` is left to the next attempt of the trial."""
AT_ONCE = 16
"""Requests in flight; more wait."""
_CONNECT_S, _ANSWER_S = 10.0, 600.0


class JudgeClient:
    """One pool of connections for all judges. `async with` opens and closes it."""

    def __init__(self, *, backoff: Backoff = BACKOFF, at_once: int = AT_ONCE) -> None:
        self._backoff = backoff
        self._room = asyncio.Semaphore(at_once)
        self._http: httpx.AsyncClient | None = None
        self._not_forced: set[str] = set()
        """Endpoints that refuse to be told which tool to use."""
        self.retries = 0
        """Tries beyond the first, of all calls."""

    async def __aenter__(self) -> Self:
        return self.opened()

    def opened(self) -> Self:
        """The same without waiting, so that nobody comes in between."""
        import httpx

        limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=AT_ONCE)
        self._http = httpx.AsyncClient(
            timeout=httpx.Timeout(_ANSWER_S, connect=_CONNECT_S, pool=None), limits=limits, verify=_trust()
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of all connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def ask(self, endpoint: Endpoint, system: str, messages: list[Json], tool: Tool) -> Answer:
        """One answer. Raises JudgeError after tries in vain, UserError where the endpoint refuses."""
        dialect = dialect_of(endpoint)
        retries = Retries(self._backoff)
        while True:
            forced = endpoint.url not in self._not_forced
            body = dialect.body(endpoint, system, messages, tool, forced=forced)
            try:
                return dialect.read(await self._once(endpoint, body, dialect.headers(endpoint)))
            except PassingError as error:
                why, asked = str(error), error.retry_after
            except UnreadableAnswerError as error:
                why, asked = f"answered with something else than its API ({error})", None
            delay = retries.next_delay(asked)
            if delay is None or (asked or 0.0) > self._backoff.longest_s:
                break
            self.retries += 1
            await self._backoff.sleep(delay)
        raise JudgeError(
            f"Judge {endpoint.model} at {endpoint.place} {why}; tried {retries.failed} "
            f"{'time' if retries.failed == 1 else 'times'}.",
            retry_after=asked,
        )

    async def _once(self, endpoint: Endpoint, body: Json, headers: Mapping[str, str]) -> Json:
        import httpx

        assert self._http is not None, "the client is not open"
        content = json.dumps(body).encode()
        async with self._room:
            try:
                response = await self._http.post(
                    endpoint.url, content=content, headers={"content-type": "application/json", **headers}
                )
            except httpx.TimeoutException:
                raise PassingError("did not answer in time") from None
            except httpx.RequestError as error:
                # What httpx says may hold headers of the request; its kind is enough.
                raise PassingError(f"cannot be reached ({type(error).__name__})") from None
        if response.is_success:
            return object_in(response)
        failure = failure_of(endpoint, response)
        if isinstance(failure, NotForcedError):
            self._not_forced.add(endpoint.url)
        raise failure


@cache
def _trust() -> SSLContext:
    """Whom to trust; reading the certificates takes longer than asking a judge nearby."""
    import httpx

    return httpx.create_ssl_context()
