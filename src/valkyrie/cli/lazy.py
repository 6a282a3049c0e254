"""Groups that load a command only when it is called."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from valkyrie.cli.commands import Noun, Verb, is_hidden, meant, real_name

HELP_NAMES = {"help_option_names": ["-h", "--help"]}


class LazyGroup(click.Group):
    """Commands by a static table of names and summaries; `apart` are those under a heading of their own."""

    def __init__(
        self, table: Mapping[str, Verb | Noun], *, apart: tuple[str, tuple[str, ...]] = ("", ()), **attrs: Any
    ) -> None:
        super().__init__(no_args_is_help=True, context_settings=HELP_NAMES, **attrs)
        self.table = dict(table)
        self.apart = apart

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return [name for name, entry in self.table.items() if not is_hidden(entry)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        name = real_name(self.table, cmd_name)
        entry = self.table.get(name)
        if entry is None:
            return None
        if isinstance(entry, Noun):
            return LazyGroup(entry.verbs, name=name, help=entry.summary)
        module, _, attribute = entry.where.partition(":")
        command = getattr(import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if real_name(self.table, word) not in self.table and not word.startswith("-"):
            from valkyrie.suggest import did_you_mean

            shown = [name for name, entry in self.table.items() if not is_hidden(entry)]
            same = meant(self.table, word)
            hint = f" Did you mean {same!r}?" if same else did_you_mean(word, shown)
            hint = hint or f" There are: {', '.join(shown)}."
            raise click.UsageError(f"No such command '{word}'.{hint}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        heading, apart = self.apart
        shown = {name: entry for name, entry in self.table.items() if not is_hidden(entry)}
        parts = {"Commands": [name for name in shown if name not in apart], heading: list(apart)}
        for title, names in parts.items():
            if names:
                with formatter.section(title):
                    rows = [(", ".join(_words(name, shown[name])), shown[name].summary) for name in names]
                    formatter.write_dl(rows)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        words = [
            CompletionItem(word, help=entry.summary)
            for name, entry in self.table.items()
            if not is_hidden(entry)
            for word in _words(name, entry)
            if word.startswith(incomplete)
        ]
        return words + click.Command.shell_complete(self, ctx, incomplete)


def _words(name: str, entry: Verb | Noun) -> tuple[str, ...]:
    """What one may call it, as the help says."""
    return (name, *entry.aliases) if isinstance(entry, Noun) else (name,)
