"""What a setting may hold: a key's one value, a map's entries, and how each is checked."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

Value = str | int | float
Entry = str | dict[str, str] | None
"""One entry of a map, as plain data."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(:[0-9]{1,5})?")
GRADINGS = ("text", "sandbox")
LONGEST_CREDENTIAL = 8192
_SWITCH = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}


@dataclass(frozen=True, slots=True)
class Key:
    """One thing that can be set."""

    name: str
    kind: type[str] | type[int] | type[float] | type[bool]
    description: str
    default: Value | None = None
    env: str | None = None
    """Environment variable that wins over the file."""
    least: float | None = None
    """Smallest value allowed, for numbers."""
    most: float | None = None
    """Largest value allowed, for numbers."""
    url: bool = False
    path: bool = False
    """A file; kept absolute, so that it is the same one from every folder."""
    check: Callable[[str], str] | None = None
    """Reads a text of a form of its own; ValueError says what is wanted."""
    form: str = "text"
    """What a text must be, for messages and docs."""
    secret: bool = False
    """Shown masked, and in no message."""
    listed: bool = False
    """Words with commas between them; the file may also hold a YAML list."""

    def parse(self, raw: object) -> Value:
        """A value of this key's kind, or ValueError saying what is wanted."""
        if self.kind is str:
            return self._parse_text(raw)
        if self.kind is bool:
            return self._parse_switch(raw)
        if isinstance(raw, bool) or not isinstance(raw, str | int | float):
            raise self._unwanted(raw)
        try:
            number = self.kind(raw)
        except (ValueError, OverflowError):
            raise self._unwanted(raw) from None
        too_small = self.least is not None and float(number) < self.least
        too_large = self.most is not None and float(number) > self.most
        if number != number or too_small or too_large:
            raise self._unwanted(raw)
        return number

    def _parse_text(self, raw: object) -> str:
        if self.listed and isinstance(raw, list):
            raw = ",".join(str(word) for word in raw)
        if not isinstance(raw, str) or not raw.strip() or not raw.isprintable():
            raise self._unwanted(raw)
        text = raw.strip()
        if self.check:
            try:
                return self.check(text)
            except ValueError as error:
                raise ValueError(f"{self.name}: {error}") from None
        if self.path:
            return str(Path(text).expanduser().absolute())
        if self.url and not text.startswith(("http://", "https://")):
            raise self._unwanted(raw)
        return text.rstrip("/") if self.url else text

    def _parse_switch(self, raw: object) -> bool:
        word = str(raw).strip().lower()
        if word not in _SWITCH:
            raise self._unwanted(raw)
        return _SWITCH[word]

    def _unwanted(self, raw: object) -> ValueError:
        given = "" if self.secret else f", not {raw!r}"
        return ValueError(f"{self.name} wants {self.wanted}{given}")

    @property
    def wanted(self) -> str:
        """What a value must be, for messages and docs."""
        if self.kind is str:
            return "an http(s) URL" if self.url else self.form
        if self.kind is bool:
            return "true or false"
        noun = "a whole number" if self.kind is int else "a number"
        if self.least is not None and self.most is not None:
            return f"{noun} from {self.least:g} to {self.most:g}"
        return noun if self.least is None else f"{noun} of at least {self.least:g}"


@dataclass(frozen=True, slots=True)
class Map:
    """Names and what belongs to each, under one key of the file."""

    name: str
    command: str
    """The group of commands that reads and writes it."""
    description: str
    shape: str
    """What an entry looks like, for docs."""
    parse: Callable[[object], Entry]
    """One entry checked, or ValueError saying what is wanted; secrets are not in its message."""

    def entry(self, name: str, raw: object) -> Entry:
        """The entry called `name`, checked."""
        check_name(name)
        try:
            return self.parse(raw)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None


def check_name(name: str) -> str:
    """`name` as it is, or ValueError: letters, digits, `.`, `_` and `-`, the first a letter or digit."""
    if not NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a name: use letters, digits, `.`, `_`, `-`, a letter or digit first"
        )
    return name


def check_url(raw: object) -> str:
    """An http(s) address without credentials or query, its last slash dropped; ValueError otherwise."""
    from urllib.parse import urlsplit

    if not isinstance(raw, str) or not raw.isprintable() or " " in raw.strip():
        raise ValueError("an http(s) URL is wanted")
    text = raw.strip()
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError as error:
        raise ValueError(f"this is not a URL: {error}") from None
    if "@" in parts.netloc:
        raise ValueError(
            "a URL with credentials in it is shown everywhere; keep them with `valk config auth set`"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"an http(s) URL with a host is wanted, not {text!r}")
    if "?" in text or "#" in text:
        raise ValueError(f"a service's URL has no query and no fragment, not {text!r}")
    return text.rstrip("/")


def networks_in(text: str) -> tuple[str, ...]:
    """Return the networks of a list with commas; ValueError when one of them is none."""
    import ipaddress

    return tuple(str(ipaddress.ip_network(one.strip())) for one in text.split(",") if one.strip())


def check_networks(text: str) -> str:
    """Return a list of networks in one form; ValueError when one of them is none."""
    return ",".join(networks_in(text))


def check_pattern(text: str) -> str:
    """A domain that services are names under, or a URL with `{name}` in it."""
    probe = text.replace("{name}", "name", 1)
    if "{" in probe or "}" in probe:
        raise ValueError(
            f"{{name}} stands once for the benchmark's name, nothing else in braces, not {text!r}"
        )
    check_url(probe if "://" in probe else f"https://{probe}")
    return text.rstrip("/")


def check_service(raw: object) -> Entry:
    """An address, perhaps with how the service grades."""
    if not isinstance(raw, dict):
        return check_url(raw)
    if unknown := sorted(str(key) for key in raw if key not in ("url", "grading")):
        raise ValueError(f"unknown {', '.join(unknown)}; a service has url and grading")
    url, grading = check_url(raw.get("url")), raw.get("grading")
    if grading is None:
        return url
    if grading not in GRADINGS:
        raise ValueError(f"grading wants {' or '.join(GRADINGS)}, not {grading!r}")
    return {"url": url, "grading": str(grading)}


def check_credential(raw: object) -> str:
    """What a header can carry."""
    if not isinstance(raw, str):
        raise ValueError("the credential must be text: put quotes around it")
    text = raw.strip()
    if not text or not text.isprintable() or not text.isascii():
        raise ValueError("a credential is printable ASCII on one line, as a header can carry it")
    if len(text) > LONGEST_CREDENTIAL:
        raise ValueError(f"a credential has at most {LONGEST_CREDENTIAL} characters")
    return text


def check_secret_name(raw: object) -> Entry:
    """Name of a secret, or None."""
    if raw is None:
        return None
    if not isinstance(raw, str) or not raw.strip() or not raw.isprintable():
        raise ValueError("the name of a secret is wanted, or nothing")
    return raw.strip()


def matching(pattern: str, wanted: str) -> Callable[[str], str]:
    """A check that takes texts of this form only."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{wanted} is wanted, not {text!r}")
        return text

    return check
