"""Options that commands call differently, each by the name its users know from elsewhere."""

from __future__ import annotations

import click

_SAME = (
    ("--trials", "--n-attempts", "--runs"),
    ("--concurrency", "--n-concurrent-trials", "--workers"),
    ("--agent", "--executor"),
    ("--provider", "--sandbox"),
    ("--secret", "--secrets"),
    ("--env", "--env-vars"),
    ("--label", "--job-name", "--name"),
    ("--connect", "--follow"),
    ("--pass-env", "--allow-env", "--env-passthrough"),
    ("--allow-path", "--allow-dir", "--allow-read"),
)


def called_here(error: click.NoSuchOption) -> click.UsageError:
    """The same refusal, naming the option that means the same here in place of one that sounds alike."""
    command = error.ctx.command if error.ctx else None
    here = {word for parameter in command.params for word in parameter.opts} if command else set()
    for words in _SAME:
        if error.option_name in words and (own := sorted(here.intersection(words))):
            return click.UsageError(f"{error.message} Did you mean {own[0]!r}?", ctx=error.ctx)
    return error
