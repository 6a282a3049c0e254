"""Where a judge is asked, and the client that asks it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from benchmark_runner.models.client import DIALECTS, Connections, Exchange, LoopShared, ask_endpoint
from benchmark_runner.models.dialect import FunctionTool, ModelRequest, Reply
from benchmark_runner.models.endpoint import (
    BASES,
    KEYS,
    NAMED,
    PUBLIC,
    ChatConfigError,
    ChatError,
    ChatTooLongError,
    ChatUnavailableError,
    Endpoint,
    request_address,
    split_vendor,
    usable_key,
    vendor_at,
)
from sandboxes.retry import Backoff
from valkyrie.config.values import secrets_path
from valkyrie.domain import Json
from valkyrie.errors import GraderError, JudgeError, UsageError, UserError, ValkyrieError
from valkyrie.grade.judges.config import PROVIDERS, Judge
from valkyrie.grade.protocol import JUDGE_REFUSED, JUDGE_REFUSED_QUESTION
from valkyrie.secrets import DotenvSource, EnvironmentSource, Masker, SecretStore, default_sources
from valkyrie.specs.reader import EFFORT_FORM, EFFORTS
from valkyrie.text import did_you_mean

if TYPE_CHECKING:
    from valkyrie.grade.protocol import JudgeDefaults
    from valkyrie.secrets import SecretSource


JUDGE_URL, JUDGE_KEY = "VALKYRIE_JUDGE_URL", "VALKYRIE_JUDGE_API_KEY"
JUDGE_EFFORT = "EVAL_JUDGE_REASONING_EFFORT"
"""How hard judges think where neither grader, command line nor spec says."""
NO_MODEL = (
    "no judge model is set: give --judge-model, or `judge_model` in the spec's `defaults`, "
    "or `model` in the grader's config."
)
_APIS = {"openai": "chat", "anthropic": "messages"}
"""What a provider is asked by where its address does not say: most servers know Chat Completions."""


@dataclass(frozen=True, slots=True)
class JudgeEndpoint(Endpoint):
    """One judge's model at one address."""

    reasoning_effort: str | None = None

    @property
    def place(self) -> str:
        """Return what people are told of the address: no path, no query, no key."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")

    @property
    def title(self) -> str:
        """Return what messages call it."""
        return f"Judge {self.model} at {self.place}"

    def masked(self, text: str) -> str:
        """Return a text without the key, however it is encoded."""
        return Masker([self.key or ""]).text(text)

    def advice(self, status: int | None) -> str:
        """Return what to look at when a question is refused."""
        if status in (401, 403):
            return f"Look at its key ({JUDGE_KEY}, or the vendor's own)."
        if status == 404:
            return "Look at the model's name and the endpoint's address (--judge-url)."
        return "Look at the model and the judge's config."


class JudgeSettings:
    """What the machine says about judges: variables, and secrets kept for them."""

    def __init__(self, sources: Sequence[SecretSource]) -> None:
        self._sources = sources

    @classmethod
    def default(cls) -> JudgeSettings:
        """Return the environment, `.env` of the current folder, and what `valk secret set` keeps."""
        return cls(default_sources(SecretStore(secrets_path())))

    @classmethod
    def of(cls, values: Mapping[str, str]) -> JudgeSettings:
        """Return just these values."""
        return cls([EnvironmentSource(values)])

    def get(self, name: str) -> str | None:
        """Return the value of the first source that has it."""
        return next((value for source in self._sources if (value := source.get(name))), None)

    def address(self, name: str) -> str | None:
        """Return the address a variable holds; UsageError where only a `.env` file has one.

        The key that would go there must not go elsewhere instead, nor another key there.
        """
        found = self.get(name)
        if found is None:
            files = [source for source in self._sources if isinstance(source, DotenvSource)]
            if why := next((why for file in files if (why := file.refused(name))), None):
                raise UsageError(f"{why}, or take the line out.")
        return found


def find_endpoint(
    judge: Judge, asking: JudgeDefaults, settings: JudgeSettings | None = None
) -> JudgeEndpoint:
    """Return where to ask; raise UsageError that names the ways where nothing says so."""
    settings = settings or JudgeSettings.default()
    model = judge.model or asking.model
    if not model:
        raise UsageError(f"A judge is needed and {NO_MODEL}")
    provider = judge.provider or asking.provider
    if provider is not None and provider not in PROVIDERS:
        raise UsageError(f"No judge provider is called {provider!r}.{did_you_mean(provider, PROVIDERS)}")
    effort = judge.reasoning_effort or asking.reasoning_effort or settings.get(JUDGE_EFFORT)
    if effort is not None and not EFFORT_FORM.fullmatch(effort):
        raise UsageError(
            f"No reasoning effort is called {effort!r}. It is a word such as {', '.join(EFFORTS)}."
        )
    own = settings.get(JUDGE_KEY)
    name = model
    if base := asking.url or settings.address(JUDGE_URL):
        api, url = _address(provider or ("anthropic" if _speaks_messages(base) else "openai"), base)
        vendor = vendor_at(url, settings.get)
        key = own or (settings.get(KEYS[vendor]) if vendor else None)
    else:
        vendor, name = _vendor_of(model, provider, settings)
        moved, key = settings.address(BASES[vendor]), own or settings.get(KEYS[vendor])
        if key is None and moved is None:
            raise _nowhere(model, vendor)
        api, url = _address(vendor, moved or PUBLIC[vendor])
    try:
        return JudgeEndpoint(api, url, name, vendor, usable_key(key, "The judge's"), effort)
    except ChatConfigError as error:
        raise UserError(str(error), cause="judge_refused") from None


def check_address(base: str) -> None:
    """Raise UsageError for what cannot be a judge's address."""
    _address("openai", base)


