"""The values a run is delivered, and how its agent reaches its model."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from benchmark_service.environment import redirection
from sandboxes.registry import PROVIDERS
from valkyrie import secrets
from valkyrie.agents import PreparedAgent
from valkyrie.agents.catalog import KeyGroup
from valkyrie.benchmarks.service import address
from valkyrie.benchmarks.service.address import HOSTED, check_headers
from valkyrie.config import values as config
from valkyrie.domain import Json
from valkyrie.errors import MissingSecretError, UsageError, UserError
from valkyrie.secrets.delivery import with_credentials, with_headers, with_hooks, with_settings
from valkyrie.targets import check_target
from valkyrie.views import RunRequest

if TYPE_CHECKING:
    from valkyrie.store.rows import RunRow
    from valkyrie.tenants import Organisation
    from valkyrie.tracker.checks import ProblemList


# Where what is handed over comes from: secrets, service headers, provider settings, at start and again.

CLOUD_VARIABLES = (
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
)
_SECRETS_PROVIDER_URL = "DAYTONA_API_URL"
_DEFAULTS = {_SECRETS_PROVIDER_URL: "https://app.daytona.io/api", "DAYTONA_TARGET": "us"}


def find_secrets(
    wanted: Mapping[str, str], organisation: Organisation
) -> tuple[Mapping[str, str], Sequence[str]]:
    """Values from the organisation's places, and what the user should know of where they were."""
    found = secrets.resolve(wanted, organisation.secret_sources())
    return found.secrets, found.notices


def allowed_variables(request: RunRequest, organisation: Organisation) -> dict[str, str]:
    """Return the variables that tasks may be given, with their values: those of --pass-env and of -s."""
    return supply_variables(request.pass_env, organisation) | _named_values(request.secrets, organisation)


def given_again(arguments: Json, organisation: Organisation) -> dict[str, str]:
    """Return the variables that the tasks of a stored run are given, from wherever they are now."""
    names, secrets = arguments.get("host_variables", []), arguments.get("secrets", {})
    named = {name: secrets[name] for name in names if name in secrets}
    return supply_variables(names, organisation) | _named_values(named, organisation)


def _named_values(named: Mapping[str, str], organisation: Organisation) -> dict[str, str]:
    """Return the values of variables that name a secret, of those that have one."""
    found = find_some(list(named.values()), organisation)
    return {variable: found[secret] for variable, secret in named.items() if secret in found}


def supply_variables(names: Iterable[str], organisation: Organisation) -> dict[str, str]:
    """Return the variables tasks name: of the user's environment, or the organisation's secrets."""
    here = organisation.variables()
    found = {name: here[name] for name in names if name in here}
    if not organisation.trusted:
        found.update(find_some([name for name in names if name not in found], organisation))
    return found


def aws_credentials(organisation: Organisation) -> Mapping[str, str]:
    """Return what the user's own environment says of AWS and an executor could not find by itself."""
    here = organisation.variables()
    if not here.get("AWS_ACCESS_KEY_ID") or organisation.aws() is None:
        return {}  # a profile, a role, the config file, or an organisation's own: executors find those
    return {name: here[name] for name in CLOUD_VARIABLES if here.get(name)}


def check_callers_url(url: str, allow_local: bool, what: str) -> None:
    """Raise TargetError for an address that a caller of a tracker may not lead it to."""
    check_target(url, allow_local, what=what, only_loopback=True, networks=config.tracker_networks())


def provider_settings(
    provider: str, organisation: Organisation, named: str | None = None, *, allow_local: bool = True
) -> Mapping[str, str]:
    """Return what must be known to reach a provider; nothing for those of this machine.

    Whoever asks from elsewhere may not lead us to an address that is not theirs; `allow_local`: to loopback.
    """
    entry = PROVIDERS.get(provider)
    if entry is None or not entry.settings:
        return {}
    secret = named or config.mapping("sandbox_providers").get(provider)
    held = (
        _in_one_secret(provider, str(secret), organisation)
        if secret
        else find_some(entry.settings, organisation)
    )
    if missing := _missing(entry.settings, held):
        raise MissingSecretError(
            f"Provider {provider!r} needs {', '.join(missing)}: export it, or keep a JSON secret and name it "
            f"with `valk config provider set {provider} SECRET`.",
            missing={name: name for name in missing},
        )
    found = {**_DEFAULTS, **held}
    if not organisation.trusted:
        what = f"{_SECRETS_PROVIDER_URL} of provider {provider!r}"
        check_callers_url(found[_SECRETS_PROVIDER_URL], allow_local, what)
    return found


