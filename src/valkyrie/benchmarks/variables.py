"""The environment a task declares: `${VAR}` and `${VAR:-default}` in it, and what of it no agent is given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from valkyrie.errors import UserError
from valkyrie.permissions import redirection

_HARMLESS = re.compile(
    r"PYTHON(UNBUFFERED|DONTWRITEBYTECODE|HASHSEED|IOENCODING|UTF8|FAULTHANDLER|WARNINGS)"
    r"|GIT_(AUTHOR|COMMITTER)_(NAME|EMAIL|DATE)|GIT_TERMINAL_PROMPT"
    r"|DOTNET_(CLI_TELEMETRY_OPTOUT|NOLOGO|SKIP_FIRST_TIME_EXPERIENCE)"
)
"""Of families that redirect: settings that change neither where keys go nor which code runs."""
_AGENT_SETTING = re.compile(
    r"(ANTHROPIC|CLAUDE|CODEX|COPILOT|GEMINI|GOOSE|LITELLM|MSWEA|OPENAI|OPENCODE|OPENROUTER|QWEN)_(?!API_KEY$)\w+"
)
"""Settings of agents: which model they ask, on whose account. A key for the task's programs is none."""
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


class MissingVariablesError(UserError):
    """A task asks for variables of the user's that it was not given."""

    def __init__(self, where: str, names: Sequence[str]) -> None:
        flags = " ".join(f"--pass-env {name}" for name in names)
        super().__init__(
            f"{where} asks for {', '.join(names)} from your environment, and was not given it. {flags} gives "
            f"it where it is set; a default in the task does without: ${{{names[0]}:-value}}",
            cause="missing_variable",
        )
        self.where = where
        self.names = tuple(names)


def withheld(name: str) -> str | None:
    """Return what a variable of this name could redirect for an agent, or None for one an agent may be given.

    An agent has keys, and a task is written by somebody else: what the task sets must not decide which
    address, account, library or interpreter the agent uses.
    """
    if _HARMLESS.fullmatch(name):
        return None
    if kind := redirection(name):
        return kind
    return "agent setting" if _AGENT_SETTING.fullmatch(name.upper()) else None


def leads_elsewhere(name: str) -> bool:
    """Whether a variable of an image decides which model an agent asks, and where."""
    return withheld(name) in ("model address", "agent setting")


def given_to_agent(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a task's environment that its agent is given too."""
    return {name: value for name, value in env.items() if withheld(name) is None}


def said_of_withheld(env: Mapping[str, str]) -> str | None:
    """Return one line about the variables of a task that its agent is not given, or None."""
    found = [f"{name} ({kind})" for name in sorted(env) if (kind := withheld(name))]
    if not found:
        return None
    return (
        f"the task sets {', '.join(found)}, which set-up and tests are given and the agent is not; "
        "--env (of a job: --env-vars) gives one to the agent"
    )


def referenced(env: Mapping[str, str]) -> list[str]:
    """Names of the host variables that `env` asks for, in order of appearance."""
    found = (match[1] for value in env.values() for match in _REFERENCE.finditer(value))
    return list(dict.fromkeys(found))


def missing(env: Mapping[str, str], host: Mapping[str, str]) -> list[str]:
    """Names of the host variables without which `expand` would not do."""
    found = (match for value in env.values() for match in _REFERENCE.finditer(value))
    return list(dict.fromkeys(match[1] for match in found if match[2] is None and match[1] not in host))


def expand(env: Mapping[str, str], host: Mapping[str, str], where: str) -> dict[str, str]:
    """`env` with its references filled from `host`, the variables of the user's that tasks may be given.

    What comes out is visible to whatever runs in the sandbox, the agent included. A default stands in
    for a variable that is unset or empty, as in a shell.
    """
    absent: list[str] = []

    def fill(match: re.Match[str]) -> str:
        name, default = match[1], match[2]
        value = host.get(name)
        if value or (value is not None and default is None):
            return value
        if default is None:
            absent.append(name)
            return ""
        return default

    filled = {key: _REFERENCE.sub(fill, value) for key, value in env.items()}
    if absent:
        raise MissingVariablesError(where, list(dict.fromkeys(absent)))
    return filled
