"""The config file: known keys, read whole, changed one at a time. Environment > file > default."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from valkyrie.errors import UsageError, UserError
from valkyrie.settings import config_path
from valkyrie.suggest import did_you_mean

Value = str | int | float


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
    url: bool = False
    reserved: bool = False
    """May be set, but nothing in this version uses it."""

    def parse(self, raw: object) -> Value:
        """A value of this key's kind, or ValueError saying what is wanted."""
        if self.kind is str:
            return self._parse_text(raw)
        if isinstance(raw, bool) or not isinstance(raw, str | int | float):
            raise ValueError(f"{self.name} wants {self.wanted}, not {raw!r}")
        try:
            number = self.kind(raw)
        except ValueError:
            raise ValueError(f"{self.name} wants {self.wanted}, not {raw!r}") from None
        if number != number or (self.least is not None and float(number) < self.least):
            raise ValueError(f"{self.name} wants {self.wanted}, not {raw!r}")
        return number

    def _parse_text(self, raw: object) -> str:
        if not isinstance(raw, str) or not raw.strip() or not raw.isprintable():
            raise ValueError(f"{self.name} wants {self.wanted}, not {raw!r}")
        if self.url and not raw.startswith(("http://", "https://")):
            raise ValueError(f"{self.name} wants {self.wanted}, not {raw!r}")
        return raw.strip().rstrip("/") if self.url else raw.strip()

    @property
    def meaning(self) -> str:
        """What it is for, and whether that works yet."""
        return f"{self.description} Kept, not used yet." if self.reserved else self.description

    @property
    def wanted(self) -> str:
        """What a value must be, for messages and docs."""
        if self.kind is str:
            return "an http(s) URL" if self.url else "text"
        noun = "a whole number" if self.kind is int else "a number"
        return noun if self.least is None else f"{noun} of at least {self.least:g}"


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


@dataclass(frozen=True, slots=True)
class Effective:
    """The value in force, and where it comes from."""

    key: Key
    value: Value | None
    source: Literal["environment", "file", "default", "unset"]


def find_key(name: str) -> Key:
    """The key of that name, upper or lower case; an unknown one raises UsageError that says which is near."""
    known = {key.name.lower(): key for key in KEYS}
    if name.lower() in known:
        return known[name.lower()]
    names = [key.name for key in KEYS]
    hint = did_you_mean(name, names) or f" There are: {', '.join(names)}"
    raise UsageError(f"Unknown config key {name!r}.{hint}", cause="unknown_key")


def load(path: Path | None = None) -> dict[str, Value]:
    """What the file says, checked; an absent file says nothing."""
    path = path or config_path()
    text = _read(path)
    return {name: value for name, (value, _, _) in _parse(text, path).items()} if text.strip() else {}


def effective(name: str, path: Path | None = None) -> Effective:
    """The value of a key that is in force."""
    key = find_key(name)
    if key.env and (raw := os.environ.get(key.env)):
        try:
            return Effective(key, key.parse(raw), "environment")
        except ValueError as error:
            raise UserError(f"Environment variable {key.env}: {error}.", cause="config") from None
    held = load(path)
    if key.name in held:
        return Effective(key, held[key.name], "file")
    return Effective(key, key.default, "unset" if key.default is None else "default")


def set_value(name: str, raw: str, path: Path | None = None) -> Effective:
    """Write one key; the rest of the file, comments included, stays as it is."""
    key = find_key(name)
    try:
        value = key.parse(raw)
    except ValueError as error:
        raise UsageError(f"{error}.", cause="config") from None
    import yaml

    line = yaml.safe_dump({key.name: value}, allow_unicode=True, width=10_000)
    _edit(path or config_path(), key, line)
    return Effective(key, value, "file")


def remove(name: str, path: Path | None = None) -> bool:
    """Take one key out of the file; False when it was not in it."""
    key, path = find_key(name), path or config_path()
    if key.name not in load(path):
        return False
    _edit(path, key, "")
    return True


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not UTF-8 text"
        raise UserError(f"Config file {path}: {reason}.", cause="config") from error


def _parse(text: str, path: Path) -> dict[str, tuple[Value, int, int]]:
    """Key → value, first line, line after its last."""
    import yaml

    def wrong(message: str, mark: Any) -> UserError:
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        return UserError(f"Config file {where}: {message}.", cause="config")

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        held = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise wrong(
            f"not valid YAML: {getattr(error, 'problem', None) or 'it cannot be read'}",
            getattr(error, "problem_mark", None),
        ) from None
    if root is None:
        return {}
    if not isinstance(root, yaml.MappingNode):
        raise wrong("must be `key: value` lines", root.start_mark)
    found: dict[str, tuple[Value, int, int]] = {}
    for key_node, value_node in root.value:
        try:
            key = find_key(str(key_node.value))
            if key.name in found:
                raise ValueError(f"key {key.name!r} is given twice")
            value = key.parse(held[key_node.value])
        except (ValueError, UsageError) as error:
            raise wrong(str(error).rstrip("."), key_node.start_mark) from None
        end = value_node.end_mark
        found[key.name] = (value, key_node.start_mark.line, end.line + (1 if end.column else 0))
    return found


def _edit(path: Path, key: Key, line: str) -> None:
    """Replace the lines of a key, or append them."""
    target = path.resolve()
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with _locked(target.parent):
        text = _read(target)
        lines = text.splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        _, first, after = _parse(text, path).get(key.name, (None, len(lines), len(lines)))
        lines[first:after] = [line] if line else []
        changed = "".join(lines)
        _parse(changed, path)
        _replace(target, changed)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One writer at a time."""
    import fcntl

    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _replace(target: Path, text: str) -> None:
    """Whole or not at all, readable by its owner only."""
    beside = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(descriptor, 0o600)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        beside.replace(target)
    finally:
        beside.unlink(missing_ok=True)
