"""Options that take several words: `--opt a b c`, `--opt a --opt b`, `--opt=a`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from valkyrie.cli.options import pairs


class Words(click.Option):
    """An option whose values go on up to the next flag; `--opt=value` gives just that one.

    `--` ends it too, so that arguments can follow: `--opt a b -- ARGUMENT`.
    """

    def __init__(self, *names: Any, **attrs: Any) -> None:
        super().__init__(*names, **{**attrs, "multiple": True})

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """The parser knows no such options: it is given `--opt` before each of the words."""
        super().add_to_parser(parser, ctx)
        parse = parser.parse_args

        def parse_spread(args: list[str]) -> Any:
            return parse(self._spread(args))

        parser.parse_args = parse_spread

    def _spread(self, args: Sequence[str]) -> list[str]:
        spread: list[str] = []
        opened: str | None = None
        for place, word in enumerate(args):
            if word == "--":
                return [*spread, *args[place:]]
            if opened and spread[-1] == opened and _flag(word):
                raise click.BadOptionUsage(opened, f"Option {opened!r} requires an argument.")
            if word in self.opts:
                opened = word
            elif opened is None or _flag(word):
                opened = None
            elif spread[-1] != opened:
                spread.append(opened)
            spread.append(word)
        return spread


def _flag(word: str) -> bool:
    """`-x` and `--long`; `-` alone is a word."""
    return len(word) > 1 and word.startswith("-")


def assignments(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> dict[str, str]:
    """Words `KEY=value` as a mapping, each split at its first `=`."""
    split: list[tuple[str, str]] = []
    for word in value:
        key, sign, content = word.partition("=")
        if not (key and sign):
            wanted = (param.metavar or "KEY=value").rstrip("…")
            raise click.BadParameter(f"{word!r} is not of the form {wanted}.", ctx=ctx, param=param)
        split.append((key, content))
    return pairs(ctx, param, tuple(split))
