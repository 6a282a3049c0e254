"""The manifest that pins an agent's bundle for a run, and the folder of installed agents."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from benchmark_runner.agent_bundle.bundle import NAME
from benchmark_runner.agent_bundle.placeholders import find_placeholders, substitute
from benchmark_runner.agent_bundle.resolution import RUNTIME_PLACEHOLDERS
from benchmark_runner.client import build_client
from benchmark_runner.llm import without_credentials
from benchmark_runner.sandbox.backend import PROBLEM_PATH, SandboxTaskSpec, problems
from benchmark_runner.sandbox.setup import (
    AgentContract,
    Bundle,
    Setup,
    checked_agent,
    format_run_cmd,
    load_agent,
    load_bundle,
    refuse_host_folder,
    refuse_snapshot,
    resolve_all,
)
from sandboxes.types import ImageSource, Resources

if TYPE_CHECKING:
    from benchmark_service.client import BenchmarkServiceClient
    from benchmark_service.v1_schemas import V1Task


# A benchmark in one file: its service, its tasks, and the agent that answers them, all pinned.

AT_ONCE = 10
_CLOSED = ConfigDict(extra="forbid")


class BundlePin(BaseModel):
    """The agent's files, beside the manifest."""

    model_config = _CLOSED

    file: str = Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]*$")
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")


class AgentPart(BaseModel):
    """How the agent is installed and run."""

    model_config = _CLOSED

    bundle: BundlePin | None = None
    install_cmd: str | None = None
    run_cmd: str
    final_output: str | None = None
    required_env: list[str] = Field(default_factory=list)
    """Names of the variables the agent is given; their values are the environment's."""


class EvalPart(BaseModel):
    """How answers are graded. Other endpoints than these are not spoken to."""

    model_config = _CLOSED

    evaluate_endpoint: Literal["/evaluate-response/"] = "/evaluate-response/"
    score_endpoint: Literal["/final-score/"] = "/final-score/"
    payload_schema: str


class TaskPart(BaseModel):
    """One task, and the sandbox it needs."""

    model_config = _CLOSED

    id: str = Field(min_length=1)
    question: str
    timeout: float | None = None
    image: str | None = None
    """None: whatever the provider's sandboxes stand on."""
    resources: Resources | None = None
    cwd: str = "/workspace"
    problem_path: str = PROBLEM_PATH

    @field_validator("cwd", "problem_path")
    @classmethod
    def _absolute(cls, path: str) -> str:
        if not path.startswith("/") or ".." in path.split("/"):
            raise ValueError("must be an absolute path in the sandbox, without `..`")
        return path

    def spec(self) -> SandboxTaskSpec:
        """The same for the runner."""
        source = ImageSource(image=self.image) if self.image else None
        return SandboxTaskSpec(
            source, self.resources, self.cwd, self.timeout, self.question, self.problem_path
        )


class ServicePart(BaseModel):
    """Who grades."""

    model_config = ConfigDict(extra="ignore")

    url: str


class DatasetPart(BaseModel):
    """What is asked."""

    model_config = ConfigDict(extra="ignore")

    name: str


class VersionsPart(BaseModel):
    """What a manifest was made from."""

    model_config = ConfigDict(extra="ignore")

    framework: str | None = None
    service: str | None = None
    dataset: str | None = None
    dataset_fingerprint: str | None = None


