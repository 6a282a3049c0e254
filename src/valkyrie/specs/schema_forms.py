"""Small pieces JSON Schemas are put together from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from valkyrie.nouns import Json

VARIABLE = {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*\}"}
"""`${NAME}`, which may stand for any value."""


DURATION = (
    r"^\s*(([0-9]+(\.[0-9]+)?|\.[0-9]+)\s*(ms|s|m|h)"
    r"|([0-9]+h)?([0-9]+m)?([0-9]+(\.[0-9]+)?s)?([0-9]+ms)?)\s*$"
)
SCALARS: Json = {
    # Authors write `version: 1.0` and `ref: 1234567`; the reader takes them as they are spelled.
    "text": {"type": ["string", "number", "boolean"]},
    "texts": {"anyOf": [{"$ref": "#/$defs/text"}, {"type": "array", "items": {"$ref": "#/$defs/text"}}]},
    "whole": {"anyOf": [{"type": "integer", "minimum": 0}, VARIABLE]},
    "number": {"anyOf": [{"type": "number"}, VARIABLE]},
    "flag": {"anyOf": [{"type": "boolean"}, VARIABLE]},
    "duration": {"anyOf": [{"type": "string", "pattern": DURATION}, VARIABLE]},
}
"""Forms of single values, by their names in `$defs`."""


def said(form: Mapping[str, Any], description: str, **more: Any) -> Json:
    """A form with words for people."""
    return {"description": description, **form, **more}


def text(description: str = "") -> Json:
    return said(ref("text"), description) if description else ref("text")


def texts(description: str) -> Json:
    return said(ref("texts"), description)


def choice(description: str, *values: str) -> Json:
    return {"description": description, "type": "string", "enum": list(values)}


def whole(description: str, least: int = 0) -> Json:
    return said(ref("whole"), description, **({"minimum": least} if least else {}))


def number(description: str, least: float = 0, most: float | None = None) -> Json:
    bounds: Json = {"minimum": least} | ({} if most is None else {"maximum": most})
    return said(ref("number"), description, **bounds)


def flag(description: str) -> Json:
    return said(ref("flag"), description)


def duration(description: str) -> Json:
    return said(ref("duration"), f"{description} With its unit: ms, s, m or h.")


def listing(description: str, items: Json, least: int = 0) -> Json:
    form: Json = {"description": description, "type": ["array", "null"], "items": items}
    return form | ({"type": "array", "minItems": least} if least else {})


def mapping(description: str, values: Json) -> Json:
    return {"description": description, "type": ["object", "null"], "additionalProperties": values}


def record(description: str, properties: Mapping[str, Json], *required: str, closed: bool = True) -> Json:
    """A map with these keys."""
    form: Json = {"description": description, "type": "object", "properties": dict(properties)}
    if required:
        form["required"] = list(required)
    if closed:
        form["additionalProperties"] = False
    return form


def or_nothing(form: Json) -> Json:
    """The same, or the key without a value."""
    return {"description": form.get("description", ""), "anyOf": [form, {"type": "null"}]}


def ref(name: str) -> Json:
    return {"$ref": f"#/$defs/{name}"}
