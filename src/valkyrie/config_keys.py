"""What can be configured: keys with one value, maps with an entry per name, and what each may hold."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from valkyrie.errors import UsageError
from valkyrie.suggest import did_you_mean

Value = str | int | float
Entry = str | dict[str, str] | None
"""One entry of a map, as plain data."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(:[0-9]{1,5})?")
GRADINGS = ("text", "sandbox")
LONGEST_CREDENTIAL = 8192


@dataclass(frozen=True, slots=True)
class Key:
    """One thing that can be set."""

    name: str
    kind: type[str] | type[int] | type[float]
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
    reserved: bool = False
    """May be set, but nothing in this version uses it."""

    def parse(self, raw: object) -> Value:
        """A value of this key's kind, or ValueError saying what is wanted."""
        if self.kind is str:
            return self._parse_text(raw)
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

    def _unwanted(self, raw: object) -> ValueError:
        return ValueError(f"{self.name} wants {self.wanted}, not {raw!r}")

    @property
    def meaning(self) -> str:
        """What it is for, and whether that works yet."""
        return f"{self.description} Kept, not used yet." if self.reserved else self.description

    @property
    def wanted(self) -> str:
        """What a value must be, for messages and docs."""
        if self.kind is str:
            return "an http(s) URL" if self.url else self.form
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


def _pattern(text: str) -> str:
    """A domain that services are names under, or a URL with `{name}` in it."""
    probe = text.replace("{name}", "name", 1)
    if "{" in probe or "}" in probe:
        raise ValueError(
            f"{{name}} stands once for the benchmark's name, nothing else in braces, not {text!r}"
        )
    check_url(probe if "://" in probe else f"https://{probe}")
    return text.rstrip("/")


def _service(raw: object) -> Entry:
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


def _credential(raw: object) -> Entry:
    if not isinstance(raw, str):
        raise ValueError("the credential must be text: put quotes around it")
    text = raw.strip()
    if not text or not text.isprintable() or not text.isascii():
        raise ValueError("a credential is printable ASCII on one line, as a header can carry it")
    if len(text) > LONGEST_CREDENTIAL:
        raise ValueError(f"a credential has at most {LONGEST_CREDENTIAL} characters")
    return text


def _secret_name(raw: object) -> Entry:
    if raw is None:
        return None
    if not isinstance(raw, str) or not raw.strip() or not raw.isprintable():
        raise ValueError("the name of a secret is wanted, or nothing")
    return raw.strip()


SERVICES, AUTH, SANDBOX_PROVIDERS = "custom_benchmark_services", "benchmark_auth", "sandbox_providers"
MAPS = (
    Map(
        SERVICES,
        "config service",
        "Benchmark services of your own: name and address.",
        "`name: url`, or `name: {url, grading}`",
        _service,
    ),
    Map(
        AUTH,
        "config auth",
        "Credential sent as `Authorization` to the service of that name.",
        "`name: credential`",
        _credential,
    ),
    Map(
        SANDBOX_PROVIDERS,
        "config provider",
        "Remote sandbox providers, and the secret that holds how to reach each.",
        "`provider: secret name`, or nothing for its environment variables",
        _secret_name,
    ),
)
KEYS = (
    Key("default_provider", str, "Sandbox provider of runs that name none.", "local", "VALKYRIE_PROVIDER"),
    Key(
        "default_concurrency", int, "Trials at once of runs that say no number.", 5, "VALKYRIE_CONCURRENCY", 1
    ),
    Key(
        "cpu_overcommit",
        float,
        "CPUs of tasks admitted per CPU of this host.",
        4.0,
        "VALKYRIE_CPU_OVERCOMMIT",
        0.1,
    ),
    Key(
        "service_registry",
        str,
        "File that maps benchmark names to services.",
        env="VALKYRIE_SERVICE_REGISTRY",
        path=True,
        form="a file's path",
    ),
    Key(
        "service_base_url",
        str,
        "Where other services are: a domain they are names under, or a URL with {name}.",
        env="BENCHMARK_SERVICE_BASE_URL",
        check=_pattern,
        form="a domain or an http(s) URL",
    ),
    Key(
        "sandbox_public_url",
        str,
        "URL under which services elsewhere reach this machine's sandbox server.",
        env="VALKYRIE_SANDBOX_PUBLIC_URL",
        url=True,
        check=check_url,
    ),
    Key(
        "sandbox_port",
        int,
        "Port the sandbox server listens on; 0 is any free one.",
        0,
        "VALKYRIE_SANDBOX_PORT",
        0,
        65535,
    ),
    Key(
        "tracker_url",
        str,
        "Tracker to talk to instead of this machine.",
        env="TRACKER_SERVICE_URL",
        url=True,
        reserved=True,
    ),
    Key("webhook", str, "Name of the secret that holds the Slack webhook URL.", reserved=True),
    Key("S3_BUCKET", str, "S3 bucket for agents and artifacts.", env="S3_BUCKET", reserved=True),
    Key("AWS_DEFAULT_REGION", str, "AWS region.", env="AWS_DEFAULT_REGION", reserved=True),
    Key("LOG_GROUP", str, "CloudWatch log group prefix.", "benchmarks", "LOG_GROUP", reserved=True),
    Key(
        "LOG_RETENTION_POLICY",
        int,
        "Days CloudWatch keeps logs.",
        365,
        "LOG_RETENTION_POLICY",
        1,
        reserved=True,
    ),
)


def find_setting(name: str) -> Key | Map:
    """The key or map of that name, upper or lower case; UsageError of an unknown one says which is near."""
    known: dict[str, Key | Map] = {setting.name.lower(): setting for setting in (*KEYS, *MAPS)}
    if name.lower() in known:
        return known[name.lower()]
    names = [setting.name for setting in known.values()]
    hint = did_you_mean(name, names) or f" There are: {', '.join(names)}"
    raise UsageError(f"Unknown config key {name!r}.{hint}", cause="unknown_key")


def find_key(name: str) -> Key:
    """The key of that name; a map is refused with the commands that are for it."""
    found = find_setting(name)
    if isinstance(found, Map):
        raise UsageError(
            f"{found.name} has an entry per name, not one value: see `valk {found.command} list` and "
            f"`valk {found.command} set`.",
            cause="config",
        )
    return found


def find_map(name: str) -> Map:
    """The map of that name."""
    found = find_setting(name)
    if isinstance(found, Key):
        raise UsageError(f"{found.name} is one value, not a map: see `valk config set`.", cause="config")
    return found