class Manifest(BaseModel):
    """The whole file."""

    model_config = _CLOSED

    benchmark: str = Field(pattern=f"^{NAME.pattern}$")
    service: ServicePart
    dataset: DatasetPart
    agent: AgentPart
    eval: EvalPart
    versions: VersionsPart = Field(default_factory=VersionsPart)
    tasks: list[TaskPart] = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _of_earlier_form(cls, given: Any) -> Any:
        agent = given.get("agent") if isinstance(given, dict) else None
        return _converted(given, agent) if isinstance(agent, dict) and "contract" in agent else given

    @field_validator("tasks")
    @classmethod
    def _each_once(cls, tasks: list[TaskPart]) -> list[TaskPart]:
        if len({task.id for task in tasks}) != len(tasks):
            raise ValueError("two tasks have the same id")
        return tasks

    @model_validator(mode="after")
    def _runnable(self) -> Manifest:
        for task in self.tasks:
            refuse_snapshot(task.spec().source, task.id)
            refuse_host_folder(task.spec().source, task.id)
        self.contract()
        return self

    def contract(self) -> AgentContract:
        """The agent's contract."""
        agent = self.agent
        try:
            return AgentContract(
                name=self.benchmark,
                run_cmd=agent.run_cmd,
                install_cmd=agent.install_cmd,
                final_output=agent.final_output,
                required_env=agent.required_env,
            )
        except ValidationError as error:
            raise ValueError(f"This is no agent's contract: {problems(error)}") from None

    def fingerprint(self) -> str:
        """Names what is asked, and where it is answered."""
        tasks = [task.model_dump(mode="json") for task in sorted(self.tasks, key=lambda task: task.id)]
        return hashlib.sha256(json.dumps(tasks, sort_keys=True).encode()).hexdigest()

    def bundle(self, folder: Path) -> Bundle | None:
        """The agent's files, which lie in `folder`; ValueError when they are not those that were pinned."""
        pin = self.agent.bundle
        return load_bundle(folder / pin.file, pin.sha256) if pin else None

    def setup(self, folder: Path, **options: Any) -> Setup:
        """Return what a run of this benchmark needs."""
        return Setup(
            self.contract(),
            self.bundle(folder),
            specs={task.id: task.spec() for task in self.tasks},
            benchmark=self.benchmark,
            payload_schema=self.eval.payload_schema,
            fingerprint=self.fingerprint(),
            **options,
        )


def _converted(given: dict[str, Any], agent: dict[str, Any]) -> dict[str, Any]:
    """A manifest that has one image for all tasks beside a `contract`, and versions in other places."""
    parts = (agent["contract"], given.get("service"), given.get("versions"))
    contract, service, versions = map(_mapping, parts)
    shared = {key: agent.get(key) for key in ("image", "resources", "cwd") if agent.get(key) is not None}
    tasks = given.get("tasks")
    return {
        **given,
        "agent": {
            **{key: value for key, value in contract.items() if key != "secrets"},
            "required_env": list(_mapping(contract.get("secrets"))),
        },
        "versions": {
            "framework": service.get("framework_version"),
            "service": service.get("service_version") or versions.get("benchmark_service"),
            "dataset": versions.get("dataset"),
        },
        "tasks": [
            {**shared, **{key: value for key, value in task.items() if value is not None}}
            if isinstance(task, dict)
            else task
            for task in (tasks if isinstance(tasks, list) else [])
        ],
    }


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def load_manifest(path: Path) -> Manifest:
    """A manifest file, of this form or the earlier one; ValueError says what is wrong with it."""
    return read_yaml(path, Manifest, "a benchmark's manifest")


def preflight(manifest: Manifest, folder: Path, model: str) -> None:
    """ValueError for all that would stop a run and can be known before: files, variables, placeholders."""
    checked_agent(manifest.setup(folder), model)


def _with_defaults(contract: AgentContract) -> str:
    """Return the command with the contract's own parameters; a manifest leaves only the model open."""
    model = contract.parameters.get("model")
    choices = model.allowed if model else []
    values = resolve_all(contract, choices[0] if choices else "any", {}).values
    command = substitute(contract.run_cmd, {name: text for name, text in values.items() if name != "model"})
    format_run_cmd(command, {"model": "any"})
    later = (*RUNTIME_PLACEHOLDERS, "model")
    if len(find_placeholders(command, later)) != len(find_placeholders(contract.run_cmd, later)):
        raise ValueError(
            f"contract {contract.name}: a default reads like a placeholder; a run would fill it."
        )
    return command


