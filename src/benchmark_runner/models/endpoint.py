"""An endpoint's address, API and key, and which failure of it becomes which error."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, urlsplit, urlunsplit

from sandboxes.masker import Masker
from sandboxes.retry import parse_retry_after

if TYPE_CHECKING:
    from benchmark_runner.llm import LLMConfig


QUOTED = 300
"""Characters of a server's words that are passed on."""
_LATER = frozenset({408, 409, 425, 429})
_LATER_WORDS = re.compile(r"overloaded|rate_limit|api_error|server_error|timeout|unavailable", re.IGNORECASE)
_SPENT = re.compile(r"insufficient_quota|billing_hard_limit", re.IGNORECASE)
_TOO_LONG = re.compile(
    r"context_length_exceeded|context (?:length|window|size)|(?:prompt|input|request) is too (?:long|large)",
    re.IGNORECASE,
)
_FILTERED = re.compile(r"content_filter|content_policy|invalid_prompt", re.IGNORECASE)


class ChatError(Exception):
    """A model gave no answer. The message names the model and its address, never a key."""

    def __init__(self, message: str, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        """Of HTTP; None where there was no answer at all."""
        self.retry_after = retry_after
        """Seconds the server asks to wait, where it says."""


class ChatConfigError(ChatError, ValueError):
    """Nothing says where the model is, or with which key it is asked."""


class ChatRefusalError(ChatError):
    """The model, or a filter before it, declines to answer."""


class ChatTooLongError(ChatError):
    """The messages are longer than the model can read."""


class ChatUnavailableError(ChatError):
    """The server was busy, broken or out of reach at every try."""


class TransientError(Exception):
    """A try failed in a way that may pass; the message goes on from "Model M at URL …"."""

    def __init__(self, why: str, status: int | None = None, retry_after: float | None = None) -> None:
        super().__init__(why)
        self.status = status
        self.retry_after = retry_after


class UnreadableAnswerError(Exception):
    """A server answered with something that is not its API."""


class BrokenStreamError(Exception):
    """A stream told of a failure; the event's `error` object is what it said."""

    def __init__(self, error: Any) -> None:
        super().__init__("the stream told of an error")
        self.error = error


def failure_of(endpoint: Endpoint, status: int, headers: Mapping[str, str], text: str) -> Exception:
    """Return what to raise for an answer of HTTP that is not a success."""
    code, words = _said(text)
    if (status in _LATER or status >= 500) and not _SPENT.search(code):
        quoted = quotable(endpoint, words)
        return TransientError(
            f"answered {status}: {quoted}", status, parse_retry_after(headers.get("retry-after"))
        )
    return _final(endpoint, f"refused ({status})", code, words, status)


def stream_failure(endpoint: Endpoint, error: Any) -> Exception:
    """Return what to raise for a failure that came in the middle of an answer."""
    code, words = _said(json.dumps({"error": error}))
    if _LATER_WORDS.search(code) or not code:
        return TransientError(f"failed while it answered: {quotable(endpoint, words)}")
    return _final(endpoint, "failed while it answered", code, words, None)


def quotable(endpoint: Endpoint, text: str) -> str:
    """Return what a server says in one short line, without the key it may echo."""
    return re.sub(r"\s+", " ", endpoint.masked(text)).strip()[:QUOTED] or "(no words)"


def _final(endpoint: Endpoint, what: str, code: str, words: str, status: int | None) -> ChatError:
    begun = f"{endpoint.title} {what}: {quotable(endpoint, words)}"
    if status in (None, 400, 413, 422) and _TOO_LONG.search(f"{code} {words}"):
        return ChatTooLongError(begun, status)
    if status in (None, 400) and _FILTERED.search(code):
        return ChatRefusalError(begun, status)
    if status is not None and 300 <= status < 400:
        return ChatError(f"{begun} Redirects are not followed: give the address it redirects to.", status)
    return ChatError(f"{begun} {endpoint.advice(status)}".rstrip(), status)


def _said(text: str) -> tuple[str, str]:
    """Return the codes and the words of an error object; all of it as words where it is none."""
    try:
        error = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return "", re.sub(r"<[^<>]*>", " ", text[:4000]) if text.lstrip()[:1] == "<" else text[:4000]
    if not isinstance(error, dict):
        return "", str(error)
    code = " ".join(str(error[key]) for key in ("type", "code") if error.get(key))
    return code, str(error.get("message") or code)


# Where a model is asked, by which API and with which key: from its name, the config and the environment.

VENDORS = ("openai", "anthropic")
KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
BASES = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL"}
PUBLIC = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
NAMED = {
    "anthropic": re.compile(r"claude", re.IGNORECASE),
    "openai": re.compile(r"(chat)?gpt|o\d", re.IGNORECASE),
}
"""What names of a vendor's models begin with."""
_NATIVE = {"openai": "responses", "anthropic": "messages"}
_PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One model at one address."""

    api: str
    """`chat`, `responses` or `messages`."""
    url: str
    """Of the request itself."""
    model: str
    """As the server is told."""
    vendor: str | None = None
    """Whose server it is; None for a server of somebody else."""
    key: str | None = field(default=None, repr=False)

    @property
    def place(self) -> str:
        """Return the address as people may see it."""
        return urlunsplit(urlsplit(self.url)._replace(query="", fragment=""))

    @property
    def title(self) -> str:
        """Return what messages call it."""
        return f"Model {self.model} at {self.place}"

    def masked(self, text: str) -> str:
        """Return a text without the key."""
        return Masker([self.key or ""]).text(text)

    def advice(self, status: int | None) -> str:
        """Return what to look at when a request is refused."""
        if status in (401, 403):
            source = KEYS[self.vendor] if self.vendor else "--custom-api-key (CUSTOM_API_KEY)"
            return f"Look at the key: {source}."
        return "Look at the model's name and the server's address." if status == 404 else ""


def find_endpoint(model: str, config: LLMConfig, env: Mapping[str, str] | None = None) -> Endpoint:
    """Return where to ask; raise ChatConfigError that names the ways where nothing says so.

    `openai/` and `anthropic/` name the vendor and are not sent. A vendor's key from the environment goes to
    the vendor's address only; a custom endpoint gets the custom key or none.
    """
    around = os.environ if env is None else env
    named, name = split_vendor(model)
    if not name:
        raise ChatConfigError(f"{model!r} is no model's name; one looks like openai/NAME or anthropic/NAME.")
    own = config.custom_api_key.get_secret_value() if config.custom_api_key else None
    native = _NATIVE[named] if named and config.native else "chat"
    if config.custom_endpoint:
        api, url = request_address(config.custom_endpoint, native, "--custom-endpoint")
        vendor = vendor_at(url, around.get)
        key = own or (around.get(KEYS[vendor]) if vendor else None)
        return Endpoint(api, url, name, vendor, usable_key(key))
    vendor = named or _vendor_of(name, around)
    base = around.get(BASES[vendor])
    key = usable_key(own or around.get(KEYS[vendor]))
    if key is None and not base:
        raise ChatConfigError(
            f"Model {model} cannot be asked without a key: set {KEYS[vendor]}, or give the address of "
            "another server with --custom-endpoint."
        )
    if named is None and config.native and NAMED[vendor].match(name):
        native = _NATIVE[vendor]
    api, url = request_address(base or PUBLIC[vendor], native, BASES[vendor])
    return Endpoint(api, url, name, vendor, key)


def split_vendor(model: str) -> tuple[str | None, str]:
    """Return the vendor that a name's prefix names, and the name as the vendor knows it."""
    prefix, slash, rest = model.partition("/")
    return (prefix, rest) if slash and prefix in VENDORS else (None, model)


def _vendor_of(name: str, around: Mapping[str, str]) -> str:
    """Return whose model a bare name is."""
    for vendor, pattern in NAMED.items():
        if pattern.match(name):
            return vendor
    if around.get(BASES["openai"]):
        return "openai"
    raise ChatConfigError(
        f"Nothing says where model {name!r} is: begin its name with openai/ or anthropic/, or give the "
        "address of its server with --custom-endpoint."
    )


def vendor_at(url: str, setting: Callable[[str], str | None]) -> str | None:
    """Return the vendor whose own address this is: where its key may go. `setting` reads the environment."""
    return _vendor_among(url, tuple(setting(BASES[known]) or PUBLIC[known] for known in VENDORS))


@lru_cache(maxsize=64)
def _vendor_among(url: str, addresses: tuple[str, ...]) -> str | None:
    for vendor, own in zip(VENDORS, addresses, strict=True):
        if _origin(urlsplit(url)) == _origin(urlsplit(own)):
            return vendor
    return None


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port or _PORTS.get(parts.scheme)


@lru_cache(maxsize=64)
def request_address(base: str, api: str, source: str, key_place: str = "--custom-api-key") -> tuple[str, str]:
    """Return API and URL of the request, from what people write: with or without /v1, or the whole of it.

    Raises ChatConfigError that names the address as `source` and tells to give a key with `key_place`.
    """
    shown = re.sub(r"//[^/@]*@", "//…@", base)[:200]
    begun = source[:1].upper() + source[1:]
    try:
        parts = urlsplit(base.strip())
        _origin(parts)
    except ValueError:  # also of a port that is none
        raise ChatConfigError(f"{begun} is a URL; {shown!r} is none.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ChatConfigError(f"{begun} begins with http:// or https://; {shown!r} does not.")
    if parts.username or parts.password:
        raise ChatConfigError(f"A key has no place in {source}; give it with {key_place}.")
    path = parts.path.rstrip("/")
    whole = next((known for known, end in _PATHS.items() if path.endswith(end)), None)
    if whole is not None:
        return whole, urlunsplit(parts._replace(path=path))
    if not (path.endswith("/v1") if api == "messages" else path):
        path += "/v1"
    return api, urlunsplit(parts._replace(path=path + _PATHS[api]))


def usable_key(key: str | None, whose: str = "The model's") -> str | None:
    """Return a key that can stand in a header; raise ChatConfigError, which does not show it, for others."""
    key = key.strip() if key else None
    if key and not (key.isascii() and key.isprintable()):
        raise ChatConfigError(f"{whose} key has characters no key has; set it anew.")
    return key or None
