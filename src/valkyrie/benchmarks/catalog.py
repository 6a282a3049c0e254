"""Find a benchmark by a shipped name, a path, a plugin or `module:Class`, and list those with a name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandboxes.protocol import Sandbox
from sandboxes.types import OutputSink
from valkyrie import plugins
from valkyrie.benchmarks.named.catalog import SHIPPED, added, find, find_added
from valkyrie.benchmarks.protocol import Benchmark, BenchmarkCapabilities, BenchmarkRequest, Grading
from valkyrie.benchmarks.service import address
from valkyrie.benchmarks.service.address import ServiceAddress
from valkyrie.benchmarks.task_dir.benchmark import TaskDirBenchmark, find_tasks
from valkyrie.benchmarks.task_dir.upload import unpack_upload
from valkyrie.config import values
from valkyrie.config.schema import SERVICES, find_map
from valkyrie.domain import INGESTED, FinalScore, Grade, Json, TaskSpec
from valkyrie.errors import UsageError, UserError, paths_shown_as
from valkyrie.secrets.delivery import headers_of
from valkyrie.text import did_you_mean
from valkyrie.views import BenchmarkView

if TYPE_CHECKING:
    from sandboxes.types import SandboxProviderConfig


ENTRY_POINTS = "valkyrie.benchmarks"
_UPLOAD = re.compile("upload:([0-9a-f]{64})")


class UploadedBenchmark(TaskDirBenchmark):
    """A folder of tasks that came with a request: any machine can get it again by its digest."""

    def __init__(
        self,
        folder: Path,
        digest: str,
        name: str | None = None,
        *,
        host_image: bool = False,
        host_env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder, name, host_image=host_image, host_env=host_env)
        self._digest = digest

    @property
    def source(self) -> Json:
        return {**super().source, "upload": self._digest}

    async def datasets(self) -> list[str]:
        with self._told():
            return await super().datasets()

    async def list_tasks(self, dataset: str = "default") -> list[str]:
        with self._told():
            return await super().list_tasks(dataset)

    async def describe(self, task_id: str, dataset: str = "default") -> TaskSpec:
        with self._told():
            return await super().describe(task_id, dataset)

    def _told(self) -> AbstractContextManager[None]:
        return paths_shown_as({self._folder: self._folder.name})


def open_benchmark(spec: str, asking: BenchmarkRequest | None = None) -> Benchmark:
    """Return the benchmark of that name, path, URL, plugin name, `module:Class` or `upload:<digest>`.

    A service of the user's own config comes before everything that has the same name, unless ignored. Who is
    not trusted is not on this machine: paths and `module:Class` are refused before anything is touched.
    """
    asking = asking or BenchmarkRequest()
    if not asking.headers:
        return _find(spec, asking)
    address.check_headers(asking.headers)
    found = _find(spec, asking)
    if found.capabilities.headers is None:
        raise UsageError(f"-H goes to benchmark services; {found.name} is none.")
    return found


def _find(spec: str, asking: BenchmarkRequest) -> Benchmark:
    if asking.uploads and (match := _UPLOAD.fullmatch(spec)):
        return _uploaded(match[1], asking, asking.uploads)
    if given := _given_service(spec, asking):
        return _service(replace(given, reach=asking.reach), asking, ours=asking.trusted)
    named = values.mapping("custom_benchmark_services")
    if not asking.ignore_custom and spec in named and (custom := address.custom_service(spec)):
        return _service(custom, asking)
    if spec in SHIPPED:
        folder = _shipped_folder(spec)
        return TaskDirBenchmark(folder, spec, host_image=asking.host_image, host_env=asking.host_env)
    if found_added := _added(spec, asking):
        return found_added
    if not asking.trusted:
        _refuse_this_machines(spec, asking)
    if asking.trusted and (eval_spec := _eval_spec(spec, asking)):
        return eval_spec
    installed = plugins.names(ENTRY_POINTS)
    if spec in installed or plugins.is_target(spec):
        return adapted(plugins.load(spec, group=ENTRY_POINTS)())
    if asking.trusted and (found := _folder(spec)):
        return TaskDirBenchmark(
            found, host_image=asking.host_image, host_env=asking.host_env, allow_paths=asking.allow_paths
        )
    if service := _known_service(spec, asking):
        return _service(service, asking)
    raise _unknown(spec, [*SHIPPED, *_added_names(), *installed], asking)


def _eval_spec(spec: str, asking: BenchmarkRequest) -> Benchmark | None:
    """An eval.yaml by its path."""
    file = Path(spec).expanduser()
    if not file.is_file() or (file.suffix not in (".yaml", ".yml") and not asking.options.get("eval_plugin")):
        return None
    return _open_eval_spec(file.resolve(), dict(asking.options))


def _open_eval_spec(file: Path, options: Json) -> Benchmark:
    # Graders and the readers of specs are loaded for evals alone.
    from valkyrie.benchmarks.eval_spec.benchmark import EvalBenchmark

    return EvalBenchmark.with_options(file, options)


def _added(spec: str, asking: BenchmarkRequest) -> Benchmark | None:
    """A public benchmark that was added, by any of its names; who is here may also mean a folder by one."""
    if "/" in spec and asking.trusted and Path(spec).expanduser().is_dir():
        return None
    if spec.startswith((".", "/", "~")) or plugins.is_target(spec) or (found := find_added(spec)) is None:
        return None
    return TaskDirBenchmark(found.folder, found.name, host_image=asking.host_image, host_env=asking.host_env)


def _uploaded(digest: str, asking: BenchmarkRequest, uploads: Callable[[str], Path]) -> Benchmark:
    """`uploads` is asked even for what is unpacked already: not everybody may name everything."""
    if asking.cache is None:
        raise UserError("uploaded benchmarks need a folder to be unpacked in.")
    folder = unpack_upload(uploads(digest), asking.cache, digest)
    return UploadedBenchmark(folder, digest, host_image=asking.host_image, host_env=asking.host_env)


def _given_service(spec: str, asking: BenchmarkRequest) -> ServiceAddress | None:
    """The service whose address came with the question."""
    if spec.startswith(("http://", "https://")):
        return address.given_url(spec)
    if asking.url is None or asking.ignore_custom:
        return None
    try:
        return ServiceAddress(spec, str(find_map(SERVICES).entry(spec, asking.url)), "custom")
    except ValueError as error:
        raise UsageError(f"the benchmark's service: {error}.") from None


def _known_service(spec: str, asking: BenchmarkRequest) -> ServiceAddress | None:
    """Strangers are not led to whatever listens on this machine and says that it is meant."""
    ways = [address.registered_service, address.patterned_service]
    if asking.trusted:
        ways.append(address.local_service)
    return next((found for find in ways if spec and (found := find(spec))), None)


def _folder(spec: str) -> Path | None:
    folder = Path(spec).expanduser()
    if spec and folder.is_dir():
        return folder
    if spec.startswith((".", "/", "~")):
        raise UsageError(f"no folder {spec}; --benchmark takes a name, or the path of a folder of tasks")
    return None


def _refuse_this_machines(spec: str, asking: BenchmarkRequest) -> None:
    """Refuse what lies on this machine to those who ask from elsewhere; names known here are taken."""
    if "/" in spec or spec.startswith((".", "~")) or spec.endswith(".zip") or plugins.is_target(spec):
        raise _not_added(spec, asking) or UsageError(
            f"--benchmark {spec[:200]!r}: paths and module:Class are not taken from elsewhere; give the name "
            "of a benchmark, or the URL of its service."
        )


def _unknown(spec: str, names: list[str], asking: BenchmarkRequest) -> UsageError:
    if missing := _not_added(spec, asking):
        return missing
    known = [*names, *address.service_names()]
    near = did_you_mean(spec, known)
    if not asking.trusted:
        return UsageError(f"unknown benchmark {spec!r}; there is {', '.join(known)}.{near}")
    return UsageError(
        f"unknown benchmark {spec!r}; there is {', '.join(known)}, or name a folder of tasks by its path, or "
        f"a service: `valk config service set {spec or 'NAME'} URL` (none at {address.LOCAL_URL} says that "
        f"it is this one).{near}"
    )


def _not_added(spec: str, asking: BenchmarkRequest) -> UsageError | None:
    entry = find(spec)
    if entry is None:
        return None
    where = "" if asking.trusted else " where the tracker runs"
    brought = "" if entry.git else " --from FILE"
    return UsageError(
        f"{entry.title} was not added yet: `valk benchmark add {entry.name}{brought}`{where} makes it from "
        f"{entry.bring}."
    )


def _added_names() -> list[str]:
    return [one.name for one in added()]


def _service(found: ServiceAddress, asking: BenchmarkRequest, *, ours: bool = True) -> Benchmark:
    """A credential of this machine's config goes to services it names itself, not to those of strangers."""
    headers = dict(asking.headers or {})
    credential = values.mapping("benchmark_auth").get(found.name) if ours else None
    named = {name.lower() for name in headers}
    kept = {"Authorization": str(credential)} if credential and "authorization" not in named else {}
    if found.where in address.HOSTED:
        kept |= {name: value for name, value in asking.caller_headers.items() if name.lower() not in named}
    return _open_service(found, {**kept, **headers})


