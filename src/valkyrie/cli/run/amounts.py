"""Limits of a run on the command line: what it may cost, and how many trials may fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from valkyrie.cli.options import Decorated, Number, WholeNumber


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


def abort_option(default: int | None) -> Callable[[Decorated], Decorated]:
    """`--abort-after N`."""
    return click.option(
        "--abort-after",
        type=WholeNumber(0, 1_000_000),
        metavar="N",
        default=default,
        show_default=default is not None,
        help="Stop by itself when N trials (or 5 % of them, if that is more) ended, all in errors that "
        "trying again does not mend; 0 is never.",
    )
