"""Values in force: flag, then environment, then config file, then default."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from valkyrie.config.schema import (
    AUTH,
    AWS_KEYS,
    GRADINGS,
    KEYS,
    MAPS,
    MODES,
    NO_LOGS,
    REQUIRED,
    SANDBOX_PROVIDERS,
    SERVICES,
    Entry,
    Key,
    Map,
    Value,
    find_key,
    find_map,
    networks_in,
)
from valkyrie.errors import UsageError, UserError

if TYPE_CHECKING:
    from valkyrie.config.file import ConfigFile, Held

FETCH_PREFIX = "VALKYRIE_FETCH_"
"""Before names of variables that an executor hands on to npm, pip and uv and does not heed itself."""


def data_folder() -> Path:
    """State of embedded mode: `VALKYRIE_HOME`, else XDG's data folder."""
    if home := os.environ.get("VALKYRIE_HOME"):
        return Path(home).expanduser().absolute()
    base = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "valkyrie"


def config_path() -> Path:
    """The config file: `VALKYRIE_CONFIG_PATH`, else XDG's config folder."""
    if path := os.environ.get("VALKYRIE_CONFIG_PATH"):
        return Path(path).expanduser().absolute()
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "valkyrie" / "valkyrie.yaml"


def secrets_path() -> Path:
    """The secret store, beside the config file."""
    return config_path().parent / "secrets.json"


def database_url() -> str | None:
    """Return where the store is, when it is not in the data folder: `VALKYRIE_DATABASE_URL`."""
    return os.environ.get("VALKYRIE_DATABASE_URL") or None


@dataclass(frozen=True, slots=True)
class Effective:
    """The value in force, and where it comes from."""

    key: Key
    value: Value | None
    source: Literal["environment", "file", "default", "unset"]

    @property
    def shown(self) -> Value | None:
        """The value as it may be printed."""
        return masked(str(self.value)) if self.key.secret and self.value is not None else self.value


def load(path: Path | None = None) -> dict[str, Value]:
    """The keys the file sets, checked; an absent file says nothing."""
    return {name: held.value for name, held in _held(path).items() if not isinstance(held.value, dict)}


def _held(path: Path | None) -> Mapping[str, Held]:
    """Return what the file says; where there is none, nothing that reads YAML is loaded."""
    try:
        (path or config_path()).stat()
    except FileNotFoundError:
        return {}
    except OSError:
        pass  # the reader says what is wrong
    return _file(path).held()


def _file(path: Path | None) -> ConfigFile:
    from valkyrie.config.file import ConfigFile

    return ConfigFile(path or config_path())


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


def tracker_networks() -> tuple[str, ...]:
    """Networks that callers of a tracker may name addresses in, besides public ones."""
    return networks_in(str(effective("tracker.allowed_networks").value or ""))


def provider_options(provider: str) -> dict[str, str]:
    """Return what is set for a sandbox provider of this machine."""
    from sandboxes.registry import PROVIDERS

    entry = PROVIDERS.get(provider)
    values = {name: effective(name).value for name in (entry.options if entry else ())}
    return {name: str(value) for name, value in values.items() if value}


def set_value(name: str, raw: str, path: Path | None = None) -> Effective:
    """Write one key; the rest of the file, comments included, stays as it is."""
    key = find_key(name)
    value = _parsed(key, raw)
    _file(path).write_keys({key.name: value})
    return Effective(key, value, "file")


def change(values: Mapping[str, Value | None], path: Path | None = None) -> None:
    """Write some keys, or (None) take them out of the file: all of them or none."""
    found = {find_key(name): value for name, value in values.items()}
    parsed = {key.name: None if value is None else _parsed(key, value) for key, value in found.items()}
    _file(path).write_keys(parsed)


def _parsed(key: Key, raw: object) -> Value:
    try:
        return key.parse(raw)
    except ValueError as error:
        raise UsageError(f"{error}.", cause="config") from None


def remove(name: str, path: Path | None = None) -> bool:
    """Take one key out of the file; False when it was not in it. What the mode needs stays."""
    key, held = find_key(name), load(path)
    if key.name not in held:
        return False
    mode = str(held.get("mode", MODES[0]))
    if key.name in (*REQUIRED.get(mode, ()), *(("mode",) if mode in REQUIRED else ())):
        raise UsageError(
            f"{key.name} cannot be left out in mode {mode}; `valk config init --mode local` goes back to "
            "this machine, and `valk config set` changes it.",
            cause="config",
        )
    _file(path).write_keys({key.name: None})
    return True


def notices(path: Path | None = None) -> list[str]:
    """Return what of the file is read otherwise than it is written: names and forms of earlier programs."""
    return _file(path).notices()


def mapping(name: str, path: Path | None = None) -> dict[str, Any]:
    """The entries of a map, checked plain data; empty when the file has none."""
    held = _held(path).get(find_map(name).name)
    return dict(held.value) if held and isinstance(held.value, dict) else {}


def set_entry(name: str, key: str, value: Entry, path: Path | None = None) -> Entry:
    """Write one entry of a map, returned as it is kept; the rest of the file stays as it is."""
    found = find_map(name)
    try:
        entry = found.entry(key, value)
    except ValueError as error:
        raise UsageError(f"{error}.", cause="config") from None
    _file(path).write_entry(found.name, key, entry)
    return entry


def remove_entry(name: str, key: str, path: Path | None = None) -> bool:
    """Take one entry out of a map; False when it was not in it."""
    found = find_map(name)
    if key not in mapping(found.name, path):
        return False
    _file(path).write_entry(found.name, key, None, remove=True)
    return True


def registry(path: Path | None = None) -> dict[str, Any]:
    """The services the registry file (key `service_registry`) names, as custom_benchmark_services does."""
    file = effective("service_registry", path).value
    if not file:
        return {}
    from valkyrie.config.file import read_registry

    return dict(read_registry(Path(str(file))))


def masked(credential: str) -> str:
    """Enough of a credential to know it again: its first 4 characters, none of a short one."""
    return f"{credential[:4]}***" if len(credential) > 4 else "***"


__all__ = [
    "AUTH",
    "AWS_KEYS",
    "GRADINGS",
    "KEYS",
    "MAPS",
    "MODES",
    "NO_LOGS",
    "REQUIRED",
    "SANDBOX_PROVIDERS",
    "SERVICES",
    "Effective",
    "Entry",
    "Key",
    "Map",
    "Value",
    "change",
    "effective",
    "find_key",
    "load",
    "mapping",
    "masked",
    "notices",
    "provider_options",
    "registry",
    "remove",
    "remove_entry",
    "set_entry",
    "set_value",
]