def missing_settings(provider: str, organisation: Organisation) -> list[str]:
    """Return what a provider needs and neither a default nor the usual places give."""
    names = PROVIDERS[provider].settings
    return _missing(names, find_some(names, organisation))


def _missing(names: Sequence[str], held: Mapping[str, str]) -> list[str]:
    values = {**_DEFAULTS, **held}
    return [name for name in names if not values.get(name)]


def _in_one_secret(provider: str, secret: str, organisation: Organisation) -> Mapping[str, str]:
    values, _ = find_secrets({secret: secret}, organisation)
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


def find_some(names: Sequence[str], organisation: Organisation) -> Mapping[str, str]:
    """Return the values of those secrets that have one."""
    found: dict[str, str] = {}
    for name in names:
        try:
            found.update(find_secrets({name: name}, organisation)[0])
        except MissingSecretError:
            continue
    return found


def supply_again(
    row: RunRow,
    headers: Mapping[str, str],
    source: Json,
    organisation: Organisation,
    *,
    allow_local: bool = True,
) -> tuple[dict[str, str], list[str]]:
    """Everything a stored run must be handed, from wherever it is now; `headers` are given anew.

    `source` is where its benchmark is now.
    """
    arguments: Json = row.arguments
    values: dict[str, str] = supply_variables(arguments.get("host_variables", []), organisation)
    notices: list[str] = []
    if names := arguments.get("secrets", {}):
        found, said = find_secrets(names, organisation)
        values.update(found)
        notices += said
    values.update(with_headers(_headers_again(row, headers, source, organisation)))
    if arguments.get("provider_settings"):
        secret = arguments.get("provider_secret")
        found_settings = provider_settings(row.provider, organisation, secret, allow_local=allow_local)
        values.update(with_settings(found_settings))
    if hooks := arguments.get("hook_values", []):
        values.update(with_hooks(find_secrets({name: name for name in hooks}, organisation)[0]))
    if arguments.get("credentials"):
        values.update(with_credentials(aws_credentials(organisation)))
    return values, notices


def service_headers(row: RunRow, given: Mapping[str, str], organisation: Organisation) -> dict[str, str]:
    """Return the headers of a stored run's service, given anew or kept; UserError when one is neither."""
    return _headers_again(row, given, row.benchmark_source, organisation)


def _headers_again(
    row: RunRow, given: Mapping[str, str], source: Json, organisation: Organisation
) -> dict[str, str]:
    """Return the headers the run was started with: given again, or the credential kept for its service."""
    names: Sequence[str] = row.arguments.get("headers", [])
    check_headers(given)
    if given and source.get("kind") != "service":
        raise UserError(f"Run {row.id[:8]} is not on a benchmark service; -H means nothing to it.")
    found = dict(given)
    by_name = {name.lower() for name in found}
    ours = organisation.trusted or _is_named_here(source)
    credential = config.mapping("benchmark_auth").get(row.benchmark) if ours else None
    if credential and "authorization" not in by_name:
        found["Authorization"] = str(credential)
        by_name.add("authorization")
    if source.get("where") in HOSTED and _is_named_here(source):
        wanted = {name.lower() for name in names} - by_name
        found |= {
            name: value for name, value in organisation.caller_headers.items() if name.lower() in wanted
        }
        by_name |= {name.lower() for name in found}
    missing = [name for name in names if name.lower() not in by_name]
    if missing:
        again = " ".join(f"-H {name} VALUE" for name in missing)
        raise UserError(
            f"Header values are not stored; give those run {row.id[:8]} was started with again: {again}",
            cause="missing_secret",
        )
    return {next((name for name in names if name.lower() == key.lower()), key): found[key] for key in found}


def _is_named_here(source: Json) -> bool:
    """Return whether a server's own config leads to this service: what it keeps for it goes to no other."""
    name = str(source.get("name", ""))
    ways = (address.custom_service, address.registered_service, address.patterned_service)
    return any(found.url == source.get("url") for find in ways if (found := find(name)))


