"""Every key and map of the config file, and how their values are checked."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from valkyrie.errors import UsageError
from valkyrie.text import did_you_mean

Value = str | int | float
Entry = str | dict[str, str] | None
"""One entry of a map, as plain data."""

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
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
    """Return what a header can carry."""
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


def allowed_names(flags: Iterable[str], config: str | Iterable[str] | None = None) -> frozenset[str]:
    """Return the variables that may be given to what asks: of `--pass-env` and of the config file."""
    configured = config.split(",") if isinstance(config, str) else config or ()
    words = [word.strip() for word in (*flags, *configured)]
    for word in words:
        if word and not _VARIABLE.fullmatch(word):
            raise UsageError(f"--pass-env {word!r}: this is not the name of an environment variable.")
    return frozenset(filter(None, words))


def configured_names(text: str) -> str:
    """Return a list of variables with commas in one form; ValueError when one of them is no name."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if wrong := next((word for word in words if not _VARIABLE.fullmatch(word)), None):
        raise ValueError(f"{wrong!r} is not the name of an environment variable")
    return ",".join(dict.fromkeys(words))


# What can be configured: keys with one value, maps with an entry per name.

MODES = ("local", "self-hosted", "hosted")
REQUIRED = {mode: ("tracker_url", "api_key") for mode in MODES if mode != "local"}
"""Keys a mode cannot do without."""
NO_LOGS = "off"
"""As LOG_GROUP: logs stay out of CloudWatch."""

REGION = r"[a-z]{2}(-[a-z]+)+-\d+"
OLD_PROVIDER_SECRETS = ("SANDBOX_PROVIDER_SECRET_NAME", "DAYTONA_SECRET_NAME")
"""Keys that held the name of Daytona's secret in earlier files, the newer first."""