async def generate_manifest(
    *,
    client: BenchmarkServiceClient,
    service_url: str,
    dataset: str,
    contract: AgentContract,
    benchmark: str,
    bundle: BundlePin | None = None,
    required_env: Sequence[str] = (),
    payload_schema: str | None = None,
) -> Manifest:
    """The manifest of a service's dataset and an agent. ValueError for what nobody else could run."""
    listed = (await client.list_tasks(dataset)).tasks
    if not listed:
        raise ValueError(f"dataset {dataset!r} has no tasks.")
    gate = asyncio.Semaphore(AT_ONCE)
    async with asyncio.TaskGroup() as group:
        version = group.create_task(client.version(dataset))
        parts = [group.create_task(_task_part(client, dataset, task, gate)) for task in listed]
    made = Manifest(
        benchmark=benchmark,
        service=ServicePart(url=service_url),
        dataset=DatasetPart(name=dataset),
        agent=AgentPart(
            bundle=bundle,
            install_cmd=contract.install_cmd,
            run_cmd=_with_defaults(contract),
            final_output=contract.final_output,
            required_env=list(dict.fromkeys((*contract.secrets, *contract.required_env, *required_env))),
        ),
        eval=EvalPart(payload_schema=payload_schema or f"{benchmark}.text.v1"),
        tasks=[one.result() for one in parts],
    )
    said = version.result()
    made.versions = VersionsPart(
        framework=said.framework_version,
        service=said.service_version,
        dataset=said.dataset_version,
        dataset_fingerprint=made.fingerprint(),
    )
    return made


async def _task_part(
    client: BenchmarkServiceClient, dataset: str, task: V1Task, gate: asyncio.Semaphore
) -> TaskPart:
    """A task as the manifest pins it. ValueError where only its owner has the sandbox it needs."""
    async with gate:
        said = await client.retrieve_task(task.id, dataset=dataset)
    refuse_snapshot(said.source, task.id)
    refuse_host_folder(said.source, task.id)
    if said.source is not None and said.source.type not in ("image", "host"):
        raise ValueError(f"task {task.id} needs a sandbox of type {said.source.type}, not of an image.")
    return TaskPart(
        id=task.id,
        question=task.question,
        timeout=said.agent_timeout if said.agent_timeout is not None else task.timeout,
        image=said.source.image if isinstance(said.source, ImageSource) else None,
        resources=said.resources,
        cwd=said.cwd,
        problem_path=said.problem_path,
    )


async def write_manifest(
    output: Path,
    *,
    service_url: str,
    dataset: str,
    contract: Path,
    benchmark: str,
    required_env: Sequence[str] = (),
    agent_bundle: Path | None = None,
) -> Manifest:
    """Write a manifest, and the agent's bundle beside it."""
    loaded, bundle = load_agent(contract, agent_bundle)
    pin = BundlePin(file=f"{benchmark}.bundle.zip", sha256=bundle.sha256) if bundle else None
    async with build_client(service_url) as client:
        made = await generate_manifest(
            client=client,
            service_url=without_credentials(service_url),
            dataset=dataset,
            contract=loaded,
            benchmark=benchmark,
            bundle=pin,
            required_env=required_env,
        )
    if bundle is not None and pin is not None:
        write_whole(output.parent / pin.file, bundle.content)
    write_yaml(output, made.model_dump(mode="json"))
    return made


STORE = Path("benchmarks")
SUFFIX = ".manifest.yaml"


def manifest_path(name: str, store: Path = STORE) -> Path:
    """Return where a benchmark's manifest lies; ValueError for what is no benchmark's name."""
    if not NAME.fullmatch(name):
        raise ValueError(f"{name!r} is no benchmark's name: letters, digits, `.`, `_` and `-`.")
    return store / f"{name}{SUFFIX}"


def load_installed(name: str, store: Path = STORE) -> Manifest | None:
    """An installed benchmark, if there is one of that name."""
    path = manifest_path(name, store)
    return load_manifest(path) if path.is_file() else None


def list_installed(store: Path = STORE) -> list[Manifest]:
    """Return all installed benchmarks, by name."""
    return [load_manifest(path) for path in sorted(store.glob(f"*{SUFFIX}"))]