PROBE_S = 2.0
VENDOR_ADDRESSES = {
    "ANTHROPIC_API_KEY": "https://api.anthropic.com",
    "CLAUDE_CODE_OAUTH_TOKEN": "https://api.anthropic.com",
    "COPILOT_GITHUB_TOKEN": "https://api.githubcopilot.com",
    "GEMINI_API_KEY": "https://generativelanguage.googleapis.com",
    "GH_TOKEN": "https://api.githubcopilot.com",
    "GITHUB_TOKEN": "https://api.githubcopilot.com",
    "GOOGLE_API_KEY": "https://generativelanguage.googleapis.com",
    "OPENAI_API_KEY": "https://api.openai.com",
}
"""Where agents of the catalogue send each key unless they are told another address."""
_PROVIDER_KEY, _PROVIDER_URL = "DAYTONA_API_KEY", "DAYTONA_API_URL"
VARIABLE = re.compile("[A-Za-z_][A-Za-z0-9_]*")


def check_model_url(url: str | None, *, trusted: bool, allow_local: bool) -> None:
    """Raise UsageError for an address no model can be served at, or that the caller may not lead us to."""
    if url is None:
        return
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_ok = urlsplit(""), False
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_ok:
        raise UsageError(f"--model-url {url[:200]!r} is no address; write http://HOST:PORT or https://HOST.")
    if parts.username or parts.password:
        raise UsageError("--model-url must hold no password; give the key as a secret (-s VARIABLE NAME).")
    if not trusted:
        check_callers_url(url, allow_local, "The model's address (--model-url)")


def unanswered(url: str | None) -> list[str]:
    """A notice when nobody listens at the model's address; who starts it later is in time all the same."""
    if url is None:
        return []
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=PROBE_S).close()
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        return [
            f"nothing answers at --model-url {url} ({why}); agents find no model there until it is served."
        ]
    return []


def with_keys(
    agent: PreparedAgent,
    request: RunRequest,
    organisation: Organisation,
    problems: ProblemList,
) -> PreparedAgent:
    """Return the agent with those API keys among its secrets that have a value.

    Add a problem when it needs a key and there is none, a notice where it may do without.
    """
    _check_variables(request)
    wanted = dict(agent.secrets)
    notices = list(agent.notices)
    for group in agent.keys:
        if any(name in wanted for name in group.names):
            continue
        found = find_some(group.names, organisation)
        wanted.update({name: name for name in found})
        if found or request.model_url is not None:
            continue
        if group.required:
            problems.add(_no_key(agent, group))
        elif not wanted and not request.env_vars:
            notices.append(
                f"agent {agent.name} has no key for its model, only one that asks for none will answer; "
                f"`valk secret set {group.names[0]}` keeps one ({group.said} will do)."
            )
    return replace(agent, secrets=wanted, notices=notices)


def destinations(agent: PreparedAgent, request: RunRequest, provider: Mapping[str, str]) -> dict[str, str]:
    """Return where each secret goes: an address for a key of a model or provider, else who gets it."""
    found: dict[str, str] = {}
    for variable in sorted(agent.secrets):
        vendor = VENDOR_ADDRESSES.get(variable)
        if agent.frozen.get("kind") != "catalog" or vendor is None:
            found[variable] = f"agent {agent.name}"
            continue
        named = _renamed_address(variable, request.env_vars)
        found[variable] = request.model_url or named or vendor
    if _PROVIDER_KEY in provider:
        found[_PROVIDER_KEY] = provider.get(_PROVIDER_URL, request.provider)
    return found


def _renamed_address(variable: str, env_vars: Mapping[str, str]) -> str | None:
    vendor = variable.partition("_")[0]
    return next(
        (
            value
            for name, value in env_vars.items()
            if name.startswith(f"{vendor}_") and redirection(name) == "model address"
        ),
        None,
    )


def _check_variables(request: RunRequest) -> None:
    for name, value in request.env_vars.items():
        if not VARIABLE.fullmatch(name):
            raise UsageError(_no_variable(name))
        if "\0" in value:
            raise UsageError(f"environment variable {name}: a value cannot hold a NUL character.")


def _no_variable(name: str) -> str:
    """Return why a variable cannot have this name; what follows a `=` may be a secret and is not repeated."""
    said, equals, _ = name.partition("=")
    if equals and VARIABLE.fullmatch(said):
        return f"the environment variable {said} and its value are two words: --env {said} VALUE."
    return f"{said[:80]!r} is no name of an environment variable; letters, digits and _ make one."


def _no_key(agent: PreparedAgent, group: KeyGroup) -> MissingSecretError:
    first = group.names[0]
    return MissingSecretError(
        f"agent {agent.name} needs {group.said}: `export {first}=…`, or {first}=… in .env, or "
        f"`valk secret set {first}`.",
        missing={name: name for name in group.names},
    )
