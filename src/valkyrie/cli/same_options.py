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
)


def suggest_own(error: click.NoSuchOption) -> None:
    """Have the refusal of an option name the one that means the same here, and not one that sounds alike."""
    command = error.ctx.command if error.ctx else None
    here = {word for parameter in command.params for word in parameter.opts} if command else set()
    for words in _SAME:
        if error.option_name in words and (own := sorted(here.intersection(words))):
            error.possibilities = own
