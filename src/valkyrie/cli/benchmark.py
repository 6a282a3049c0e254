"""`benchmark list`, `tasks`, `init`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from valkyrie.cli.options import header_option, ignore_custom_option, tracker, verb
from valkyrie.cli.output import Output
from valkyrie.report.formats import NONE, safe
from valkyrie.report.layout import Column, Table


def _complete_name(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from valkyrie.benchmarks.catalogue import SHIPPED
    from valkyrie.cli.config.service import known_services
    from valkyrie.errors import ValkyrieError

    try:
        names = [*SHIPPED, *(service.name for service in known_services())]
    except ValkyrieError:
        names = [*SHIPPED]
    return [name for name in names if name.startswith(incomplete)]


@verb("list", examples="valk benchmark list")
def list_benchmarks(output: Output) -> None:
    """List the benchmarks that can be named.

    Those that come along, then the services of `config service` and of the registry file. Besides these,
    --benchmark takes the path of any folder of tasks.
    """
    with tracker() as opened:
        known = opened.benchmarks()
    found = [one for one in known if one.url is None]
    services = sorted((one for one in known if one.url is not None), key=lambda one: one.source != "custom")
    output.emit(
        "benchmark_list",
        benchmarks=[{"name": b.name, "description": b.description, "tasks": b.tasks} for b in found],
        services=[{"name": s.name, "url": s.url, "source": s.source} for s in services],
    )
    table = Table([Column("Benchmark"), Column("Tasks", "right"), Column("What it is", shrink=True)])
    for one in found:
        count = NONE if one.tasks is None else str(one.tasks)
        table.rows.append([safe(one.name), count, safe(one.description)])
    table.rows += [[safe(one.name), NONE, f"service at {safe(one.url)}"] for one in services]
    output.table(table)


@verb(
    "tasks",
    examples="valk benchmark tasks quickstart\n"
    "valk benchmark tasks ./my-tasks -o ids.txt\n"
    "valk benchmark tasks my-service --dataset lite",
)
@click.argument("name", metavar="NAME|FOLDER|URL", shell_complete=_complete_name)
@click.option("--dataset", default="default", show_default=True, help="Dataset of the benchmark.")
@click.option("-o", "--output-file", metavar="FILE", help="Write the ids to a file instead; - is stdout.")
@header_option
@ignore_custom_option
def tasks(output: Output, *, name: str, dataset: str, output_file: str | None, **service: Any) -> None:
    """List the task ids of a benchmark.

    One id per line, in the benchmark's own order: what --task-ids-file of `run start` reads.
    """
    from valkyrie.views import TasksRequest

    with tracker() as opened:
        found = opened.benchmark_tasks(TasksRequest(name, dataset, **service))
    ids, datasets = list(found.task_ids), list(found.datasets)
    output.emit("benchmark_tasks", benchmark=name, dataset=dataset, datasets=datasets, task_ids=ids)
    if output_file not in (None, "-"):
        from valkyrie.cli.run.take import write_file

        write_file(Path(str(output_file)), "".join(f"{task_id}\n" for task_id in ids))
        output.line(f"Wrote {len(ids)} task ids to {output_file}")
    elif not output.json:
        sys.stdout.write("".join(f"{safe(task_id)}\n" for task_id in ids))


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
    from valkyrie.benchmarks.scaffold import init_benchmark

    folder = init_benchmark(name, output_dir)
    output.emit("benchmark_created", name=name, folder=str(folder.absolute()))
    output.line(f"Wrote {folder}")
    shown = f"./{folder}" if not folder.is_absolute() else str(folder)
    output.panel("Next", [("Prove it", f"valk run start --agent oracle --benchmark {shown} --connect")])
