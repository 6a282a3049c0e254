"""Whom a run tells how it goes: the flags of `run start`, and what the config file says instead."""

from __future__ import annotations

from typing import Any

import click

from valkyrie.cli.options import Decorated


def telling_options(function: Decorated) -> Decorated:
    """`--interval`, `--webhook`, `--webhook-url`, `--webhook-key`, `--lambda`."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


_OPTIONS = (
    click.option(
        "--interval",
        "-i",
        "intervals",
        type=click.INT,
        multiple=True,
        metavar="N",
        help="Send a message at this percentage of ended trials: 5 to 100 in steps of 5, up to 3 times "
        "[default: 100].",
    ),
    click.option(
        "--webhook",
        metavar="SECRET",
        help="Send messages to Slack: name of the secret that holds its webhook URL "
        "[default: config webhook].",
    ),
    click.option(
        "--webhook-url",
        metavar="URL",
        help="Send signed JSON messages there [default: config webhook_url].",
    ),
    click.option(
        "--webhook-key",
        metavar="SECRET",
        help="Name of the secret those are signed with [default: config webhook_key].",
    ),
    click.option(
        "--lambda",
        "lambda_function",
        metavar="NAME",
        help="AWS Lambda function to call when the run has ended.",
    ),
)


def with_configured(
    *, intervals: tuple[int, ...], webhook: str | None, webhook_url: str | None, webhook_key: str | None
) -> dict[str, Any]:
    """What was given, and what the config file says where nothing was."""
    from valkyrie.config import effective

    def configured(name: str) -> str | None:
        value = effective(name).value
        return None if value is None else str(value)

    url = webhook_url or configured("webhook_url")
    return {
        "intervals": intervals,
        "webhook": webhook or configured("webhook"),
        "webhook_url": url,
        # A key alone signs nothing: configured without an address it is left for later.
        "webhook_key": webhook_key or (configured("webhook_key") if url else None),
    }
