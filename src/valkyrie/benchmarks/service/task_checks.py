"""What a service may ask for with a task: checked each time it says so, at planning and at every attempt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sandboxes.types import host_folder_of
from sandboxes.values import Limits
from valkyrie.errors import BenchmarkError

if TYPE_CHECKING:
    from benchmark_service.schemas import RetrieveTaskResponse

TASK_LIMIT = 256 * 1024
"""Bytes of one task's description: many of them are kept at hand."""
ID_LIMIT = 1000
_MOST = 1 << 20
"""Cores or gigabytes that somebody can mean."""


def check_ids(name: str, task_ids: list[str]) -> list[str]:
    """The ids a service listed, each once; one that cannot be shown or stored is the service's mistake."""
    for task_id in task_ids:
        if not task_id.strip() or not task_id.isprintable() or len(task_id) > ID_LIMIT:
            raise BenchmarkError(
                f"Benchmark service {name}: {task_id[:80]!r} ({len(task_id)} characters) is no task id; "
                f"one is printable text of at most {ID_LIMIT} characters.",
                cause="service_protocol",
            )
    return list(dict.fromkeys(task_ids))


def check_task(name: str, task_id: str, found: RetrieveTaskResponse) -> None:
    """BenchmarkError for what no sandbox here has, or nobody could mean."""
    problem = next(_problems(found), None)
    if problem:
        raise BenchmarkError(f"Benchmark service {name}: task {task_id!r} {problem}.", cause="task_broken")


def limits_of(found: RetrieveTaskResponse) -> Limits:
    """The task's resources; 0 leaves one to the provider."""
    asked = found.resources
    return Limits(
        cpus=float(asked.vcpu) if asked.vcpu else None,
        memory_mb=asked.memory * 1024 if asked.memory else None,
        disk_mb=asked.disk * 1024 if asked.disk else None,
        gpus=max(0, asked.gpu),
    )


def _problems(found: RetrieveTaskResponse) -> Iterator[str]:
    unheard = {
        "a GPU by its type": found.resources.gpu_type,
        "volumes": found.volumes,
        "sandbox secrets": found.sandbox_secrets,
    }
    asked = [what for what, wanted in unheard.items() if wanted]
    if asked:
        yield f"asks for {' and '.join(asked)}, which no sandbox here has"
    size = len(found.model_dump_json())
    if size > TASK_LIMIT:
        yield f"is described in {size >> 10} KiB; at most {TASK_LIMIT >> 10} are taken"
    if folder := host_folder_of(found.source):
        yield (
            f"asks for a sandbox made from the folder {folder[:200]!r} of this machine, which is not a "
            "service's to choose; it must name an image"
        )
    for what, path in (("problem_path", found.problem_path), ("cwd", found.cwd)):
        if not path.startswith("/") or not path.isprintable():
            yield f"has {what} {path[:200]!r}, which is no absolute path"
    for what in ("vcpu", "memory", "disk"):
        if not 0 <= getattr(found.resources, what) <= _MOST:
            yield f"asks for {what} {getattr(found.resources, what)}, which no machine has"
    if found.agent_timeout is not None and not 0 < found.agent_timeout < float("inf"):
        yield f"has agent_timeout {found.agent_timeout:g}; it must be a number of seconds above 0"
