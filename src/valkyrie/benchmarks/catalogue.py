"""Find a benchmark by what people call it: a shipped name, a path, a plugin, or `module:Class`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from valkyrie import plugins
from valkyrie.benchmarks.discovery import find_tasks
from valkyrie.benchmarks.protocol import Benchmark
from valkyrie.benchmarks.task_dir import TaskDirBenchmark
from valkyrie.errors import UsageError, UserError
from valkyrie.nouns import Json
from valkyrie.suggest import did_you_mean

ENTRY_POINTS = "valkyrie.benchmarks"
SHIPPED = ("quickstart",)


def open_benchmark(spec: str, *, host_image: bool = False) -> Benchmark:
    """The benchmark called `spec`. Raises UsageError when there is none."""
    if spec in SHIPPED:
        return TaskDirBenchmark(_shipped_folder(spec), spec, host_image=host_image)
    installed = plugins.names(ENTRY_POINTS)
    if spec in installed or plugins.is_target(spec):
        made: Benchmark = plugins.load(spec, group=ENTRY_POINTS)()
        return made
    folder = Path(spec).expanduser()
    if spec and folder.is_dir():
        return TaskDirBenchmark(folder, host_image=host_image)
    if spec.startswith((".", "/", "~")):
        raise UsageError(f"no folder {spec}; --benchmark takes a name, or the path of a folder of tasks")
    known = [*SHIPPED, *installed]
    raise UsageError(
        f"unknown benchmark {spec!r}; there is {', '.join(known)}, or name a folder of tasks by its path."
        f"{did_you_mean(spec, known)}"
    )


def open_frozen(source: Json, host_env: Mapping[str, str] | None = None) -> Benchmark:
    """The benchmark whose `source` this is, made again, perhaps in another process.

    `host_env` is where `${VAR}` of a task's own environment is looked up; None is this process's.

    A plugin's source is `{"kind": "plugin", "target": "module:Class", …}`; its class is called without
    arguments, or through its `from_source(source)` when it has one.
    """
    kind = source.get("kind")
    if kind == "task_dir":
        return TaskDirBenchmark(
            Path(source["path"]),
            source["name"],
            host_image=bool(source.get("host_image", False)),
            host_env=host_env,
        )
    if kind == "plugin":
        target = plugins.load_target(str(source["target"]))
        made: Benchmark = target.from_source(source) if hasattr(target, "from_source") else target()
        return made
    raise UserError(f"this version knows no benchmarks of kind {kind!r}; was the run started by a newer one?")


def shipped() -> list[tuple[str, str, int]]:
    """(name, description, number of tasks) of the benchmarks that come with the program."""
    folders = [(name, _shipped_folder(name)) for name in SHIPPED]
    return [(name, TaskDirBenchmark(folder).description, len(find_tasks(folder))) for name, folder in folders]


def _shipped_folder(name: str) -> Path:
    return Path(__file__).parent / name
