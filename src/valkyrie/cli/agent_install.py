"""`agent install`: an agent out of a git repository."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from valkyrie.agents.library import checked_out
from valkyrie.cli.options import Number, tracker, verb
from valkyrie.cli.output import Output
from valkyrie.git.address import parse_source
from valkyrie.git.repository import TIMEOUT_S
from valkyrie.report.formats import safe, size

if TYPE_CHECKING:
    from valkyrie.views import AgentView

_EXAMPLES = """
valk agent install https://github.com/owner/my-agent
valk agent install https://github.com/owner/agents/tree/main/sweagent --name swe
valk agent install git@example.com:owner/my-agent --ref v1.2
"""


@verb("install", examples=_EXAMPLES)
@click.argument("url", metavar="URL")
@click.option(
    "--name", "-n", metavar="NAME", help="Name to keep it under [default: the repository's or folder's]."
)
@click.option("--ref", metavar="REF", help="Branch, tag or commit [default: the default branch].")
@click.option(
    "--timeout", type=Number(min=1), default=TIMEOUT_S, show_default=True, help="Seconds git may take."
)
def install(output: Output, *, url: str, name: str | None, ref: str | None, timeout: float) -> None:
    """Take an agent in from a git repository.

    Its newest commit is fetched and recorded; nothing of the repository is run. A folder of it is named as
    in a browser: URL/tree/BRANCH/FOLDER. Private repositories are reached with git's own credentials.
    """
    source = parse_source(url, ref)
    with tracker() as opened:
        with (
            _progress(output, source.url) as progress,
            checked_out(source, name, timeout=timeout, progress=progress) as found,
        ):
            before = next((agent for agent in opened.agents() if agent.name == found.name), None)
            pushed = opened.push_agent(found.folder, found.name, origin=found.origin)
    _report(output, pushed, before, found.commit)
    output.notices(found.notices)


def _report(output: Output, pushed: AgentView, before: AgentView | None, commit: str) -> None:
    from valkyrie.views import to_json

    changed = before is None or before.digest is None or before.digest != pushed.digest
    was = before.origin if before else None
    output.emit("agent", agent=to_json(pushed), commit=commit, previous_origin=was, changed=changed)
    output.line(f"Installed {pushed.name}  {size(pushed.bytes)}  {(pushed.digest or '')[:12]}")
    output.line(f"From {safe(pushed.origin or '')}")
    if before:
        output.line(_compared(before, pushed, commit))
    output.panel("Next", [("Run it", f"valk run start --agent {pushed.name} --benchmark quickstart")])


def _compared(before: AgentView, pushed: AgentView, commit: str) -> str:
    """What was there under this name, and whether it is another now."""
    place, _, was = (before.origin or "").rpartition("@")
    if before.origin == pushed.origin:
        return "It is the commit that was installed before."
    if place and place == (pushed.origin or "").rpartition("@")[0]:
        same = " Its files are the same." if before.digest == pushed.digest else ""
        return f"The commit changed: {was[:12]} before, {commit[:12]} now.{same}"
    return f"It takes the place of one {f'from {safe(before.origin)}' if before.origin else 'pushed before'}."


@contextmanager
def _progress(output: Output, url: str) -> Iterator[Callable[[int], None] | None]:
    """A line on the terminal that says how much was fetched, gone when it is done."""
    if not (output.redraws and sys.stderr.isatty()):
        yield None
        return

    def show(fetched: int) -> None:
        line = f"Fetching {safe(url)}  {size(fetched)}"
        sys.stderr.write(f"\r\x1b[K{line[: (output.width or 80) - 1]}")
        sys.stderr.flush()

    try:
        yield show
    finally:
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
