"""Sums of money on the command line."""

from __future__ import annotations

from typing import Any

import click

from valkyrie.cli.options import Decorated, Number


class Dollars(Number):
    """A sum above nothing, `$` or not; there is no endless one."""

    name = "US dollars"

    def __init__(self) -> None:
        super().__init__(min=0, min_open=True)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        amount = super().convert(value.removeprefix("$") if isinstance(value, str) else value, param, ctx)
        if amount == float("inf"):
            self.fail("leave --max-cost out for no limit.", param, ctx)
        return amount


def max_cost_option(function: Decorated) -> Decorated:
    """`--max-cost USD`."""
    return click.option(
        "--max-cost",
        type=Dollars(),
        metavar="USD",
        help="Begin no further trial once agents have reported this much, in US dollars.",
    )(function)
