"""A service as a benchmark: it lists, sets up, grades and scores; we give it sandboxes and an agent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandboxes.errors import SandboxFileNotFoundError
from sandboxes.masker import Masker
from sandboxes.protocol import NetworkPolicy, Sandbox, SandboxLimits
from sandboxes.types import Command, OutputSink, host_folder_of
from valkyrie.benchmarks.protocol import BenchmarkCapabilities, Grading
from valkyrie.benchmarks.service.address import GradingMode, ServiceAddress, guard
from valkyrie.benchmarks.service.results import (
    StateKeeper,
    check_data,
    evaluate_in_sandbox,
    grade_of,
    no_verdict,
    result_of,
    translated,
)
from valkyrie.domain import FinalScore, Grade, Json, TaskSpec, Timeouts, VerifyMode, content_digest
from valkyrie.errors import AgentOutputError, BenchmarkError, GraderError
from valkyrie.secrets.delivery import unspeakable, with_headers

if TYPE_CHECKING:
    from benchmark_service.client import BenchmarkServiceClient
    from benchmark_service.schemas import RetrieveTaskResponse
    from sandboxes.types import SandboxProviderConfig


ANSWER_LIMIT = 4 * 1024 * 1024
GENERATION = "generation.json"
"""What a benchmark runner leaves of a task, in a folder of the task's own."""
RUN = "run_config.json"
"""What makes a folder that of a runner's run, also when there is no answer in it."""
_REASON_LIMIT = 500


async def read_answer(sandbox: Sandbox, final_output: str | None, log: OutputSink) -> str:
    """The text at `final_output`: a file, a folder of one, or the folder of a benchmark runner's run.

    An agent that left none said nothing.
    """
    path = final_output
    if path is not None and await sandbox.is_folder(path):
        path = await _only_file(sandbox, path)
    if path is None:
        log("stderr", f"the agent left no answer at {final_output or 'any final_output'}: graded as empty\n")
        return ""
    pieces, size = [], 0
    try:
        async for piece in sandbox.stream_download(path):
            size += len(piece)
            if size > ANSWER_LIMIT:
                raise AgentOutputError(f"{path} is no answer: it has more than {ANSWER_LIMIT >> 20} MiB.")
            pieces.append(piece)
    except SandboxFileNotFoundError:
        log("stderr", f"the agent left no answer at {path}: graded as empty\n")
        return ""
    text = b"".join(pieces).decode("utf-8", "replace")
    return _generated(text, path) if path != final_output and path.endswith(f"/{GENERATION}") else text


async def _only_file(sandbox: Sandbox, folder: str) -> str | None:
    below = folder.rstrip("/")
    found = await sandbox.list_files(f"{below}/*/{GENERATION}")
    if not found:
        found = await sandbox.list_files(f"{below}/*")
        if f"{below}/{RUN}" in found:
            return None
    if len(found) > 1:
        raise AgentOutputError(
            f"{folder} holds {len(found)} files; a text-graded benchmark wants one answer. "
            "Let final_output name the file."
        )
    return found[0] if found else None


def _generated(text: str, path: str) -> str:
    """The answer in a runner's generation. One that failed is no answer, and not to be graded as one."""
    try:
        generation = json.loads(text)
    except (ValueError, RecursionError):
        generation = None
    if not isinstance(generation, dict):
        raise AgentOutputError(f"{path} is no JSON object, so there is no answer in it.")
    if generation.get("status") == "error":
        reason = str(generation.get("error") or "it does not say why")[:_REASON_LIMIT]
        raise AgentOutputError(f"The runner could not answer: {reason}")
    answer = generation.get("data", generation.get("answer"))
    return answer if isinstance(answer, str) else "" if answer is None else json.dumps(answer)


# What a service may ask for with a task: checked each time it says so, at planning and at every attempt.

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


