"""What is wrong with a contract, in words its author can act on."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from valkyrie.agents.parameters import TYPES
from valkyrie.agents.strict_yaml import Document, KeyPath
from valkyrie.suggest import did_you_mean

_LATER = ("conversation", "finalize_cmd")


def describe(
    error: ValidationError, document: Document, where: str, model_of: Callable[[KeyPath], type[BaseModel]]
) -> str:
    """One line per problem: file, line, key and the way out. `model_of` says whose key a path is."""
    problems: list[str] = []
    for item in error.errors(include_url=False):
        path = _without_union_arms(item["loc"])
        line = f"{where}:{document.line(path)}: {_dotted(path)}{_explain(item, path, model_of)}"
        if line not in problems:
            problems.append(line)
    return "\n".join(problems)


def _without_union_arms(path: KeyPath) -> KeyPath:
    """Pydantic names the tried types of a union after the index; people do not write those."""
    return path[:4] if path[2:3] == ("choices",) else path


def _dotted(path: KeyPath) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return f"{text.lstrip('.')}: " if text else ""


_WANTED = {
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "bool_type": "true or false",
}


def _explain(item: ErrorDetails, path: KeyPath, model_of: Callable[[KeyPath], type[BaseModel]]) -> str:
    kind, given = item["type"], item["input"]
    if kind == "missing":
        return "missing; add it."
    if kind == "extra_forbidden":
        key = str(path[-1])
        if len(path) == 1 and key in _LATER:
            return "not supported by this version; remove it."
        known = list(model_of(path).model_fields)
        return f"unknown key.{did_you_mean(key, known)} Known: {', '.join(known)}."
    if kind in _WANTED:
        quote = " Put it in quotes or a block (`|`)." if kind == "string_type" and given is not None else ""
        return f"must be {_WANTED[kind]}, is {_named(given)}.{quote}"
    if kind == "literal_error":
        return f"must be one of {', '.join(TYPES)}, is {given!r}."
    return item["msg"].removeprefix("Value error, ").rstrip(".") + "."


def _named(given: object) -> str:
    if given is None:
        return "empty"
    if isinstance(given, dict | list):
        return "keys and values" if isinstance(given, dict) else "a list"
    return f"{str(given).lower() if isinstance(given, bool) else given!r}"
