"""`benchmark check`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from valkyrie.cli.benchmark import complete_name
from valkyrie.cli.options import (
    WholeNumber,
    allow_path_option,
    chosen_tasks,
    pass_env_option,
    task_options,
    verb,
)
from valkyrie.cli.output import Output
from valkyrie.report.formats import safe

INTERRUPTED = 130
EXAMPLES = """
valk benchmark check ./my-tasks
valk benchmark check ./my-tasks --slice :3 --oracle-runs 5 --no-write
valk benchmark check quickstart --markdown report.md --badge check.svg
"""
_FILE = click.Path(dir_okay=False, path_type=Path)


@verb("check", examples=EXAMPLES)
@click.argument("name", metavar="NAME|FOLDER", shell_complete=complete_name)
@click.option("--dataset", default="default", show_default=True, help="Dataset of the benchmark.")
@task_options
@click.option("--slice", "slice_", metavar="START:STOP:STEP", help="A slice of the task list, as in Python.")
@click.option(
    "--oracle-runs",
    type=WholeNumber(min=1),
    metavar="N",
    default=2,
    show_default=True,
    help="How often each task's own solution must pass.",
)
@click.option("--provider", metavar="NAME", help="Where trials run [default: default_provider, else local].")
@click.option(
    "--concurrency", type=WholeNumber(min=1), metavar="N", help="Trials at once [default: one for each core]."
)
@click.option(
    "--host-image", is_flag=True, help="Run tasks that name an image on the host's file system anyway."
)
@pass_env_option
@allow_path_option
@click.option(
    "--write/--no-write",
    default=True,
    show_default=True,
    help="Write what was found to the benchmark's lock file.",
)
@click.option("--markdown", type=_FILE, metavar="FILE", help="Write the report as Markdown, too.")
@click.option("--badge", type=_FILE, metavar="FILE", help="Write a badge (SVG), too.")
def check(
    output: Output,
    *,
    name: str,
    dataset: str,
    task_ids: str | None,
    task_ids_file: str | None,
    slice_: str | None,
    oracle_runs: int,
    provider: str | None,
    concurrency: int | None,
    host_image: bool,
    pass_env: tuple[str, ...],
    allow_paths: tuple[str, ...],
    write: bool,
    markdown: Path | None,
    badge: Path | None,
) -> int:
    """Check what a benchmark's tasks are open to.

    For each task: its own solution must pass, each time; doing nothing must score 0; and so must a cheating
    agent that tries eight ways to a score, and the task's own cheat/solve.sh if it has one. Where the tests
    must run for the solution to pass (in a fresh sandbox, in the one the agent left, or beside its
    processes) is found out and written to benchmark.lock, which later runs go by.

    Exit 0 when every task is clean, 1 when one is open to something or broken.
    """
    from valkyrie.cli.run.start import default_provider
    from valkyrie.report.audit import audit_badge, audit_lines, audit_markdown, audit_table
    from valkyrie.tracker.audit import AuditRequest, audit_benchmark, write_found

    request = AuditRequest(
        benchmark=name,
        dataset=dataset,
        task_ids=chosen_tasks(task_ids, task_ids_file),
        slice=slice_,
        provider=provider or default_provider(),
        oracle_runs=oracle_runs,
        concurrency=concurrency or max(2, os.cpu_count() or 1),
        host_image=host_image,
        pass_env=pass_env,
        allow_paths=allow_paths,
    )
    shown = _Progress(output)
    try:
        audit = audit_benchmark(request, shown)
    finally:
        shown.end()
    locked = write_found(audit, name) if write else None
    if markdown:
        _write(markdown, audit_markdown(audit))
    if badge:
        _write(badge, audit_badge(audit))
    output.emit("benchmark_check", **audit.to_json(), lock=str(locked) if locked else None)
    if not output.json:
        output.table(audit_table(audit, output.ink))
        output.lines(audit_lines(audit, output.ink))
    if locked:
        output.note(f"Wrote {safe(locked)}")
    if audit.interrupted:
        return INTERRUPTED
    return 0 if audit.clean else 1


def _write(path: Path, text: str) -> None:
    from valkyrie.cli.run.take import write_file

    write_file(path, text)


class _Progress:
    """How far the check is, on stderr: one line redrawn on a terminal, one for each round elsewhere."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._redraws = output.redraws and sys.stderr.isatty()
        self._said = ""

    def __call__(self, what: str, done: int, total: int) -> None:
        if self._redraws:
            sys.stderr.write(f"\r\x1b[K{what}: {done} of {total} trials")
            sys.stderr.flush()
        elif what != self._said:
            self._said = what
            self._output.note(f"{what}: {total} trials")

    def end(self) -> None:
        if self._redraws:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