def limits_of(found: RetrieveTaskResponse) -> SandboxLimits:
    """The task's resources; 0 leaves one to the provider."""
    asked = found.resources
    return SandboxLimits(
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


# A service as a benchmark: it lists, sets up, grades and scores; we give it sandboxes and an agent.

SETUP_TIMEOUT_S = 1800.0
GRADE_TIMEOUT_S = 7200.0
CALL_TIMEOUT_S = 60.0
RESUMED_AT_ONCE = 2
"""A service that is away longer is waited for without holding a slot: the trial is tried again later."""
_VERSIONS = {"framework_version", "service_name", "service_version", "dataset_version"}
_VERSION_CHARS = 200
_FAILED = frozenset({"error", "failed", "failure"})


class ServiceBenchmark:
    """Speaks to one service through its client; nothing is known of it before it is asked."""

    fraction = False

    def __init__(
        self,
        address: ServiceAddress,
        headers: Mapping[str, str] | None = None,
        *,
        access: SandboxProviderConfig | None = None,
        grading: GradingMode | None = None,
        versions: Json | None = None,
    ) -> None:
        self.address = address
        self.headers = dict(headers or {})
        self._access = access
        self._grading = grading or address.grading
        self._versions = versions
        self._opened: dict[float, BenchmarkServiceClient] = {}

    @property
    def name(self) -> str:
        return self.address.name

    @property
    def capabilities(self) -> BenchmarkCapabilities:
        return BenchmarkCapabilities(headers=self.headers)

    @property
    def grading(self) -> GradingMode:
        """What is graded, the agent's answer or the sandbox it leaves; known after the first listing."""
        return self._grading or "sandbox"

    @property
    def source(self) -> Json:
        return {
            "kind": "service",
            "name": self.name,
            "url": self.address.url,
            "where": self.address.where,
            "grading": self.grading,
            "versions": self._versions or {},
            "headers": sorted(self.headers),
            "reaches_sandboxes": "loopback" if self.address.on_loopback else "public",
            **({"reach": self.address.reach} if self.address.reach else {}),
        }

    async def datasets(self) -> list[str]:
        """Services have no list of their datasets; `default` is the one they all have."""
        return ["default"]

    async def list_tasks(self, dataset: str = "default") -> list[str]:
        with translated(self.name, planning=True):
            await self._meet(dataset)
            listed = await self._client().verify_task_ids(dataset=dataset)
        return check_ids(self.name, listed.task_ids)

    async def _meet(self, dataset: str) -> None:
        """Ask the service what it is, once: which version, and what it grades."""
        if self._versions is not None:
            return
        await self._client().health_check(retry=False)  # one that is down is named at once
        said = await self._client().version(dataset=dataset)
        spoken = said.model_dump(include=_VERSIONS, exclude_none=True)
        # Kept with the run: it may be neither long nor the credential that came with the question.
        masker = Masker(unspeakable(with_headers(self.headers)))
        self._versions = {what: masker.text(text)[:_VERSION_CHARS] for what, text in spoken.items()}
        if self._grading is None:
            self._grading = "text" if said.eval_mode == "text" else "sandbox"

    async def describe(self, task_id: str, dataset: str = "default") -> TaskSpec:
        with translated(self.name):
            found = await self._client().retrieve_task(task_id, dataset=dataset)
        check_task(self.name, task_id, found)
        network, allowed = _network(found.egress.run)
        return TaskSpec(
            id=task_id,
            digest=self._digest(task_id, dataset, found),
            instruction="",
            problem_path=found.problem_path,
            cwd=found.cwd,
            image=found.docker_image,
            source=found.source,
            limits=limits_of(found),
            network=network,
            timeouts=Timeouts(setup=SETUP_TIMEOUT_S, agent=found.agent_timeout, grade=GRADE_TIMEOUT_S),
            install_first=found.agent_install_order == "before_setup"
            and "agent_install_order" in found.model_fields_set,
            verify=self._verify(found),
            grading_runs=self.grading != "text",
            metadata={
                "dataset": dataset,
                "allowed_hosts": allowed,
                **({"family": found.family} if found.family else {}),
            },
        )

    def _verify(self, found: RetrieveTaskResponse) -> VerifyMode:
        """A service grades in the sandbox the agent left, unless it says that a fresh one will do.

        A text answer is read by host code, whatever ran in the sandbox.
        """
        fresh = self.grading == "text" or found.grading_sandbox == "fresh"
        return VerifyMode.FRESH if fresh else VerifyMode.SHARED

    def _digest(self, task_id: str, dataset: str, found: RetrieveTaskResponse) -> str:
        """Return what makes the task what it is; its time and memory may be adjusted under a run."""
        fresh = {"grading_sandbox": "fresh"} if found.grading_sandbox == "fresh" else {}
        return content_digest(
            {
                **fresh,
                "service": self.name,
                "dataset": [dataset, (self._versions or {}).get("dataset_version")],
                "task": task_id,
                "source": found.source.model_dump() if found.source else None,
                "paths": [found.problem_path, found.cwd],
                "grading": self.grading,
            }
        )

    async def setup(self, task: TaskSpec, sandbox: Sandbox, log: OutputSink, start: Path) -> None:
        _ = start
        with translated(self.name):
            done = await self._client().setup_task(
                task.id,
                sandbox.id,
                sandbox_provider=self._access,
                on_message=_lines(log),
                on_error=_lines(log, "error: "),
                dataset=task.metadata["dataset"],
            )
        if done.status.lower() in _FAILED:
            raise BenchmarkError(
                f"Benchmark service {self.name}: setting up ended with status {done.status!r}.",
                cause="task_setup_failed",
            )
        if not await _has_text(sandbox, task.problem_path):
            raise BenchmarkError(
                f"Benchmark service {self.name}: setting up task {task.id!r} left no problem statement at "
                f"{task.problem_path}, so that no agent could know what to do.",
                cause="task_setup_failed",
            )

    def solution(self, task: TaskSpec) -> Path | None:
        _ = task
        return None

    async def evaluate(self, grading: Grading) -> Grade:
        with no_verdict(), translated(self.name):
            if self.grading == "text":
                result = await self._grade_text(grading)
            elif grading.saved is not None:
                result = await self._resume(grading, grading.saved["state"])
            else:
                result = await evaluate_in_sandbox(self._client(), self._access, grading)
            return grade_of(result)

    async def _grade_text(self, grading: Grading) -> Any:
        """Have the agent's answer graded; it is safe before it is sent, so no retry needs the agent."""
        if grading.control:
            answer = ""
        elif grading.saved is not None:
            answer = grading.saved["answer"]
        else:
            answer = await read_answer(grading.sandbox, grading.final_output, grading.log)
            await grading.save({"answer": answer})
        client = self._client(grading.task.timeouts.grade or GRADE_TIMEOUT_S)
        return await client.evaluate_response(
            grading.task.id, answer, dataset=grading.task.metadata["dataset"]
        )

    async def _resume(self, grading: Grading, state: Json) -> Any:
        return await self._client().resume_evaluation(
            grading.task.id,
            state,
            sandbox_provider=self._access,
            on_message=_lines(grading.log),
            on_error=_lines(grading.log, "error: "),
            on_resume_state=StateKeeper(grading),
            dataset=grading.task.metadata["dataset"],
        )

    async def final_score(
        self, grades: Mapping[str, Sequence[Grade | None]], dataset: str = "default"
    ) -> FinalScore:
        """The service's own aggregate; of several trials a task, the mean over one aggregate per trial."""
        rounds = [
            {task: trials[k] for task, trials in grades.items() if k < len(trials)}
            for k in range(max(map(len, grades.values()), default=0))
        ]
        found = [await self._score(one, dataset) for one in rounds]
        if len(found) == 1:
            return found[0]
        scores = [one.score for one in found if one.score is not None]
        each = [{"final_score": one.score, "properties": one.properties} for one in found]
        return FinalScore(sum(scores) / len(scores) if scores else None, {"trials": each})

    async def _score(self, grades: Mapping[str, Grade | None], dataset: str) -> FinalScore:
        # What ended without a result of the service, and counts 0 here, is for it a task without one.
        results = {
            task_id: result_of(grade) if grade and (grade.result or not grade.cause) else None
            for task_id, grade in grades.items()
        }
        with translated(self.name):
            said = await self._client().final_score(results, dataset=dataset)
        if said.final_score != said.final_score or said.final_score in (float("inf"), float("-inf")):
            raise GraderError(f"Benchmark service {self.name}: its final score is {said.final_score}.")
        check_data("final score's metadata", said.metadata)
        properties = said.metadata if isinstance(said.metadata, dict) else {"metadata": said.metadata}
        return FinalScore(score=said.final_score, properties=properties)

    def _client(self, timeout: float = CALL_TIMEOUT_S) -> BenchmarkServiceClient:
        if timeout not in self._opened:
            from benchmark_service.client import BenchmarkServiceClient

            self._opened[timeout] = BenchmarkServiceClient(
                self.address.url,
                self.headers,
                timeout=timeout,
                resume_attempts=RESUMED_AT_ONCE,
                resolve=guard(self.address.reach) if self.address.reach else None,
            )
        return self._opened[timeout]

    async def close(self) -> None:
        while self._opened:
            await self._opened.popitem()[1].close()


def _network(run: str | list[str] | None) -> tuple[NetworkPolicy, list[str]]:
    """Return what the agent may reach: everything where nothing is said, else these hosts, or none at all."""
    if run in (None, "*") or run == ["*"]:
        return "public", []
    hosts = [run] if isinstance(run, str) else list(run or [])
    return ("allowlist", hosts) if hosts else ("none", [])


async def _has_text(sandbox: Sandbox, path: str) -> bool:
    """Return whether a folder, or a file that is not empty, is there."""
    if await sandbox.is_folder(path):
        return True
    try:
        async for piece in sandbox.stream_download(path):
            if piece.strip():
                return True
    except SandboxFileNotFoundError:
        # A link is as good: the agent can read it.
        return await sandbox.run(Command(("/bin/sh", "-c", '[ -s "$1" ]', "sh", path))) == 0
    return False


def _lines(log: OutputSink, before: str = "") -> Any:
    """Messages as lines of the attempt's log."""

    def write(text: str) -> None:
        log("stderr" if before else "stdout", f"{before}{text}" + ("" if text.endswith("\n") else "\n"))

    return write
