"""Where what is handed over comes from: secrets, service headers, provider settings, at start and again."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sandboxes.registry import PROVIDERS
from valkyrie import config, secrets
from valkyrie.errors import MissingSecretError, UserError
from valkyrie.handed import with_headers, with_settings
from valkyrie.nouns import Json
from valkyrie.settings import secrets_path

_DEFAULTS = {"DAYTONA_API_URL": "https://app.daytona.io/api", "DAYTONA_TARGET": "us"}


def find_secrets(wanted: Mapping[str, str]) -> tuple[Mapping[str, str], Sequence[str]]:
    """Values from environment, .env and secret store, and what the user should know of where they were."""
    found = secrets.resolve(wanted, secrets.default_sources(secrets.SecretStore(secrets_path())))
    return found.secrets, found.notices


def provider_settings(provider: str) -> Mapping[str, str]:
    """What must be known to reach a provider; nothing for those of this machine."""
    entry = PROVIDERS.get(provider)
    if entry is None or not entry.settings:
        return {}
    secret = config.mapping("sandbox_providers").get(provider)
    held = _in_one_secret(provider, str(secret)) if secret else _one_by_one(entry.settings)
    if missing := missing_settings(provider, held):
        raise MissingSecretError(
            f"Provider {provider!r} needs {', '.join(missing)}: export it, or keep a JSON secret and name it "
            f"with `valk config provider set {provider} SECRET`."
        )
    return {**_DEFAULTS, **held}


def missing_settings(provider: str, held: Mapping[str, str] | None = None) -> list[str]:
    """What a provider needs and nothing gives: no default, and not `held` or else the usual places."""
    names = PROVIDERS[provider].settings
    values = {**_DEFAULTS, **(_one_by_one(names) if held is None else held)}
    return [name for name in names if not values.get(name)]


def _in_one_secret(provider: str, secret: str) -> Mapping[str, str]:
    values, _ = find_secrets({secret: secret})
    try:
        held = json.loads(values[secret])
    except ValueError:
        held = None
    if not isinstance(held, dict) or not all(isinstance(value, str) for value in held.values()):
        raise UserError(
            f"Secret {secret!r} of provider {provider!r} is not a JSON object of texts such as "
            '{"DAYTONA_API_KEY": "…", "DAYTONA_API_URL": "…", "DAYTONA_TARGET": "…"}.',
            cause="missing_secret",
        )
    return held


def _one_by_one(names: Sequence[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for name in names:
        try:
            found.update(find_secrets({name: name})[0])
        except MissingSecretError:
            continue
    return found


def supply_again(row: Any, headers: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Everything a stored run must be handed, from wherever it is now; `headers` are given anew."""
    arguments: Json = row.arguments
    variables: Sequence[str] = arguments.get("host_variables", [])
    values: dict[str, str] = {}
    notices: list[str] = []
    names = {**arguments.get("secrets", {}), **{name: name for name in variables}}
    if names:
        found, said = find_secrets(names)
        values.update(found)
        notices += said
    values.update(with_headers(_headers_again(row, headers)))
    if arguments.get("provider_settings"):
        values.update(with_settings(provider_settings(row.provider)))
    return values, notices


def _headers_again(row: Any, given: Mapping[str, str]) -> dict[str, str]:
    """The headers the run was started with: given again, or the credential kept for its service."""
    names: Sequence[str] = row.arguments.get("headers", [])
    if given and row.benchmark_source.get("kind") != "service":
        raise UserError(f"Run {row.id[:8]} is not on a benchmark service; -H means nothing to it.")
    found = dict(given)
    by_name = {name.lower() for name in found}
    credential = config.mapping("benchmark_auth").get(row.benchmark)
    if credential and "authorization" not in by_name:
        found["Authorization"] = str(credential)
        by_name.add("authorization")
    missing = [name for name in names if name.lower() not in by_name]
    if missing:
        again = " ".join(f"-H {name} VALUE" for name in missing)
        raise UserError(
            f"Header values are not stored; give those run {row.id[:8]} was started with again: {again}",
            cause="missing_secret",
        )
    return {next((name for name in names if name.lower() == key.lower()), key): found[key] for key in found}
