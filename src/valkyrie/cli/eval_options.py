"""Values on the command lines of eval commands."""

from __future__ import annotations

from typing import Any

import click


class Duration(click.ParamType[Any]):
    """A number with its unit, as seconds: 500ms, 30s, 5m, 2h."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        from valkyrie.errors import UsageError
        from valkyrie.specs.durations import parse_duration

        if isinstance(value, float):
            return value
        try:
            return parse_duration(str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context | None = None) -> str:
        _ = param, ctx
        return "DURATION"
