"""Where a model is asked, by which API and with which key: from its name, the config and the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit, urlunsplit

from benchmark_runner.chat.errors import ChatConfigError

if TYPE_CHECKING:
    from benchmark_runner.llm import LLMConfig

VENDORS = ("openai", "anthropic")
KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
BASES = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL"}
_PUBLIC = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
_NATIVE = {"openai": "responses", "anthropic": "messages"}
_PATHS = {"chat": "/chat/completions", "responses": "/responses", "messages": "/messages"}
_NAMED = {
    "anthropic": re.compile(r"claude", re.IGNORECASE),
    "openai": re.compile(r"(chat)?gpt|o\d", re.IGNORECASE),
}


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
        """The address as people may see it."""
        return urlunsplit(urlsplit(self.url)._replace(query="", fragment=""))

    @property
    def key_source(self) -> str:
        """What to look at when the key is refused."""
        return KEYS[self.vendor] if self.vendor else "--custom-api-key (CUSTOM_API_KEY)"


def find_endpoint(model: str, config: LLMConfig, env: Mapping[str, str] | None = None) -> Endpoint:
    """Where to ask; ChatConfigError that names the ways where nothing says so.

    `openai/` and `anthropic/` name the vendor and are not sent. A vendor's key from the environment goes to
    the vendor's address only; a custom endpoint gets the custom key or none.
    """
    around = os.environ if env is None else env
    prefix, slash, rest = model.partition("/")
    named = prefix if slash and prefix in VENDORS else None
    name = rest if named else model
    if not name:
        raise ChatConfigError(f"{model!r} is no model's name; one looks like openai/NAME or anthropic/NAME.")
    own = config.custom_api_key.get_secret_value() if config.custom_api_key else None
    native = _NATIVE[named] if named and config.native else "chat"
    if config.custom_endpoint:
        api, url = _address(config.custom_endpoint, native, "--custom-endpoint")
        vendor = _vendor_at(url, tuple(around.get(BASES[known]) or _PUBLIC[known] for known in VENDORS))
        key = own or (around.get(KEYS[vendor]) if vendor else None)
        return Endpoint(api, url, name, vendor, _usable(key))
    vendor = named or _vendor_of(name, around)
    base = around.get(BASES[vendor])
    key = _usable(own or around.get(KEYS[vendor]))
    if key is None and not base:
        raise ChatConfigError(
            f"Model {model} cannot be asked without a key: set {KEYS[vendor]}, or give the address of "
            "another server with --custom-endpoint."
        )
    if named is None and config.native and _NAMED[vendor].match(name):
        native = _NATIVE[vendor]
    api, url = _address(base or _PUBLIC[vendor], native, BASES[vendor])
    return Endpoint(api, url, name, vendor, key)


def _vendor_of(name: str, around: Mapping[str, str]) -> str:
    """Whose model a bare name is."""
    for vendor, pattern in _NAMED.items():
        if pattern.match(name):
            return vendor
    if around.get(BASES["openai"]):
        return "openai"
    raise ChatConfigError(
        f"Nothing says where model {name!r} is: begin its name with openai/ or anthropic/, or give the "
        "address of its server with --custom-endpoint."
    )


@lru_cache(maxsize=64)
def _vendor_at(url: str, addresses: tuple[str, ...]) -> str | None:
    """The vendor whose own address this is, of those of all vendors."""
    for vendor, own in zip(VENDORS, addresses, strict=True):
        if _origin(urlsplit(url)) == _origin(urlsplit(own)):
            return vendor
    return None


def _origin(parts: SplitResult) -> tuple[str, str | None, int | None]:
    return parts.scheme, parts.hostname, parts.port


@lru_cache(maxsize=64)
def _address(base: str, api: str, source: str) -> tuple[str, str]:
    """API and address of the request, from what people write: with or without /v1, or the whole of it."""
    parts = urlsplit(base.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ChatConfigError(f"{source} is a model server's address that begins with http:// or https://.")
    if parts.username or parts.password:
        raise ChatConfigError(f"A key has no place in {source}; give it with --custom-api-key.")
    path = parts.path.rstrip("/")
    whole = next((known for known, end in _PATHS.items() if path.endswith(end)), None)
    if whole is not None:
        return whole, urlunsplit(parts._replace(path=path))
    if not (path.endswith("/v1") if api == "messages" else path):
        path += "/v1"
    return api, urlunsplit(parts._replace(path=path + _PATHS[api]))


def _usable(key: str | None) -> str | None:
    """A key that can stand in a header; one that cannot must not come up in the error of who tries."""
    key = key.strip() if key else None
    if key and not (key.isascii() and key.isprintable()):
        raise ChatConfigError("The model's key has characters no key has; set it anew.")
    return key or None
