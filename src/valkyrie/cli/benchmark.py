"""`benchmark list`, `tasks`, `init`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from valkyrie.cli.options import header_option, ignore_custom_option, verb
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
    from valkyrie.benchmarks import shipped
    from valkyrie.cli.config.service import known_services

    found, services = shipped(), known_services()
    output.emit(
        "benchmark_list",
        benchmarks=[{"name": n, "description": d, "tasks": c} for n, d, c in found],
        services=[{"name": s.name, "url": s.url, "source": s.source} for s in services],
    )
    table = Table([Column("Benchmark"), Column("Tasks", "right"), Column("What it is", shrink=True)])
    table.rows += [[safe(name), str(count), safe(description)] for name, description, count in found]
    table.rows += [[service.name, NONE, f"service at {safe(service.url)}"] for service in services]
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
    import asyncio

    ids, datasets = asyncio.run(_ids(name, dataset, **service))
    output.emit("benchmark_tasks", benchmark=name, dataset=dataset, datasets=datasets, task_ids=ids)
    if output_file not in (None, "-"):
        from valkyrie.cli.run.take import write_file

        write_file(Path(str(output_file)), "".join(f"{task_id}\n" for task_id in ids))
        output.line(f"Wrote {len(ids)} task ids to {output_file}")
    elif not output.json:
        sys.stdout.write("".join(f"{safe(task_id)}\n" for task_id in ids))


async def _ids(
    name: str, dataset: str, *, headers: Mapping[str, str], ignore_custom_services: bool
) -> tuple[list[str], list[str]]:
    from valkyrie.benchmarks import open_benchmark

    benchmark = open_benchmark(name, headers=headers, ignore_custom=ignore_custom_services)
    try:
        return await benchmark.list_tasks(dataset), await benchmark.datasets()
    finally:
        await benchmark.close()


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
