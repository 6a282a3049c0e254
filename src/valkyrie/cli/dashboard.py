"""`dashboard` and `report`: this machine's runs in a browser, and in one file."""

from __future__ import annotations

import asyncio
import signal
import webbrowser
from pathlib import Path
from urllib.parse import quote

import click

from benchmark_runner.terminal import safe
from sandboxes.web_listener import Listener, bind
from valkyrie.cli.options import WholeNumber, verb
from valkyrie.cli.output import Output
from valkyrie.config.values import data_folder, effective
from valkyrie.dashboard.app import Dashboard
from valkyrie.dashboard.report_file import save_report, write_report
from valkyrie.dashboard.sessions import Sessions
from valkyrie.errors import UsageError, UserError
from valkyrie.report.formats import size
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
    tracker = _open("dashboard")
    try:
        page = f"/runs/{quote(tracker.fetch(ref).id)}" if ref else "/"
        asyncio.run(_serve(tracker, port, page, output, opens=not no_open))
    finally:
        tracker.close()


def _open(command: str) -> LocalTracker:
    if effective("tracker_url").value:
        raise UsageError(
            f"`{command}` reads this machine's store, and tracker_url names a tracker elsewhere. "
            f"`env -u TRACKER_SERVICE_URL valk {command}` looks here all the same."
        )
    return LocalTracker(data_folder())


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


@verb(
    "report",
    examples="valk report latest\nvalk report nightly --html nightly.html\nvalk report 3f2a --all --html -",
)
@click.argument("ref", metavar="RUN|JOB")
@click.option("--html", "file", metavar="FILE", help="Where to write it, - is stdout [default: NAME.html].")
@click.option(
    "--all", "everything", is_flag=True, help="Every trial's steps, not only of those without a pass."
)
@click.option("--force", is_flag=True, help="Write over a file that is there.")
def report(output: Output, *, ref: str, file: str | None, everything: bool, force: bool) -> None:
    """Write a run or job as one HTML file to send to others.

    Scores with intervals, every trial and why it has no pass, and what the agent did in those without one,
    step by step. The file loads nothing and runs nothing: it opens from a disk, offline.
    """
    tracker = _open("report")
    try:
        if file == "-":
            output.line(write_report(tracker, ref, everything=everything).rstrip("\n"))
            return
        path = Path(file or f"{_file_name(ref)}.html")
        if path.exists() and not force:
            raise UsageError(f"{path} exists. --force writes over it, --html names another file.")
        count = save_report(tracker, ref, path, everything=everything)
    finally:
        tracker.close()
    output.emit("report", file=str(path), bytes=count)
    output.line(f"Wrote {safe(str(path))} ({size(count)})")


def _file_name(ref: str) -> str:
    return "".join(one if one.isalnum() or one in "-_." else "-" for one in ref).strip(".-") or "report"
