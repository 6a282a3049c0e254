"""JSON that must have a value somewhere."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from valkyrie.grade.base import BuiltIn, clipped
from valkyrie.grade.calls import as_text
from valkyrie.grade.config import Config
from valkyrie.grade.json_found import JsonSource, NoJsonError
from valkyrie.grade.json_query import JsonQuery, QueryError
from valkyrie.grade.protocol import Given, GraderResult, Need


class JsonPathGrader(BuiltIn):
    """`json-path`: what `query` selects in the output, or in `file`, is there and as asked.

    A condition holds when any selected value fulfils it; with `all: true`, when every one does.
    """

    type = "json-path"

    def read(self, config: Config) -> None:
        self.source = JsonSource(config)
        if self.source.file:
            self.needs = frozenset({Need.WORKSPACE})  # type: ignore[misc]  # only this one looks at files
        try:
            self.query = JsonQuery(config.text("query", "path"))
        except QueryError as error:
            raise config.wrong(f"`query`: {error}.") from None
        self.exists = config.flag("exists", default=True)
        self.count = config.whole("count", low=0, high=10_000, default=None)
        self.every = config.flag("all")
        self.has_equals = "equals" in config.spec.config
        config.known.update(("equals", "contains"))
        self.equals = config.spec.config.get("equals")
        self.contains = config.value("contains")
        self.matches = config.pattern_list("matches")
        self.least = config.number("min", low=-math.inf, default=None)
        self.most = config.number("max", low=-math.inf, default=None)

    async def look(self, given: Given) -> GraderResult:
        try:
            values = self.query.find(self.source.load(given))
        except NoJsonError as error:
            return self.failed(str(error))
        shown = f"{self.query.text} selects {len(values)}: {clipped(_shown(values), 300)}"
        if not self.exists:
            return self.found(not values, shown)
        if self.count is not None and len(values) != self.count:
            return self.failed(f"{shown}; {self.count} expected")
        if not values and self.count is None:
            return self.failed(f"{self.query.text} selects nothing")
        holding = [not any(self._problems(value)) for value in values]
        if not holding or (all(holding) if self.every else any(holding)):
            return self.found(True, shown)
        return self.failed(
            f"{shown}; {next(problem for value in values for problem in self._problems(value))}"
        )

    def _problems(self, value: Any) -> Iterator[str]:
        if self.has_equals and not same(value, self.equals):
            yield f"it does not equal {_shown(self.equals)}"
        if self.contains is not None and not _contains(value, self.contains):
            yield f"it does not contain {_shown(self.contains)}"
        for pattern in self.matches:
            if pattern.search(as_text(value)) is None:
                yield f"it does not match /{pattern.source}/"
        if self.least is not None or self.most is not None:
            low = -math.inf if self.least is None else self.least
            high = math.inf if self.most is None else self.most
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                yield f"it is not a number from {low:g} to {high:g}"


def same(left: Any, right: Any) -> bool:
    """Equal as JSON: true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def _contains(value: Any, wanted: Any) -> bool:
    if isinstance(value, str):
        return isinstance(wanted, str) and wanted in value
    if isinstance(value, list):
        return any(same(one, wanted) for one in value)
    return isinstance(value, dict) and wanted in value


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
