"""Where a judge's model is asked, and with which key: from flags, the model's name and the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from valkyrie.errors import UsageError, UserError
from valkyrie.grade.judges.config import PROVIDERS, Judge
from valkyrie.grade.judges.speaking import RESPONSES
from valkyrie.specs.reading import EFFORT_FORM, EFFORTS
from valkyrie.suggest import did_you_mean

if TYPE_CHECKING:
    from valkyrie.grade.protocol import Asking
    from valkyrie.secrets import SecretSource

JUDGE_URL, JUDGE_KEY = "VALKYRIE_JUDGE_URL", "VALKYRIE_JUDGE_API_KEY"
JUDGE_EFFORT = "EVAL_JUDGE_REASONING_EFFORT"
"""How hard judges think where neither grader, command line nor spec says."""
_KEYS = {"openai": "OPENAI_API_KEY", "anthropic": "ANTHROPIC_API_KEY"}
_BASES = {"openai": "OPENAI_BASE_URL", "anthropic": "ANTHROPIC_BASE_URL"}
_PUBLIC = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
_NAMED = {"anthropic": re.compile(r"claude", re.IGNORECASE), "openai": re.compile(r"(gpt|o\d|chatgpt)", re.I)}
NO_MODEL = (
    "no judge model is set: give --judge-model, or `judge_model` in the spec's `defaults`, "
    "or `model` in the grader's config."
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One model at one address."""

    provider: str
    """`openai` or `anthropic`: which API it speaks."""
    url: str
    """Of the request itself."""
    model: str
    key: str | None = field(default=None, repr=False)
    reasoning_effort: str | None = None

    @property
    def place(self) -> str:
        """What people are told: no path, no query, no key."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")


class Surroundings:
    """What the machine says about judges: variables, and secrets kept for them."""

    def __init__(self, sources: Sequence[SecretSource]) -> None:
        self._sources = sources

    @classmethod
    def default(cls) -> Surroundings:
        """The environment, `.env` of the folder one stands in, and what `valk secret set` keeps."""
        from valkyrie.secrets import SecretStore, default_sources
        from valkyrie.settings import secrets_path

        return cls(default_sources(SecretStore(secrets_path())))

    @classmethod
    def of(cls, values: Mapping[str, str]) -> Surroundings:
        """Just these values."""
        from valkyrie.secrets import EnvironmentSource

        return cls([EnvironmentSource(values)])

    def get(self, name: str) -> str | None:
        """The first source that has it."""
        return next((value for source in self._sources if (value := source.get(name))), None)

    def address(self, name: str) -> str | None:
        """Return the address a variable holds; UsageError where only a `.env` file has one.

        The key that would go there must not go elsewhere instead, nor another key there.
        """
        from valkyrie.secrets import DotenvSource

        found = self.get(name)
        if found is None:
            files = [source for source in self._sources if isinstance(source, DotenvSource)]
            if why := next((why for file in files if (why := file.refused(name))), None):
                raise UsageError(f"{why}, or take the line out.")
        return found


def find_endpoint(judge: Judge, asking: Asking, around: Surroundings | None = None) -> Endpoint:
    """Where to ask; UsageError that names the ways where nothing says so."""
    around = around or Surroundings.default()
    model = judge.model or asking.model
    if not model:
        raise UsageError(f"A judge is needed and {NO_MODEL}")
    said = judge.provider or asking.provider
    if said is not None and said not in PROVIDERS:
        raise UsageError(f"No judge provider is called {said!r}.{did_you_mean(said, PROVIDERS)}")
    effort = judge.reasoning_effort or asking.reasoning_effort or around.get(JUDGE_EFFORT)
    if effort is not None and not EFFORT_FORM.fullmatch(effort):
        raise UsageError(
            f"No reasoning effort is called {effort!r}. It is a word such as {', '.join(EFFORTS)}."
        )
    url = asking.url or around.address(JUDGE_URL)
    if url:
        provider = said or ("anthropic" if _speaks_messages(url) else "openai")
        key = around.get(JUDGE_KEY) or _key_of_same_place(url, provider, around)
        return Endpoint(provider, request_url(provider, url), model, _usable(key), effort)
    provider, name = _provider_of(model, said, around)
    base, key = around.address(_BASES[provider]), around.get(JUDGE_KEY) or around.get(_KEYS[provider])
    if key is None and base is None:
        raise _nowhere(model, provider)
    return Endpoint(provider, request_url(provider, base or _PUBLIC[provider]), name, _usable(key), effort)


def request_url(provider: str, base: str) -> str:
    """The address of the request, from what people write: with or without /v1, or the whole of it."""
    parts = urlsplit(base.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise UsageError(f"A judge's address begins with http:// or https://; {_bare(base)!r} does not.")
    if parts.username or parts.password:
        raise UsageError(f"A key has no place in a judge's address; put it into {JUDGE_KEY}.")
    path = parts.path.rstrip("/")
    ends = ("/chat/completions", RESPONSES) if provider == "openai" else ("/messages",)
    if not path.endswith(ends):
        versioned = path.endswith("/v1") if provider == "anthropic" else bool(path)
        path += ends[0] if versioned else f"/v1{ends[0]}"
    return parts._replace(path=path).geturl()


def _usable(key: str | None) -> str | None:
    """A key that can stand in a header; one that cannot must not come up in the error of who tries."""
    key = key.strip() if key else None
    if key and not (key.isascii() and key.isprintable()):
        raise UserError("The judge's key has characters no key has; set it anew.", cause="judge_refused")
    return key or None


def _bare(url: str) -> str:
    """Without what may be a key."""
    return re.sub(r"//[^/@]*@", "//…@", url)[:200]


def _speaks_messages(url: str) -> bool:
    path = urlsplit(url).path.rstrip("/")
    return path.endswith(("/messages", "/anthropic", "/anthropic/v1"))


def _key_of_same_place(url: str, provider: str, around: Surroundings) -> str | None:
    """A vendor's key goes to the vendor's own address only, however that was named."""
    own = around.get(_BASES[provider]) or _PUBLIC[provider]
    same = urlsplit(url).hostname == urlsplit(own).hostname and urlsplit(url).scheme == urlsplit(own).scheme
    return around.get(_KEYS[provider]) if same else None


def _provider_of(model: str, said: str | None, around: Surroundings) -> tuple[str, str]:
    """Which API, and the model's name there: from the spec's word, a prefix, the name, what is set up."""
    prefix, slash, rest = model.partition("/")
    if slash and prefix in PROVIDERS and said in (None, prefix):
        return prefix, rest
    if said:
        return said, model
    ready = [name for name in PROVIDERS if around.get(_KEYS[name]) or around.get(_BASES[name])]
    named = [name for name in PROVIDERS if _NAMED[name].match(model)]
    chosen = [name for name in named if name in ready] or ready or named
    if not chosen:
        raise UserError(
            f"Nothing says where judge model {model!r} is: set {JUDGE_URL} (--judge-url), or begin its name "
            "with openai/ or anthropic/ and set that vendor's key.",
            cause="judge_refused",
        )
    return chosen[0], model


def _nowhere(model: str, provider: str) -> UserError:
    return UserError(
        f"Judge model {model!r} cannot be asked: set {_KEYS[provider]} (or {JUDGE_KEY}), or give the address "
        f"of another endpoint with --judge-url or {JUDGE_URL}.",
        cause="judge_refused",
    )
