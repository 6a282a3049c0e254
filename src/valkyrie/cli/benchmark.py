"""`benchmark list`, `tasks`, `init`, `add`, `remove`, `check`."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmark_runner.terminal import Column, Table, no_command, safe
from valkyrie.benchmarks.named.catalog import SHIPPED, added, catalog, names
from valkyrie.benchmarks.named.catalog import remove as remove_benchmark
from valkyrie.benchmarks.named.installation import AddRequest
from valkyrie.benchmarks.named.installation import add as add_benchmark
from valkyrie.benchmarks.protocol import parse_ids
from valkyrie.benchmarks.scaffold import init_benchmark
from valkyrie.cli.config_service import known_services
from valkyrie.cli.options import (
    WholeNumber,
    allow_path_option,
    chosen_tasks,
    header_option,
    ignore_custom_option,
    pass_env_option,
    task_options,
    tracker,
    verb,
)
from valkyrie.cli.output import Output
from valkyrie.cli.run_outputs import write_file
from valkyrie.cli.run_start import default_provider
from valkyrie.config.values import effective
from valkyrie.errors import ValkyrieError
from valkyrie.report.audit import audit_badge, audit_lines, audit_markdown, audit_table
from valkyrie.report.formats import NONE, plural
from valkyrie.views import TasksRequest

if TYPE_CHECKING:
    from valkyrie.benchmarks.named.catalog import AddedBenchmark


def complete_name(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    names = [*SHIPPED, *(one.name for one in added())]
    try:
        names += [service.name for service in known_services()]
    except ValkyrieError:
        pass
    return [name for name in names if name.startswith(incomplete)]


@verb("list", examples="valk benchmark list\nvalk benchmark list --available")
@click.option("--available", is_flag=True, help="List the public benchmarks that can be added instead.")
def list_benchmarks(output: Output, *, available: bool) -> None:
    """List the benchmarks that can be named.

    Those that come along, those that were added, then the services of `config service` and of the registry
    file. Besides these, --benchmark takes the path of any folder of tasks.
    """
    if available:
        _list_available(output)
        return
    with tracker() as opened:
        known = opened.benchmarks()
    found = [one for one in known if one.url is None]
    services = sorted((one for one in known if one.url is not None), key=lambda one: one.source != "custom")
    output.emit(
        "benchmark_list",
        benchmarks=[
            {"name": b.name, "description": b.description, "tasks": b.tasks, "source": b.source}
            for b in found
        ],
        services=[{"name": s.name, "url": s.url, "source": s.source} for s in services],
    )
    columns = [Column("Benchmark"), Column("Tasks", "right"), Column("What it is", shrink=True)]
    table = Table([*columns, Column("Source", shrink=True)])
    for one in found:
        count = NONE if one.tasks is None else str(one.tasks)
        source = one.source.removeprefix("added: ")
        table.rows.append([safe(one.name), count, safe(one.description), safe(source)])
    table.rows += [
        [safe(one.name), NONE, f"service at {safe(one.url)}", safe(one.source)] for one in services
    ]
    output.table(table)


def _list_available(output: Output) -> None:
    here = {one.name: one for one in added()}
    entries = catalog()
    output.emit(
        "benchmark_catalogue", benchmarks=[{**asdict(one), "added": one.name in here} for one in entries]
    )
    columns = [Column("Benchmark"), Column("Tasks", "right"), Column("Added"), Column("Image", shrink=True)]
    table = Table([*columns, Column("What --from takes", shrink=True)])
    for one in entries:
        count = f"{here[one.name].tasks} of {one.tasks}" if one.name in here else str(one.tasks)
        table.rows.append([one.name, count, "yes" if one.name in here else "", one.image, one.bring])
    output.table(table)
    if not output.json:
        output.note(
            "`valk benchmark add NAME --from FILE` adds one; docs/reference/public-benchmarks.md says more."
        )


@verb(
    "tasks",
    examples="valk benchmark tasks quickstart\n"
    "valk benchmark tasks ./my-tasks -o ids.txt\n"
    "valk benchmark tasks my-service --dataset lite",
)
@click.argument("name", metavar="NAME|FOLDER|URL", shell_complete=complete_name)
@click.option("--dataset", default="default", show_default=True, help="Dataset of the benchmark.")
@click.option("-o", "--output-file", metavar="FILE", help="Write the ids to a file instead; - is stdout.")
@header_option
@ignore_custom_option
def tasks(output: Output, *, name: str, dataset: str, output_file: str | None, **service: Any) -> None:
    """List the task ids of a benchmark.

    One id per line, in the benchmark's own order: what --task-ids-file of `run start` reads.
    """
    with tracker() as opened:
        found = opened.benchmark_tasks(TasksRequest(name, dataset, **service))
    ids, datasets = list(found.task_ids), list(found.datasets)
    output.emit("benchmark_tasks", benchmark=name, dataset=dataset, datasets=datasets, task_ids=ids)
    if output_file not in (None, "-"):
        write_file(Path(str(output_file)), "".join(f"{task_id}\n" for task_id in ids))
        output.line(f"Wrote {len(ids)} task ids to {output_file}")
    elif not output.json:
        sys.stdout.write("".join(f"{no_command(safe(task_id))}\n" for task_id in ids))


@verb(
    "init",
    examples="valk benchmark init my-benchmark\nvalk run start --agent oracle --benchmark ./my-benchmark",
)
@click.argument("name")
@click.option(
    "--output-dir",
    "-o",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Folder to make it in [default: this one].",
)
def init(output: Output, *, name: str, output_dir: Path) -> None:
    """Write a new benchmark with one valid task.

    The task has instruction, tests and a solution; the oracle passes it as it is.
    """
    folder = init_benchmark(name, output_dir)
    output.emit("benchmark_created", name=name, folder=str(folder.absolute()))
    output.line(f"Wrote {folder}")
    shown = f"./{folder}" if not folder.is_absolute() else str(folder)
    output.panel("Next", [("Prove it", f"valk run start --agent oracle --benchmark {shown} --connect")])


def _complete_public(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [name for name in names() if name.startswith(incomplete)]


@verb(
    "add",
    examples="valk benchmark add aime --from test2024.jsonl\n"
    "valk benchmark add terminal-bench-2\n"
    "valk benchmark add swe-bench-verified --from verified.parquet --limit 20\n"
    "valk benchmark add my-tasks --from https://example.com/owner/tasks",
)
@click.argument("name", shell_complete=_complete_public)
@click.option(
    "--from",
    "source",
    metavar="FILE|FOLDER|GIT",
    help="The published records, a folder of tasks, a registry.json or dataset.toml, or a repository.",
)
@click.option("--limit", type=WholeNumber(min=1), metavar="N", help="Only the first N tasks.")
@click.option("--task-ids", metavar="A,B,…", help="Only these tasks, by id, comma-separated.")
@click.option(
    "--network",
    type=click.Choice(["public", "no-network"]),
    help="What the tasks' agents may reach [default: nothing, where the benchmark can do without].",
)
@click.option("--overwrite", is_flag=True, help="Replace the one that was added under this name.")
def add(output: Output, *, name: str, source: str | None, task_ids: str | None, **more: Any) -> None:
    """Add a public benchmark by its name.

    Its published records, which you bring, become task directories in the data folder; after that its name
    works wherever a benchmark is named. Nothing is fetched unless --from is a repository, or is left out
    for a benchmark that is one; then the network is needed and that is said first.

    Under a name that is not in the catalogue, any folder or repository of tasks can be added.
    """
    ids = tuple(dict.fromkeys(parse_ids(task_ids))) if task_ids is not None else ()
    if task_ids is not None and not ids:
        raise click.UsageError("--task-ids names no task.")
    watcher = _Progress(output)
    try:
        added, changed = add_benchmark(AddRequest(name, source, task_ids=ids, **more), watcher)
    finally:
        watcher.end()
    output.emit("benchmark_added", changed=changed, folder=str(added.folder), **_fields(added))
    output.line(f"{'Added' if changed else 'Already there:'} {added.name}  {plural(added.tasks, 'task')}")
    revision = "" if added.revision in added.origin else f"  {added.revision[:12]}"
    output.line(f"From {safe(added.origin)}{revision}")
    output.notices(added.notices)
    _say_where(output, added)
    output.panel("Next", [("Prove it", f"valk run start --agent oracle --benchmark {added.name} --slice :5")])


def _fields(added: AddedBenchmark) -> dict[str, Any]:
    return {
        "name": added.name,
        "tasks": added.tasks,
        "origin": added.origin,
        "revision": added.revision,
        "notices": list(added.notices),
    }


def _say_where(output: Output, added: AddedBenchmark) -> None:
    """A tracker elsewhere has benchmarks of its own."""
    if url := effective("tracker_url").value:
        output.note(
            f"Note: added on this machine. The tracker at {safe(url)} looks in its own data folder: add it "
            f"there too, or send this one with --benchmark {added.folder}"
        )


class _Progress:
    """A line on the terminal that counts tasks, gone when it is done."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._shows = output.redraws and sys.stderr.isatty()

    def say(self, line: str) -> None:
        self.end()
        self._output.note(safe(line))

    def count(self, done: int, total: int | None) -> None:
        if self._shows and (done % 10 == 0 or done == total):
            sys.stderr.write(f"\r\x1b[K{done}{f' of {total}' if total and done <= total else ''} tasks")
            sys.stderr.flush()

    def end(self) -> None:
        if self._shows:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()


@verb("remove", examples="valk benchmark remove aime")
@click.argument("name", shell_complete=complete_name)
def remove(output: Output, *, name: str) -> None:
    """Forget a benchmark that was added.

    Results of its runs stay; runs that are not over cannot go on.
    """
    gone = remove_benchmark(name)
    output.emit("benchmark_removed", name=gone.name)
    output.line(f"Removed {gone.name}")


# `benchmark check`.

INTERRUPTED = 130
CHECK_EXAMPLES = """
valk benchmark check ./my-tasks
valk benchmark check ./my-tasks --slice :3 --oracle-runs 5 --no-write
valk benchmark check quickstart --markdown report.md --badge check.svg
"""
_FILE = click.Path(dir_okay=False, path_type=Path)


@verb("check", examples=CHECK_EXAMPLES)
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
    shown = _CheckProgress(output)
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
    write_file(path, text)


class _CheckProgress:
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