SERVICES, AUTH, SANDBOX_PROVIDERS = "custom_benchmark_services", "benchmark_auth", "sandbox_providers"
MAPS = (
    Map(
        SERVICES,
        "config service",
        "Benchmark services of your own: name and address.",
        "`name: url`, or `name: {url, grading}`",
        check_service,
    ),
    Map(
        AUTH,
        "config auth",
        "Credential sent as `Authorization` to the service of that name.",
        "`name: credential`",
        check_credential,
    ),
    Map(
        SANDBOX_PROVIDERS,
        "config provider",
        "Remote sandbox providers, and the secret that holds how to reach each.",
        "`provider: secret name`, or nothing for its environment variables",
        check_secret_name,
    ),
)
AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_HERE = (
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
        "docker_image",
        str,
        "Image of tasks that name none, with --provider docker; it must have python3.",
        "python:3.12",
        "VALKYRIE_DOCKER_IMAGE",
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
        check=check_pattern,
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
        "artifacts_folder",
        str,
        "Shared folder for agents and artifacts, where there is no S3_BUCKET.",
        env="VALKYRIE_ARTIFACTS_FOLDER",
        path=True,
        form="a folder's path",
    ),
    Key(
        "allowed_networks",
        str,
        "Private networks that sandboxes with network public may reach, as CIDRs with commas.",
        env="VALKYRIE_ALLOWED_NETWORKS",
        check=check_networks,
        form="networks such as 10.1.0.0/16, separated by commas",
    ),
    Key(
        "git_logins",
        str,
        "Hosts at which git may log in as you, or go without https, for a repository that a spec names.",
        env="VALKYRIE_GIT_LOGINS",
        check=matching(r"[A-Za-z0-9.-]+( *, *[A-Za-z0-9.-]+)*", "host names, separated by commas"),
        form="host names such as github.com, separated by commas",
        listed=True,
    ),
    Key(
        "pass_env",
        str,
        "Your variables that specs, tasks and agents may have when they ask for them by name.",
        check=configured_names,
        form="names of variables, separated by commas",
        listed=True,
    ),
    Key(
        "work_max_mb",
        int,
        "Megabytes of a trial's work that are kept for grading it again; 0 keeps none.",
        256,
        "VALKYRIE_WORK_MAX_MB",
        0,
    ),
    Key(
        "work_run_max_mb",
        int,
        "Megabytes of work that are kept of all trials of a run.",
        10_240,
        "VALKYRIE_WORK_RUN_MAX_MB",
        0,
    ),
    Key(
        "trajectory_max_mb",
        int,
        "Megabytes that are kept of an agent's own account of a trial; a larger one is cut at a step.",
        32,
        "VALKYRIE_TRAJECTORY_MAX_MB",
        1,
        1024,
    ),
)
_TRACKER = (
    Key(
        "mode",
        str,
        "How Valkyrie is used here; `valk config init` changes it.",
        "local",
        check=matching("|".join(MODES), "local, self-hosted or hosted"),
        form="local, self-hosted or hosted",
    ),
    Key(
        "tracker_url",
        str,
        "Tracker to talk to instead of this machine.",
        env="TRACKER_SERVICE_URL",
        url=True,
        check=check_url,
    ),
    Key(
        "tracker.allowed_networks",
        str,
        "Of a tracker: networks its callers may name services and webhooks in, besides public addresses.",
        env="VALKYRIE_TRACKER_ALLOWED_NETWORKS",
        check=check_networks,
        form="networks such as 10.1.0.0/16, separated by commas",
    ),
    Key(
        "api_key",
        str,
        "Key shown to the tracker.",
        env="VALKYRIE_API_KEY",
        check=check_credential,
        form="a key",
        secret=True,
    ),
)
_MESSAGES = (
    Key("webhook", str, "Name of the secret that holds the Slack webhook URL."),
    Key("webhook_url", str, "URL that is sent signed JSON messages about runs.", url=True),
    Key("webhook_key", str, "Name of the secret those messages are signed with."),
    Key(
        "allow_local_webhooks",
        bool,
        "Messages may be sent to loopback and link-local addresses, and callers name services there.",
        False,
        "VALKYRIE_ALLOW_LOCAL_WEBHOOKS",
    ),
)
_AWS = (
    Key(
        "S3_BUCKET",
        str,
        "S3 bucket for agents and artifacts.",
        env="S3_BUCKET",
        check=matching("[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]", "the name of a bucket, without s3://"),
        form="a bucket's name",
    ),
    Key(
        "AWS_DEFAULT_REGION",
        str,
        "AWS region.",
        env="AWS_DEFAULT_REGION",
        check=matching(REGION, "a region such as eu-central-1"),
        form="a region's name",
    ),
    Key(
        "LOG_GROUP",
        str,
        "CloudWatch log group prefix; `off` keeps logs out of CloudWatch. Used with S3_BUCKET.",
        "benchmarks",
        "LOG_GROUP",
        check=matching("[A-Za-z0-9._/#-]{1,400}", "a name of letters, digits and . _ / # -"),
        form="a log group's name, or off",
    ),
    Key("LOG_RETENTION_POLICY", int, "Days CloudWatch keeps logs.", 365, "LOG_RETENTION_POLICY", 1),
    *(
        Key(
            name,
            str,
            f"{what}; left out, AWS is reached as the AWS command line does.",
            env=name,
            check=check_credential,
            form=form,
            secret=True,
        )
        for name, what, form in (
            ("AWS_ACCESS_KEY_ID", "AWS access key", "an access key's id"),
            ("AWS_SECRET_ACCESS_KEY", "Its secret half", "an access key's secret"),
            ("AWS_SESSION_TOKEN", "Its session token, if it is temporary", "a session token"),
        )
    ),
)
KEYS: tuple[Key, ...] = (*_HERE, *_TRACKER, *_MESSAGES, *_AWS)


def find_setting(name: str) -> Key | Map:
    """The key or map of that name, upper or lower case; UsageError of an unknown one says which is near."""
    settings: list[Key | Map] = [*KEYS, *MAPS]
    known = {setting.name.lower(): setting for setting in settings}
    if name.lower() in known:
        return known[name.lower()]
    if name.upper() in OLD_PROVIDER_SECRETS:
        raise UsageError(f"{name} is now `valk config provider set daytona SECRET`.", cause="unknown_key")
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