def _open_service(found: ServiceAddress, headers: Mapping[str, str], **settings: Any) -> Benchmark:
    # Its client is loaded for services alone.
    from valkyrie.benchmarks.service.benchmark import ServiceBenchmark

    return ServiceBenchmark(found, headers, **settings)


def open_frozen(
    source: Json,
    host_env: Mapping[str, str] | None = None,
    access: SandboxProviderConfig | None = None,
) -> Benchmark:
    """The benchmark whose `source` this is, made again, perhaps in another process.

    `host_env` is what was handed over for the run: where `${VAR}` of a task's own environment is looked up,
    and the values of a service's headers. `access` is how a service reaches the run's sandboxes.

    A plugin's source is `{"kind": "plugin", "target": "module:Class", …}`; its class is called without
    arguments, or through its `from_source(source)` when it has one.
    """
    kind = source.get("kind")
    if kind == "task_dir":
        return _frozen_folder(source, host_env)
    if kind == "eval_spec":
        return _open_eval_spec(Path(source["file"]), source["options"])
    if kind == "service":
        return _open_service(
            ServiceAddress(source["name"], source["url"], source["where"], reach=source.get("reach")),
            headers_of(host_env or {}),
            access=access,
            grading=source["grading"],
            versions=source["versions"],
        )
    if kind == "plugin":
        target = plugins.load_target(str(source["target"]))
        return adapted(target.from_source(source) if hasattr(target, "from_source") else target())
    if kind == INGESTED:
        return IngestedBenchmark(str(source["name"]))
    raise UserError(f"this version knows no benchmarks of kind {kind!r}; was the run started by a newer one?")