def installed_names(store: Path = STORE) -> list[str]:
    """Their names alone."""
    return sorted(path.name.removesuffix(SUFFIX) for path in store.glob(f"*{SUFFIX}"))


def install_manifest(manifest: Manifest, folder: Path, store: Path = STORE) -> Path:
    """Keep a manifest, and its bundle from `folder`, in place of an earlier one of that name."""
    bundle = manifest.bundle(folder)
    if bundle is not None:
        pin = BundlePin(file=f"{manifest.benchmark}.bundle.zip", sha256=bundle.sha256)
        write_whole(store / pin.file, bundle.content)
        manifest = manifest.model_copy(update={"agent": manifest.agent.model_copy(update={"bundle": pin})})
    path = manifest_path(manifest.benchmark, store)
    write_yaml(path, manifest.model_dump(mode="json"))
    return path


def pin_diff(old: Manifest, new: Manifest) -> list[str]:
    """Return what is pinned otherwise in another manifest of the benchmark, in words."""
    before, now = _pins(old), _pins(new)
    changed = (name for name in now if before[name] != now[name])
    return [f"{name}: {_short(before[name])} → {_short(now[name])}" for name in changed]


def image_summary(manifest: Manifest) -> str:
    """The image of the tasks, or how many there are."""
    images = {task.image for task in manifest.tasks}
    if len(images) > 1:
        return f"{len(images)} images"
    return _short(images.pop()) if images != {None} else "no image"


def _pins(manifest: Manifest) -> dict[str, str | None]:
    agent = manifest.agent
    return {
        "service.url": manifest.service.url,
        "dataset.name": manifest.dataset.name,
        "agent.bundle": agent.bundle.sha256 if agent.bundle else None,
        "agent.install_cmd": agent.install_cmd,
        "agent.run_cmd": agent.run_cmd,
        "agent.final_output": agent.final_output,
        "agent.required_env": ", ".join(agent.required_env),
        "eval.payload_schema": manifest.eval.payload_schema,
        "versions.framework": manifest.versions.framework,
        "versions.service": manifest.versions.service,
        "versions.dataset": manifest.versions.dataset,
        "tasks": f"{len(manifest.tasks)} tasks, {manifest.fingerprint()[:12]}",
        "images": image_summary(manifest),
    }


def _short(value: str | None) -> str:
    if value is None:
        return "nothing"
    text = re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1", value)
    return text if len(text) <= 100 else f"{text[:99]}…"


# YAML from elsewhere, read within bounds, and written so that a reader never sees half of it.

Model = TypeVar("Model", bound=BaseModel)

LARGEST_YAML = 64 * 1024 * 1024


def read_yaml(path: Path, model: type[Model], what: str) -> Model:
    """The file as a model; ValueError names the file and what is wrong with it."""
    try:
        if path.stat().st_size > LARGEST_YAML:
            raise ValueError(f"{path} is too large for {what} (more than {LARGEST_YAML >> 20} MiB).")
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text.") from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        # A few lines of aliases of aliases stand for more than there is memory.
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=loader)):
            raise ValueError(f"{path} uses YAML aliases (`*name`); write the values out.")
        return model.model_validate(yaml.load(text, Loader=loader))  # noqa: S506 - a safe loader
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path} is no YAML: {' '.join(str(error).split())[:300]}") from None
    except ValidationError as error:
        raise ValueError(f"{path} is not {what}: {problems(error)}") from None


def write_yaml(path: Path, values: Mapping[str, Any]) -> None:
    """Write values; the file appears whole or not at all."""

    class Plain(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        def ignore_aliases(self, _data: Any) -> bool:
            return True  # what is read back has none

    text = yaml.dump(dict(values), Dumper=Plain, sort_keys=False, allow_unicode=True)
    write_whole(path, text.encode())


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        part.write_bytes(content)
        os.replace(part, path)  # noqa: PTH105
    except BaseException:
        part.unlink(missing_ok=True)
        raise
