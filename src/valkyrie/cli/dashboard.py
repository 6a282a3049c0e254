"""`dashboard`: pages about this machine's runs, in a browser."""

from __future__ import annotations

import asyncio
import signal
import webbrowser
from urllib.parse import quote

import click

from sandboxes.web_listener import Listener, bind
from valkyrie.cli.options import WholeNumber, verb
from valkyrie.cli.output import Output
from valkyrie.config.values import data_folder, effective
from valkyrie.dashboard.app import Dashboard
from valkyrie.dashboard.sessions import Sessions
from valkyrie.errors import UsageError, UserError
from valkyrie.report.formats import safe
from valkyrie.tracker.local import LocalTracker

HOST = "127.0.0.1"


@verb(
    "dashboard",
    examples="valk dashboard\nvalk dashboard latest\nvalk dashboard --port 8765 --no-open",
)
@click.argument("ref", metavar="[RUN]", required=False)
@click.option(
    "--port",
    type=WholeNumber(min=0, max=65535),
    metavar="N",
    default=0,
    help="Port to listen on [default: any free one].",
)
@click.option("--no-open", is_flag=True, help="Print the link, and open no browser.")
def dashboard(output: Output, *, ref: str | None, port: int, no_open: bool) -> None:
    """Look at runs in a browser, live.

    Serves pages about the runs, jobs and trials of this machine's store on 127.0.0.1 until interrupted, and
    opens them, at RUN if you name one. The link has a token in it that works once, for 15 minutes; the
    browser that uses it gets a session of its own. Nothing is loaded from anywhere else.
    """
    if effective("tracker_url").value:
        raise UsageError(
            "The dashboard shows this machine's store, and tracker_url names another one. "
            "Run it without: `env -u TRACKER_SERVICE_URL valk dashboard`, or `valk config unset tracker_url`."
        )
    tracker = LocalTracker(data_folder())
    try:
        page = f"/runs/{quote(tracker.fetch(ref).id)}" if ref else "/"
        asyncio.run(_serve(tracker, port, page, output, opens=not no_open))
    finally:
        tracker.close()


async def _serve(tracker: LocalTracker, port: int, page: str, output: Output, *, opens: bool) -> None:
    sessions = Sessions()
    made = Dashboard(tracker, sessions, HOST)
    try:
        listener = Listener(made.app, bind(HOST, port), grace_s=2)
    except OSError as error:
        raise UserError(f"Cannot listen on {HOST}, port {port}: {error.strerror or error}.") from error
    asked = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, asked.set)
    await listener.start()
    try:
        token = sessions.link(tracker.context.identity)
        link = f"{listener.url}/open?token={token}&next={quote(page)}"
        output.emit("dashboard", url=listener.url, link=link)
        output.line(f"Dashboard: {safe(link)}")
        output.note("The link works once. Ctrl+C ends the dashboard; runs go on.")
        if opens and output.terminal:
            await asyncio.to_thread(webbrowser.open, link)
        await asked.wait()
    finally:
        made.feed.close()
        await listener.close()
