"""Find a benchmark by what people call it: a shipped name, a path, a plugin, or `module:Class`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from valkyrie import config, plugins
from valkyrie.benchmarks.discovery import find_tasks
from valkyrie.benchmarks.protocol import Benchmark
from valkyrie.benchmarks.task_dir import TaskDirBenchmark
from valkyrie.errors import UsageError, UserError
from valkyrie.handed import headers_of
from valkyrie.nouns import Json
from valkyrie.suggest import did_you_mean

if TYPE_CHECKING:
    from sandboxes.configs import SandboxProviderConfig
    from valkyrie.benchmarks.service.address import ServiceAddress

ENTRY_POINTS = "valkyrie.benchmarks"
SHIPPED = ("quickstart",)


def open_benchmark(
    spec: str,
    *,
    host_image: bool = False,
    headers: Mapping[str, str] | None = None,
    ignore_custom: bool = False,
) -> Benchmark:
    """The benchmark called `spec`. Raises UsageError when there is none.

    A service of the user's own config comes before everything that has the same name, unless ignored;
    `headers` go to a service with every request, over the credential kept for it.
    """
    from valkyrie.benchmarks.service import address

    own = address.given_url(spec) or (None if ignore_custom else address.custom_service(spec))
    if own:
        return _service(own, headers)
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
    for find in (address.registered_service, address.patterned_service, address.local_service):
        if spec and (found := find(spec)):
            return _service(found, headers)
    known = [*SHIPPED, *installed, *address.service_names()]
    raise UsageError(
        f"unknown benchmark {spec!r}; there is {', '.join(known)}, or name a folder of tasks by its path, or "
        f"a service: `valk config service set {spec or 'NAME'} URL` (none at {address.LOCAL_URL} says that "
        f"it is this one).{did_you_mean(spec, known)}"
    )


def _service(found: ServiceAddress, headers: Mapping[str, str] | None) -> Benchmark:
    from valkyrie.benchmarks.service.source import ServiceBenchmark

    credential = config.mapping("benchmark_auth").get(found.name)
    named = {name.lower() for name in headers or {}}
    kept = {"Authorization": str(credential)} if credential and "authorization" not in named else {}
    return ServiceBenchmark(found, {**kept, **(headers or {})})


def open_frozen(
    source: Json,
    host_env: Mapping[str, str] | None = None,
    access: SandboxProviderConfig | None = None,
) -> Benchmark:
    """The benchmark whose `source` this is, made again, perhaps in another process.

    `host_env` is what was handed over for the run: where `${VAR}` of a task's own environment is looked up,
    and the values of a service's headers. None is this process's environment. `access` is how a service
    reaches the run's sandboxes.

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
    if kind == "service":
        from valkyrie.benchmarks.service.address import ServiceAddress
        from valkyrie.benchmarks.service.source import ServiceBenchmark

        return ServiceBenchmark(
            ServiceAddress(source["name"], source["url"], source["where"]),
            headers_of(host_env or {}),
            access=access,
            grading=source["grading"],
            versions=source["versions"],
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
