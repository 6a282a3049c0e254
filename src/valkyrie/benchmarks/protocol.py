"""What a benchmark is to the engine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from sandboxes.protocol import Sandbox
from sandboxes.types import OutputSink
from valkyrie.nouns import ExitReason, FinalScore, Grade, Json, TaskSpec

if TYPE_CHECKING:
    from valkyrie.trajectory.transcript import Transcript


async def _keep_nothing(_saved: Json) -> None:
    return


@dataclass(frozen=True, slots=True)
class Grading:
    """What there is to grade: a sandbox with the agent's work in it, or what an earlier attempt saved."""

    task: TaskSpec
    place: Sandbox | None
    """None when grading goes on from `saved`; only benchmarks that call `save` see that."""
    log: OutputSink
    evidence: Path
    """Files worth keeping (test output, reward files) are written below this folder."""
    final_output: str | None = None
    """Where in the sandbox the agent's contract says its answer is."""
    saved: Json | None = None
    save: Callable[[Json], Awaitable[None]] = _keep_nothing
    """Commits from what grading can go on without the sandbox; a retry then does not run the agent again."""
    agent: Path | None = None
    """A folder of the host with what the agent's own log said (`trajectory.json`, …); may not exist."""
    told: Transcript | None = None
    """What the agent did, where it told that itself."""
    tokens: tuple[int, int] | None = None
    """Input and output tokens, where the agent reported them beside what it did."""
    start: Path | None = None
    """The folder `setup` was given; None when grading goes on from `saved`."""
    exit_code: int | None = None
    exit_reason: ExitReason | None = None
    seconds: float | None = None
    """How long the agent worked."""
    k: int = 0
    """Which trial of its task this is."""
    earlier: Sequence[Grade] = ()
    """Of a task's step: what the steps before it got. The grade of the last one tried is the task's."""
    control: bool = False
    """No agent worked here: the task as it was set up. Does grading give a verdict at all?"""

    renew: Callable[[], Awaitable[Sandbox]] | None = None
    """Replaces the sandbox by one as this was at first: what a program of grading did there is gone. None
    where there is only this one."""

    @property
    def sandbox(self) -> Sandbox:
        """The sandbox, every process of the agent dead by now."""
        assert self.place is not None, "a benchmark that saved nothing is always given the sandbox"
        return self.place


class Benchmark(Protocol):
    """A named source of tasks that also sets a task up, grades it, and computes the final score."""

    @property
    def name(self) -> str:
        """What people call it."""
        ...

    @property
    def source(self) -> Json:
        """Plain data from which `benchmarks.open_frozen` makes the same one again, in another process."""
        ...

    @property
    def fraction(self) -> bool:
        """Scores are 0..1 and may be printed as per cent, with an interval."""
        ...

    async def datasets(self) -> list[str]:
        """Names of its datasets; `default` first."""
        ...

    async def list_tasks(self, dataset: str = "default") -> list[str]:
        """Task ids in their own order."""
        ...

    async def describe(self, task_id: str, dataset: str = "default") -> TaskSpec:
        """One task; cheap the second time. Raises BenchmarkError when the task is broken."""
        ...

    async def setup(self, task: TaskSpec, sandbox: Sandbox, log: OutputSink, start: Path) -> None:
        """Prepare the sandbox for the agent; nothing that helps it cheat may enter.

        Called for each step of a task that has several: nothing of an earlier grading may be left then.

        `start`: a folder of the host, to be made where it is needed and gone with the attempt, for what
        grading has to know of the beginning. No agent sees it.
        """
        ...

    def solution(self, task: TaskSpec) -> Path | None:
        """The folder that holds the task's own `solve.sh`, for the oracle."""
        ...

    async def evaluate(self, grading: Grading) -> Grade:
        """Grade what the agent left."""
        ...

    async def final_score(
        self, grades: Mapping[str, Sequence[Grade | None]], dataset: str = "default"
    ) -> FinalScore:
        """The benchmark's own aggregate; one entry per planned task, one item per trial, None if ungraded."""
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
