"""A service as a benchmark: it lists, sets up, grades and scores; we give it sandboxes and an agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sandboxes.errors import SandboxFileNotFoundError
from sandboxes.masker import Masker
from sandboxes.protocol import Sandbox
from sandboxes.types import Command, OutputSink
from sandboxes.values import NetworkPolicy
from valkyrie.benchmarks.protocol import Grading
from valkyrie.benchmarks.service.address import GradingMode, ServiceAddress
from valkyrie.benchmarks.service.answer import read_answer
from valkyrie.benchmarks.service.faults import no_verdict, translated
from valkyrie.benchmarks.service.guard import guard
from valkyrie.benchmarks.service.regrading import StateKeeper, evaluate_in_sandbox
from valkyrie.benchmarks.service.task_checks import check_ids, check_task, limits_of
from valkyrie.benchmarks.service.verdict import check_data, grade_of, result_of
from valkyrie.digest import content_digest
from valkyrie.errors import BenchmarkError, GraderError
from valkyrie.nouns import FinalScore, Grade, Json, TaskSpec, Timeouts, VerifyMode
from valkyrie.secrets.delivery import unspeakable, with_headers

if TYPE_CHECKING:
    from benchmark_service.client import BenchmarkServiceClient
    from benchmark_service.schemas import RetrieveTaskResponse
    from sandboxes.configs import SandboxProviderConfig

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
        """What makes the task what it is; its time and memory may be adjusted under a run."""
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
    """What the agent may reach: everything where nothing is said, else these hosts, or none at all."""
    if run in (None, "*") or run == ["*"]:
        return "public", []
    hosts = [run] if isinstance(run, str) else list(run or [])
    return ("allowlist", hosts) if hosts else ("none", [])


async def _has_text(sandbox: Sandbox, path: str) -> bool:
    """Whether a folder, or a file that is not empty, is there."""
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
