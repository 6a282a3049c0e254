"""Write docs/reference/cli.md from the real commands; with --check only say whether it is up to date."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from valkyrie.cli.main import root
from valkyrie.config.values import KEYS, MAPS

TARGET = Path(__file__).parent.parent / "docs" / "reference" / "cli.md"
HEAD = """# Command line

<!-- Written by scripts/generate_cli_reference.py from the real commands. Do not edit: run `make docs`. -->

`valkyrie` and `valk` are the same program. Every command takes `--help`, `--json` and `--no-color`.

## Output

On a terminal commands print panels and tables; long lists are paged with `h` previous, `l` next, `q` quit.
In a pipe there are no colours, no control codes and nothing is cut. With `--json` stdout holds JSON only,
one document a line, each with `schema_version` and `kind`; remarks, questions and errors go to stderr.
A failing command prints `Error: …` in one or two lines on stderr, or with `--json` one document
`{"schema_version": 1, "kind": "error", "command", "error_message", "reason"}` as the last line of stderr.
`VALKYRIE_DEBUG=1` shows the traceback instead.

## Exit codes

| code | means |
| --- | --- |
| 0 | done (for `run fetch` and `--connect`: shown; only `run wait` says how a run ended) |
| 1 | failed; `run wait`: not passed; `--dry-run`: would not start; `benchmark check`: open or broken |
| 2 | the words of the command are wrong: unknown command, flag, id or value |
| 124 | `run wait --timeout` passed before the run ended |
| 130 | interrupted with Ctrl+C; after `--connect` that detaches and the run goes on |
"""
ENVIRONMENT = """
## Environment

| variable | meaning |
| --- | --- |
| `VALKYRIE_HOME` | data folder; else `$XDG_DATA_HOME/valkyrie`, else `~/.local/share/valkyrie` |
| `VALKYRIE_CONFIG_PATH` | config file; else `valkyrie/valkyrie.yaml` in `$XDG_CONFIG_HOME` or `~/.config` |
| `VALKYRIE_DEBUG` | `1` shows tracebacks |
| `NO_COLOR` | no colours, when set to anything |
"""


def config_table() -> Iterator[str]:
    """Every config key, from the table the program itself uses."""
    yield "\n## Config keys\n"
    yield "Flag > environment > config file > default. Upper or lower case does not matter.\n"
    yield "| key | value | default | environment | what it is |\n| --- | --- | --- | --- | --- |"
    for key in KEYS:
        default = "" if key.default is None else f"`{key.default}`"
        env = f"`{key.env}`" if key.env else ""
        yield f"| `{key.name}` | {key.wanted} | {default} | {env} | {key.description} |"
    yield "\nThree keys hold an entry per name; commands of their own read and write them.\n"
    yield "| key | entries | commands | what it is |\n| --- | --- | --- | --- |"
    for entries in MAPS:
        yield f"| `{entries.name}` | {entries.shape} | `valk {entries.command}` | {entries.description} |"


def commands(command: click.Command, path: str, parent: click.Context | None = None) -> Iterator[str]:
    """A command's section, then those below it."""
    settings: dict[str, Any] = {"terminal_width": 96, "max_content_width": 96, **command.context_settings}
    context = click.Context(command, info_name=path.split()[-1], parent=parent, **settings)
    mark = "#" * max(2, len(path.split()))
    usage = re.sub(r"[ \t]+$", "", command.get_help(context), flags=re.MULTILINE)
    yield f"\n{mark} {path}\n\n```text\n{usage}\n```"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from commands(below, f"{path} {name}", context)


def reference() -> str:
    """The whole page."""
    return "\n".join([HEAD.rstrip(), ENVIRONMENT.rstrip(), *config_table(), *commands(root, "valk")]) + "\n"


def main() -> int:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 when the page is not up to date")
    check = parser.parse_args().check
    os.environ.pop("COLUMNS", None)
    page = reference()
    if not check:
        TARGET.parent.mkdir(parents=True, exist_ok=True)
        TARGET.write_text(page, encoding="utf-8")
        return 0
    if TARGET.exists() and TARGET.read_text(encoding="utf-8") == page:
        return 0
    sys.stderr.write(f"{TARGET} is not up to date: run scripts/generate_cli_reference.py\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
