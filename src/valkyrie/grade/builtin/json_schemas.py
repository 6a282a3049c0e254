"""JSON that must have a shape."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from valkyrie.errors import GraderError
from valkyrie.grade.base import BuiltIn
from valkyrie.grade.config import Config
from valkyrie.grade.json_found import JsonSource, NoJsonError
from valkyrie.grade.protocol import Given, GraderResult, Need

_SHOWN = 5
_MOST_BACKTRACKING = 200_000


class JsonSchemaGrader(BuiltIn):
    """`json-schema`: the output, or `file`, fits `schema` (a schema, or the path of one)."""

    type = "json-schema"

    def read(self, config: Config) -> None:
        self.source = JsonSource(config)
        if self.source.file:
            self.needs = frozenset({Need.WORKSPACE})  # type: ignore[misc]  # only this one looks at files
        self.validator = _validator(config, _schema(config))

    async def look(self, given: Given) -> GraderResult:
        try:
            document = self.source.load(given)
        except NoJsonError as error:
            return self.failed(str(error))
        try:
            errors = list(_first(self.validator.iter_errors(document)))
        except ValueError as error:
            raise GraderError(f"the document cannot be validated: {error}") from error
        if not errors:
            return self.found(True, "it fits the schema")
        told = [f"{_place(error.instance_path)}: {error.message}" for error in errors[:_SHOWN]]
        return self.failed("; ".join([*told, "…"] if len(errors) > _SHOWN else told))


def _first(errors: Any) -> Any:
    for _, error in zip(range(_SHOWN + 1), errors, strict=False):
        yield error


def _schema(config: Config) -> Any:
    said = config.value("schema")
    if isinstance(said, Mapping | bool):
        return said
    if not isinstance(said, str) or not said:
        raise config.wrong("`schema` is missing: give a schema, or the path of a JSON file with one.")
    path = config.beside_spec(said)
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise config.wrong(f"`schema`: {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise config.wrong(f"`schema`: {path} is not JSON: {error}.") from None


def _validator(config: Config, schema: Any) -> Any:
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(
            schema,
            retriever=_nothing_elsewhere,
            pattern_options=jsonschema_rs.FancyRegexOptions(backtrack_limit=_MOST_BACKTRACKING),
        )
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        raise config.wrong(f"`schema` is no JSON Schema: {str(error).splitlines()[0]}.") from None


def _nothing_elsewhere(uri: str) -> Any:
    raise ValueError(f"{uri} is elsewhere; a schema holds all it refers to")


def _place(path: Any) -> str:
    return "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