def _frozen_folder(source: Json, host_env: Mapping[str, str] | None) -> Benchmark:
    folder, digest = Path(source["path"]), source.get("upload")
    host_image = bool(source.get("host_image", False))
    if digest is None:
        allowed = source.get("allow_paths", ())
        return TaskDirBenchmark(
            folder, source["name"], host_image=host_image, host_env=host_env, allow_paths=allowed
        )
    return UploadedBenchmark(folder, str(digest), source["name"], host_image=host_image, host_env=host_env)


def shipped() -> list[tuple[str, str, int]]:
    """(name, description, number of tasks) of the benchmarks that come with the program."""
    folders = [(name, _shipped_folder(name)) for name in SHIPPED]
    return [(name, TaskDirBenchmark(folder).description, len(find_tasks(folder))) for name, folder in folders]


def _shipped_folder(name: str) -> Path:
    return Path(__file__).parent / name


# Which benchmarks can be named.


def known_benchmarks() -> Sequence[BenchmarkView]:
    """Those that come along, those that were added, then the services of the config and the registry file."""
    found = [BenchmarkView(name, description, tasks) for name, description, tasks in shipped()]
    for one in added():
        # A commit or digest is already in a repository's origin.
        revision = "" if one.revision in one.origin else f"@{one.revision[:12]}"
        view = BenchmarkView(one.name, one.description, one.tasks, source=f"added: {one.origin}{revision}")
        found.append(view)
    named: dict[str, BenchmarkView] = {}
    for source, entries in (
        ("registry", values.registry()),
        ("custom", values.mapping("custom_benchmark_services")),
    ):
        for name, entry in entries.items():
            url = entry if isinstance(entry, str) else entry["url"]
            named[name] = BenchmarkView(name, f"service at {url}", None, url, source)
    return [*found, *(named[name] for name in sorted(named))]


