"""`serve`, `executor`, `queue` and `disk`: what works runs off, and what that takes."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
from typing import TYPE_CHECKING

import click

from benchmark_runner.terminal import Column, Table, safe
from valkyrie.cli.options import Number, WholeNumber, tracker, verb
from valkyrie.cli.output import Output
from valkyrie.cli.run_watch import show_table
from valkyrie.config.values import data_folder, database_url, effective
from valkyrie.report.formats import short_id, size
from valkyrie.report.run_details import executor_table, queue_sentence, queue_table
from valkyrie.secrets.delivery import VARIABLE
from valkyrie.store import tenants
from valkyrie.store.layout import DataFolder
from valkyrie.tenants.organisation import open_authenticator
from valkyrie.tracker.app import TrackerApp
from valkyrie.views import to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from valkyrie.api.server import ServeOptions
    from valkyrie.views import DiskView


@verb(
    "executor",
    examples="VALKYRIE_DATABASE_URL=postgresql://tracker@db/valkyrie VALKYRIE_SECRET_KEY=… valkyrie executor",
)
def executor(output: Output) -> None:
    """Work off the runs of a tracker's database.

    For the machines of a team: each executor leases trials from the tracker's database
    (VALKYRIE_DATABASE_URL), opens what was sealed for them (VALKYRIE_SECRET_KEY, the same as the tracker's)
    and keeps its own scratch data in VALKYRIE_HOME. Executors on several machines need a common place for
    artifacts: S3_BUCKET, or artifacts_folder. SIGTERM or Ctrl+C lets trials under way finish; a second one
    gives them back to the queue.
    """
    from valkyrie.executor.host import serve

    folder = data_folder()
    place = "PostgreSQL" if (database_url() or "").startswith("postgres") else "SQLite"

    def announce() -> None:
        output.emit("executor", event="start", pid=os.getpid(), data_folder=str(folder), database=place)
        output.line(
            f"Executor {os.getpid()} on {place}, scratch data in {safe(str(folder))}. Ctrl+C drains it."
        )
        sys.stdout.flush()
        if place == "PostgreSQL" and (apart := no_common_place()):
            output.note(f"Warning: {apart}")

    serve(str(folder), announce)


def no_common_place() -> str | None:
    """What whoever runs executors apart from the tracker must know, where artifacts have no common place."""
    if effective("S3_BUCKET").value or effective("artifacts_folder").value:
        return None
    return (
        "Agents and artifacts are kept in the data folder. Executors with another one need a common place, "
        "for them and the tracker: S3_BUCKET, or VALKYRIE_ARTIFACTS_FOLDER."
    )


# `serve`.

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
    from valkyrie.api.capacity import settings_for
    from valkyrie.api.server import ServeOptions
    from valkyrie.api.server import serve as serve_until_told

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
    # Where keys are asked for, those who show one come from elsewhere, through a proxy of this machine say.
    local = options.settings.loopback and not options.settings.auth
    return TrackerApp(DataFolder(data_folder()), server=True, allow_local=local)


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("uvicorn").setLevel("WARNING")


def _warnings(tracker_app: TrackerApp, options: ServeOptions) -> list[str]:
    """What whoever starts it should know about who can use it, and what it cannot do."""
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
    if open_authenticator(tracker_app.store).mode == "hosted":
        return True
    with tracker_app.store.reading() as connection:
        return bool(tenants.list_keys(connection))


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


# `valkyrie queue …`.


@verb("status", examples="valk queue status\nvalk queue status --json | jq '.queue.entries[].run_id'")
def status(output: Output) -> int:
    """Show what waits, what runs, and who works.

    Open runs by priority (0 first), then by age. They share what room there is: people first, then each
    person's runs, and each step of priority doubles the share. Then the executors that live, with the age
    of their last heartbeat.
    """
    with tracker() as opened:
        queue = opened.queue()
    output.emit("queue", queue=to_json(queue))
    if output.json:
        return 0
    now = time.time()
    output.line(queue_sentence(queue))
    if queue.entries:
        output.line()
        output.table(queue_table(queue, output.ink, now=now, whole_ids=not output.terminal))
    if queue.executors:
        output.line()
        output.table(executor_table(queue, now=now))
    elif queue.entries:
        output.note(_what_goes_on(queue.entries[0].run_id))
    return 0


def _what_goes_on(run_id: str) -> str:
    if effective("tracker_url").value:
        return "No executor is at work: whoever runs the tracker starts one with `valkyrie executor`."
    return f"No executor is at work: valk run resume {short_id(run_id)} goes on."


# `disk`.


@verb("disk", examples="valk disk")
def disk(output: Output) -> None:
    """Show where the bytes are.

    What the data folder holds, and which runs take most of it; what runs keep in a shared folder or a bucket;
    and what the database can give back. `valk run delete` makes room, `valkyrie db compact` gives it back.
    """
    with tracker() as opened:
        view = opened.disk()
    output.emit("disk", disk=to_json(view))
    if output.json:
        return
    output.panel("Disk", _rows(view))
    if view.runs:
        show_table(_table(view, output), output)
        output.panel("Next", [("Make room", f"valk run delete {short_id(view.runs[0][0])}")])


def _rows(view: DiskView) -> list[tuple[str, str]]:
    rows = [("Used", size(view.total_bytes))]
    if view.data_folder:  # a tracker tells it only to those whose machine it is
        rows = [("Folder", safe(view.data_folder)), *rows, ("Free", size(view.free_bytes))]
    rows += [(safe(what), size(count)) for what, count in view.parts]
    rows += [(safe(where), size(count)) for where, count in view.elsewhere]
    if view.reclaimable_bytes:
        rows.append(("Can be given back", f"{size(view.reclaimable_bytes)} (valkyrie db compact)"))
    return rows


def _table(view: DiskView, output: Output) -> Table:
    table = Table([Column("Run"), Column("Status"), Column("Size", "right")])
    table.rows += [[run_id, output.ink.state(state), size(count)] for run_id, state, count in view.runs]
    return table
