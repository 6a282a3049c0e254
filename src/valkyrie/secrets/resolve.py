"""Look up every secret a run needs, before it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from valkyrie.errors import MissingSecretError
from valkyrie.permissions import is_redirecting
from valkyrie.secrets.parts import parts_of, split_name
from valkyrie.secrets.protocol import SecretSource
from valkyrie.secrets.sources import DotenvSource
from valkyrie.secrets.values import Secrets


@dataclass(frozen=True, slots=True)
class Resolution:
    """All values, and what a person should know about where they came from."""

    secrets: Secrets
    notices: tuple[str, ...] = ()


def resolve(wanted: Mapping[str, str], sources: Sequence[SecretSource]) -> Resolution:
    """Find a value for each (environment variable → secret name).

    Sources are asked in order for the secret's name; only when none has it, those keyed by environment
    variables are asked for the variable. Of a secret that is a JSON object, `name#key` is one value, and
    `name` the value of the variable's name, if it has one. All missing ones are named in one
    MissingSecretError.
    """
    values: dict[str, str] = {}
    notices: list[str] = []
    missing: list[tuple[str, str]] = []
    for variable, name in wanted.items():
        asked = _sources_for(variable, sources)
        found = [
            (source, value) for source in asked if (value := _look_up(source, name, variable)) is not None
        ] or [(source, value) for source in asked if source.by_variable and (value := source.get(variable))]
        if not found:
            missing.append((variable, name))
            continue
        (winner, values[variable]), *others = found
        if variable != name and not winner.by_variable and (keys := parts_of(values[variable])):
            notices.append(
                f"{variable}: all of {name} ({winner.place}), a JSON object without a key {variable}; "
                f"one value of it is {name}#{next(iter(keys))}."
            )
        for other, value in others:
            if not other.by_variable and value != values[variable]:
                notices.append(
                    f"{variable}: taken from {winner.place}; {other.place} has another value for {name}."
                )
    if missing:
        raise MissingSecretError(_explain(missing, sources), missing=dict(missing))
    return Resolution(Secrets(values), tuple(notices))


def _sources_for(variable: str, sources: Sequence[SecretSource]) -> Sequence[SecretSource]:
    """Return where a variable may come from: one that redirects never from a file of the folder."""
    if not is_redirecting(variable):
        return sources
    return [source for source in sources if not isinstance(source, DotenvSource)]


def _look_up(source: SecretSource, name: str, variable: str) -> str | None:
    value = source.get(name)
    if value is not None:
        return (parts_of(value) or {}).get(variable) or value
    secret, key = split_name(name)
    held = source.get(secret) if key else None
    return (parts_of(held) or {}).get(key or "") or None if held else None


def _explain(missing: Sequence[tuple[str, str]], sources: Sequence[SecretSource]) -> str:
    lines = [f"{len(missing)} secret{'s' * (len(missing) > 1)} without a value:"]
    places = dict.fromkeys(source.place for source in sources if source.remote)
    for variable, name in missing:
        export = name if name.isidentifier() else variable
        filled = "" if variable == name else f" (fills {variable})"
        lines.append(
            f"  {name}{filled}: `export {export}=…`, or {export}=… in .env, or `valk secret set {name}`"
            + "".join(f", or {name} in {place}" for place in places)
        )
    lines += [f"  note: {problem}" for source in sources for problem in source.problems]
    return "\n".join(lines)
