"""How an agent reaches its model: with a key of its vendor's, or at an address of the caller's."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from valkyrie.agents import PreparedAgent
from valkyrie.agents.catalog.entries import KeyGroup
from valkyrie.config.permissions import redirection
from valkyrie.errors import MissingSecretError, UsageError
from valkyrie.tracker.problems import ProblemList
from valkyrie.tracker.secrets import check_callers_url, find_some
from valkyrie.views import RunRequest

if TYPE_CHECKING:
    from valkyrie.tenants import Organisation

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
    """Return the address `--env` names for the vendor of this key."""
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
