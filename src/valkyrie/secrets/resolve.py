"""Look up every secret a run needs, before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from valkyrie.errors import MissingSecretError
from valkyrie.secrets.protocol import SecretSource
from valkyrie.secrets.values import Secrets


@dataclass(frozen=True, slots=True)
class Resolution:
    """All values, and what a person should know about where they came from."""

    secrets: Secrets
    notices: tuple[str, ...] = ()


def resolve(wanted: Mapping[str, str], sources: Sequence[SecretSource]) -> Resolution:
    """Find a value for each (environment variable → secret name).

    Sources are asked in order for the secret's name; only when none has it, those keyed by environment
    variables are asked for the variable. All missing ones are named in one MissingSecretError.
    """
    values: dict[str, str] = {}
    notices: list[str] = []
    missing: list[tuple[str, str]] = []
    for variable, name in wanted.items():
        found = _look_up(sources, name) or _look_up([one for one in sources if one.by_variable], variable)
        if not found:
            missing.append((variable, name))
            continue
        (winner, values[variable]), *others = found
        for other, value in others:
            if not other.by_variable and value != values[variable]:
                notices.append(
                    f"{variable}: taken from {winner.place}; {other.place} has another value for {name}."
                )
    if missing:
        raise MissingSecretError(_explain(missing, sources))
    return Resolution(Secrets(values), tuple(notices))


def _look_up(sources: Sequence[SecretSource], name: str) -> list[tuple[SecretSource, str]]:
    return [(source, value) for source in sources if (value := source.get(name)) is not None]


def _explain(missing: Sequence[tuple[str, str]], sources: Sequence[SecretSource]) -> str:
    lines = [f"{len(missing)} secret{'s' * (len(missing) > 1)} without a value:"]
    for variable, name in missing:
        export = name if name.isidentifier() else variable
        filled = "" if variable == name else f" (fills {variable})"
        lines.append(
            f"  {name}{filled}: `export {export}=…`, or {export}=… in .env, or `valk secret set {name}`"
        )
    lines += [f"  note: {problem}" for source in sources for problem in source.problems]
    return "\n".join(lines)