def _address(provider: str, base: str) -> tuple[str, str]:
    try:
        return request_address(base, _APIS[provider], "a judge's address", JUDGE_KEY)
    except ChatConfigError as error:
        raise UsageError(str(error)) from None


def _speaks_messages(url: str) -> bool:
    return urlsplit(url).path.rstrip("/").endswith(("/anthropic", "/anthropic/v1"))


def _vendor_of(model: str, said: str | None, settings: JudgeSettings) -> tuple[str, str]:
    """Return the vendor and its name for the model: from the spec, a prefix, the name, what is set up."""
    prefix, rest = split_vendor(model)
    if prefix and said in (None, prefix):
        return prefix, rest
    if said:
        return said, model
    ready = [name for name in PROVIDERS if settings.get(KEYS[name]) or settings.get(BASES[name])]
    named = [name for name in PROVIDERS if NAMED[name].match(model)]
    chosen = [name for name in named if name in ready] or ready or named
    if not chosen:
        raise UserError(
            f"Nothing says where judge model {model!r} is: set {JUDGE_URL} (--judge-url), or begin its name "
            "with openai/ or anthropic/ and set that vendor's key.",
            cause="judge_refused",
        )
    return chosen[0], model


def _nowhere(model: str, vendor: str) -> UserError:
    return UserError(
        f"Judge model {model!r} cannot be asked: set {KEYS[vendor]} (or {JUDGE_KEY}), or give the address "
        f"of another endpoint with --judge-url or {JUDGE_URL}.",
        cause="judge_refused",
    )


# The client all judges of an event loop share: bounded, patient, and with errors in the platform's words.

BACKOFF = Backoff(first_s=0.5, longest_s=20.0, jitter=1.0, attempts=4)
"""A wait that an endpoint asks for beyond this is left to the next attempt of the trial."""
AT_ONCE = 16
"""Requests in flight; more wait."""
_WHATEVER_IS_ASKED = frozenset({401, 402, 403, 404, 405, 429, *range(300, 400)})
"""Statuses of an endpoint that takes no question; 429 is final where a quota is spent."""


class QuestionTooLongError(GraderError):
    """The question is longer than the judge's model can read."""

    default_cause = "judge_too_long"


class JudgeClient:
    """One pool of connections for all judges. Use as `async with`."""

    def __init__(self, *, backoff: Backoff = BACKOFF, most_at_once: int = AT_ONCE) -> None:
        self._backoff = backoff
        self._connections: Connections | None = Connections(most_at_once=most_at_once)
        self._unforced: set[str] = set()
        """Endpoints that refuse to be told which tool to use."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._connections is not None:
            await self._connections.close()
            self._connections = None

    async def ask(self, endpoint: JudgeEndpoint, messages: Sequence[Json], tool: FunctionTool) -> Reply:
        """Return one answer.

        Raises JudgeError after tries in vain, QuestionTooLongError, and UserError where the endpoint refuses.
        """
        try:
            if endpoint.url not in self._unforced:
                try:
                    return await self._ask(endpoint, messages, tool, forced=True)
                except ChatError as error:
                    if error.status != 400 or "tool_choice" not in str(error):
                        raise
                    self._unforced.add(endpoint.url)
            return await self._ask(endpoint, messages, tool, forced=False)
        except ChatError as error:
            raise _in_our_words(error) from None

    async def _ask(
        self, endpoint: JudgeEndpoint, messages: Sequence[Json], tool: FunctionTool, *, forced: bool
    ) -> Reply:
        assert self._connections is not None, "the client is closed"
        sampling = {"reasoning_effort": endpoint.reasoning_effort} if endpoint.reasoning_effort else {}
        request = ModelRequest(messages, sampling, tool=tool, forced=forced)
        body = DIALECTS[endpoint.api].body(endpoint, request)
        return await ask_endpoint(self._connections, endpoint, Exchange(body), self._backoff)


def _in_our_words(error: ChatError) -> ValkyrieError:
    if isinstance(error, ChatUnavailableError):
        return JudgeError(str(error), retry_after=error.retry_after)
    if isinstance(error, ChatTooLongError):
        return QuestionTooLongError(str(error))
    cause = JUDGE_REFUSED if error.status in _WHATEVER_IS_ASKED else JUDGE_REFUSED_QUESTION
    return UserError(str(error), cause=cause)


_shared = LoopShared(JudgeClient.close)


def shared_client(backoff: Backoff = BACKOFF) -> AbstractAsyncContextManager[JudgeClient]:
    """Hold the client of this event loop: opened by the first who asks, closed by the last who leaves.

    Whoever runs many trials holds it around them, so that connections last from one judge to the next. The
    back-off is that of who opens it.
    """
    return _shared.hold(lambda: JudgeClient(backoff=backoff))
