"""`serve`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from valkyrie.cli.options import Number, WholeNumber, verb
from valkyrie.cli.output import Output
from valkyrie.report.formats import safe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from valkyrie.api.serving import ServeOptions
    from valkyrie.tracker.app import TrackerApp

LEVELS = ["debug", "info", "warning", "error"]


@verb(
    "serve",
    examples="valkyrie serve\n"
    "valkyrie serve --host 0.0.0.0 --port 8000\n"
    "valkyrie serve --no-executor --drain-timeout 300\n"
    "valkyrie serve --no-auth --port 0 --json",
)
@click.option(
    "--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Address to listen on."
)
@click.option(
    "--port",
    type=WholeNumber(min=0, max=65535),
    metavar="N",
    default=8000,
    show_default=True,
    help="Port to listen on; 0 is any free one.",
)
@click.option(
    "--no-executor",
    is_flag=True,
    help="Run no trials here; `valkyrie executor` does, on this or other hosts.",
)
@click.option("--no-auth", is_flag=True, help="Ask nobody for a key; on a loopback address only.")
@click.option(
    "--drain-timeout",
    type=Number(min=0),
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="How long trials under way may take when the server is told to end; then they go back to the queue.",
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS),
    default="info",
    show_default=True,
    help="What is logged on stderr.",
)
def serve(
    output: Output,
    *,
    host: str,
    port: int,
    no_executor: bool,
    no_auth: bool,
    drain_timeout: float,
    log_level: str,
) -> None:
    """Serve the tracker to a team over HTTP.

    Whoever sets `tracker_url` (or TRACKER_SERVICE_URL) to its address and has a key uses the same commands as
    without a server. State is in the database VALKYRIE_DATABASE_URL names, else in a file in the data folder.
    SIGTERM and Ctrl+C end it in order; a second one means now.
    """
    import asyncio

    from valkyrie.api.serving import ServeOptions
    from valkyrie.api.serving import serve as serve_until_told
    from valkyrie.api.settings import settings_for

    options = ServeOptions(settings_for(host, auth=not no_auth), port, not no_executor, drain_timeout)
    _log_to_stderr(log_level)
    tracker_app = _open_app(options)
    try:
        warnings = _warnings(tracker_app, options)
        asyncio.run(
            serve_until_told(
                tracker_app, options, lambda url: _show(url, tracker_app, options, warnings, output)
            )
        )
    finally:
        tracker_app.close()
    output.emit("tracker_ended")


def _open_app(options: ServeOptions) -> TrackerApp:
    from valkyrie.settings import data_folder
    from valkyrie.store.layout import DataFolder
    from valkyrie.tracker.app import TrackerApp

    # Where keys are asked for, those who show one come from elsewhere, through a proxy of this machine say.
    local = options.settings.loopback and not options.settings.auth
    return TrackerApp(DataFolder(data_folder()), server=True, allow_local=local)


def _log_to_stderr(level: str) -> None:
    import logging

    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("uvicorn").setLevel("WARNING")


def _warnings(tracker_app: TrackerApp, options: ServeOptions) -> list[str]:
    """What whoever starts it should know about who can use it, and what it cannot do."""
    from valkyrie.cli.executor import no_common_place
    from valkyrie.secrets.sealed import VARIABLE

    found = []
    if not options.settings.auth:
        found.append("No key is asked for: everyone on this machine can use it.")
    elif not _has_keys(tracker_app):
        reached = (
            "" if options.settings.loopback else f" {options.settings.host} can be reached from outside."
        )
        found.append(f"There is no API key yet: `valkyrie admin key create` makes one.{reached}")
    if not options.executor and (apart := no_common_place()):
        found.append(apart)
    if tracker_app.sealer is None:
        found.append(
            f"{VARIABLE} is not set, so no secret can be kept: `valkyrie admin secret-key` makes one, for "
            "this server and its executors."
        )
    return found


def _has_keys(tracker_app: TrackerApp) -> bool:
    """Whether anyone can be let in: hosted mode makes keys elsewhere."""
    from valkyrie.organisation.access import open_authenticator
    from valkyrie.store import people

    if open_authenticator(tracker_app.store).mode == "hosted":
        return True
    with tracker_app.store.reading() as connection:
        return bool(people.list_keys(connection))


def _show(
    url: str, tracker_app: TrackerApp, options: ServeOptions, warnings: Sequence[str], output: Output
) -> None:
    kind = tracker_app.store.kind
    output.emit(
        "tracker", url=url, database=kind, executor=options.executor, pid=os.getpid(), warnings=warnings
    )
    output.panel(
        "Tracker",
        [
            ("URL", safe(url)),
            ("Database", safe(f"{kind}, {tracker_app.store.place}")),
            ("Data folder", safe(str(tracker_app.data.root))),
            ("Executor", "its own, started again when it dies" if options.executor else "none here"),
            ("Keys", "needed" if options.settings.auth else "none asked for"),
        ],
    )
    for warning in warnings:
        output.note(f"Warning: {warning}")
    key = " VALKYRIE_API_KEY=…" if options.settings.auth else ""
    output.note(f"Ctrl+C ends it. To use it:\n  export TRACKER_SERVICE_URL={url}{key}")