# Benchmarks of other people, with what the protocol declares.


class AdaptedBenchmark:
    """A benchmark of other people that declares no capabilities: it has those its methods show."""

    def __init__(self, made: Any) -> None:
        self._made = made
        self.capabilities = BenchmarkCapabilities(turn_ended=getattr(made, "turn_ended", None))
        self.datasets = made.datasets
        self.list_tasks = made.list_tasks
        self.describe = made.describe
        self.setup = made.setup
        self.solution = made.solution
        self.evaluate = made.evaluate
        self.final_score = made.final_score
        self.close = made.close

    @property
    def name(self) -> str:
        return str(self._made.name)

    @property
    def source(self) -> Json:
        return dict(self._made.source)

    @property
    def fraction(self) -> bool:
        return bool(self._made.fraction)


def adapted(made: Any) -> Benchmark:
    """Return a plugin's benchmark as one that declares all of the protocol."""
    benchmark: Benchmark = made if hasattr(made, "capabilities") else AdaptedBenchmark(made)
    return benchmark


# The benchmark of a run that was stored from elsewhere: it knows its name and how to score, nothing else.


class IngestedBenchmark:
    """Tasks that ran elsewhere."""

    capabilities = BenchmarkCapabilities()

    def __init__(self, name: str, *, fraction: bool = True) -> None:
        self.name = name
        self.fraction = fraction

    @property
    def source(self) -> Json:
        return {"kind": INGESTED, "name": self.name}

    async def datasets(self) -> list[str]:
        return ["default"]

    async def list_tasks(self, dataset: str = "default") -> list[str]:
        raise self._nothing_runs(f"listing dataset {dataset}")

    async def describe(self, task_id: str, dataset: str = "default") -> TaskSpec:
        raise self._nothing_runs(f"task {task_id} of {dataset}")

    async def setup(self, task: TaskSpec, sandbox: Sandbox, log: OutputSink, start: Path) -> None:
        _ = sandbox, log, start
        raise self._nothing_runs(f"task {task.id}")

    def solution(self, task: TaskSpec) -> Path | None:
        _ = task
        return None

    async def evaluate(self, grading: Grading) -> Grade:
        raise self._nothing_runs(f"task {grading.task.id}")

    async def final_score(
        self, grades: Mapping[str, Sequence[Grade | None]], dataset: str = "default"
    ) -> FinalScore:
        """Mean over tasks of the mean over their trials; what was not graded counts 0."""
        _ = dataset
        means = [
            sum((grade.score or 0.0) if grade else 0.0 for grade in trials) / len(trials)
            for trials in grades.values()
            if trials
        ]
        ungraded = sum(1 for trials in grades.values() if not any(trials))
        return FinalScore(
            score=sum(means) / len(means) if means else None,
            properties={"tasks": len(grades), "ungraded": ungraded},
        )

    async def close(self) -> None:
        return

    def _nothing_runs(self, what: str) -> UserError:
        return UserError(
            f"{what}: {self.name} was ingested from elsewhere, and nothing of it can run here.",
            cause=INGESTED,
        )
