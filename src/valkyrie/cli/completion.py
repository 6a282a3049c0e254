"""`completion`."""

from __future__ import annotations

import sys

import click

from valkyrie.cli.main import root
from valkyrie.cli.options import verb
from valkyrie.cli.output import Output


@verb(
    "completion",
    examples='eval "$(valk completion bash)"                                  # in ~/.bashrc\n'
    'eval "$(valk completion zsh)"                                   # in ~/.zshrc\n'
    "valk completion fish > ~/.config/fish/completions/valk.fish",
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(output: Output, *, shell: str) -> None:
    """Print the shell completion script.

    It completes `valk` and `valkyrie`: commands, flags, run ids, config keys.
    """
    script = "\n".join(_script(shell, program) for program in ("valk", "valkyrie"))
    output.emit("completion", shell=shell, script=script)
    if not output.json:
        sys.stdout.write(script)


def _script(shell: str, program: str) -> str:
    from click.shell_completion import get_completion_class

    found = get_completion_class(shell)
    assert found is not None
    completer = found(root, {}, program, f"_{program.upper()}_COMPLETE")
    return completer.source_template % completer.source_vars()
