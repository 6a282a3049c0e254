"""One attempt against a sandbox that does nothing, when what surrounds it fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sandboxes.errors import SandboxDiedError, SandboxNotFoundError
from sandboxes.null import NullProvider
from sandboxes.protocol import Sandbox
from sandboxes.types import OutputSink, SandboxQuery
from valkyrie.agents.protocol import AgentExit, AgentTrial, OutputArtifact
from valkyrie.artifact_store.disk import DiskArtifacts
from valkyrie.artifact_store.logs import LONGEST, Transcripts
from valkyrie.benchmarks.protocol import Grading
from valkyrie.domain import ExitReason, Grade, Json, TaskSpec, TrialState
from valkyrie.errors import AgentOutputError, LeaseLostError
from valkyrie.plan import Settings, trial_digest
from valkyrie.store.layout import RunFolder
from valkyrie.store.leases import Leased
from valkyrie.testing.null import NapAgent, NullBenchmark
from valkyrie.trajectory.transcript import Transcript
from valkyrie.trial import attempt as leaving
from valkyrie.trial.context import RunContext
from valkyrie.trial.lifecycle import AttemptEnding, run_attempt
from valkyrie.trial.storage import RemoteStorage

SECRET = "secret-value-123"


class Benchmark(NullBenchmark):
    async def evaluate(self, grading: Grading) -> Grade:
        grading.evidence.mkdir(parents=True)
        (grading.evidence / "verdict").write_text("good")
        return Grade(1.0, True)


class Writes(NapAgent):
    """Leaves files, and says where they are kept."""

    def __init__(self, files: dict[str, str], *artifacts: OutputArtifact) -> None:
        self.files = files
        self.output_artifacts = artifacts

    async def run(self, trial: AgentTrial) -> AgentExit:
        for path, text in self.files.items():
            await trial.sandbox.upload_file(path, text.encode())
        return AgentExit(0)


class Journal:
    """Commits nothing; refuses a phase if told to."""

    refused: TrialState | None = None

    async def enter(self, leased: Leased, before: TrialState, after: TrialState) -> None:
        if after is self.refused:
            raise LeaseLostError("taken over")

    async def save(self, leased: Leased, saved: Json) -> None:
        self.saved = saved


class Provider(NullProvider):
    """Its sandboxes end as the test says."""

    on_delete: Callable[[], object] | None = None

    async def delete_sandbox(self, sandbox_id: str) -> None:
        if self.on_delete:
            found = self.on_delete()
            if isinstance(found, asyncio.Event):
                await found.wait()
        await super().delete_sandbox(sandbox_id)


def make_context(tmp_path: Path, agent: NapAgent | None = None) -> RunContext:
    context = RunContext(
        run_id="0123456789",
        dataset="3",
        model=None,
        benchmark=Benchmark(),
        agent=agent or NapAgent(),
        provider=Provider(tmp_path / "sandboxes"),
        settings=Settings(provider="null"),
        keep_sandbox=False,
        max_attempts=None,
        secrets={},
        folder=RunFolder(tmp_path / "run"),
        home="here",
    )
    context.give_secrets({"KEY": SECRET})
    return context


async def attempt(
    context: RunContext,
    journal: Journal | None = None,
    dataset: str = "3",
    *,
    number: int = 1,
    saved: Json | None = None,
) -> AttemptEnding:
    context.dataset = dataset
    task = await context.benchmark.describe("task-1", dataset)
    digest = trial_digest(task, 0, agent_digest=context.agent.digest, model=None, settings=context.settings)
    leased = Leased(1, context.run_id, task.id, 0, digest, number, 0, 1, 0.0, 0, saved)
    return await run_attempt(leased, context, journal or Journal())


def kept(context: RunContext, number: int = 1) -> dict[str, str]:
    folder = context.folder.attempt("task-1", 0, number)
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_text() for path in files}


def is_tidy(context: RunContext) -> bool:
    return not context.folder.drafts.exists() or not list(context.folder.drafts.iterdir())


async def test_a_graded_attempt_keeps_its_evidence(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    ending = await attempt(context)
    assert ending.grade is not None and ending.failure is None
    assert kept(context) == {"grading/verdict": "good"}
    assert is_tidy(context)


@pytest.mark.parametrize("trouble", [OSError("stuck mount"), SandboxNotFoundError("gone"), asyncio.Event()])
async def test_a_sandbox_that_cannot_be_removed_costs_no_grade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: object
) -> None:
    def fail() -> object:
        if isinstance(trouble, Exception):
            raise trouble
        return trouble

    monkeypatch.setattr(leaving, "REMOVE_TIMEOUT_S", 0.05)
    context = make_context(tmp_path)
    assert isinstance(context.provider, Provider)
    context.provider.on_delete = fail
    assert (await attempt(context)).grade is not None
    assert "could not be removed" in context.folder.log("task-1", 0, 1).read_text()


class Tells(NapAgent):
    """Tells what it did, and leaves no file."""

    def __init__(self, output: str) -> None:
        self.output = output

    async def run(self, trial: AgentTrial) -> AgentExit:
        return AgentExit(0, told=Transcript(self.output))


async def test_a_short_story_is_kept_with_the_others_and_holds_no_secret(tmp_path: Path) -> None:
    context = make_context(tmp_path, Tells(f"the key is {SECRET}"))
    assert (await attempt(context)).grade == Grade(1.0, True, confirmed=True, score_confirmed=1.0)
    told = Transcripts(context.folder.transcripts).read(("task-1", 0, 1))
    assert told is not None and told["id"] == "task-1#0" and told["output"].startswith("the key is ")
    assert SECRET not in context.folder.transcripts.read_text()
    assert not (context.folder.attempt("task-1", 0, 1) / "agent").exists()


async def test_a_long_story_has_a_file_of_its_own(tmp_path: Path) -> None:
    context = make_context(tmp_path, Tells("word " * LONGEST))
    assert (await attempt(context)).grade == Grade(1.0, True, confirmed=True, score_confirmed=1.0)
    kept = context.folder.attempt("task-1", 0, 1) / "agent/transcript.json"
    assert json.loads(kept.read_text())["output"] == "word " * LONGEST
    assert not context.folder.transcripts.exists()


async def test_a_story_that_other_machines_fetch_is_a_file(tmp_path: Path) -> None:
    context = make_context(tmp_path, Tells("few words"))
    context.away = RemoteStorage(DiskArtifacts(tmp_path / "shared"))
    assert (await attempt(context)).grade == Grade(1.0, True, confirmed=True, score_confirmed=1.0)
    (shared,) = (tmp_path / "shared").glob("**/attempts/**/agent/transcript.json")
    assert json.loads(shared.read_text())["output"] == "few words"


async def test_outputs_that_cannot_be_kept_are_a_failure_not_a_crash(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    place = context.folder.attempt("task-1", 0, 1)
    place.parent.mkdir(parents=True)
    place.write_text("in the way")
    ending = await attempt(context)
    assert ending.grade is None
    assert ending.failure is not None and ending.failure.category == "infrastructure"
    assert is_tidy(context)


async def test_an_attempt_that_was_taken_over_leaves_nothing(tmp_path: Path) -> None:
    context = make_context(tmp_path, Writes({"/out/a": "x"}, OutputArtifact("a", "/out/a", True)))
    journal = Journal()
    journal.refused = TrialState.EVALUATING
    with pytest.raises(LeaseLostError):
        await attempt(context, journal)
    assert kept(context) == {} and is_tidy(context)
    assert [box async for box in context.provider.list_sandboxes(SandboxQuery())] == []


async def test_a_cancelled_attempt_leaves_nothing(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    running = asyncio.create_task(attempt(context, dataset="3x60"))
    await asyncio.sleep(0.05)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert is_tidy(context)
    assert [box async for box in context.provider.list_sandboxes(SandboxQuery())] == []


async def test_outputs_hold_no_secret_even_when_a_required_one_is_missing(tmp_path: Path) -> None:
    agent = Writes(
        {"/out/a": f"key {SECRET}"}, OutputArtifact("a", "/out/a", True), OutputArtifact("b", "/out/b", True)
    )
    context = make_context(tmp_path, agent)
    ending = await attempt(context)
    assert ending.failure is not None and ending.failure.cause == AgentOutputError.default_cause
    assert kept(context) == {"artifacts/a": "key ***"}


async def test_outputs_of_one_name_keep_apart(tmp_path: Path) -> None:
    files = {"/out/one/r.json": "1", "/out/two/r.json": "2"}
    context = make_context(tmp_path, Writes(files, OutputArtifact("all", "/out/*/r.json", True)))
    await attempt(context)
    assert kept(context) == {
        "grading/verdict": "good",
        "artifacts/all/one/r.json": "1",
        "artifacts/all/two/r.json": "2",
    }


async def test_too_many_outputs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from sandboxes.types import CopyLimits
    from valkyrie.trial import outputs

    monkeypatch.setattr(outputs, "OUTPUT_LIMITS", CopyLimits(max_entries=3))
    files = {f"/out/{n}": "" for n in range(4)}
    ending = await attempt(make_context(tmp_path, Writes(files, OutputArtifact("all", "/out/*", True))))
    assert ending.failure is not None and "3 a trial may be kept" in ending.failure.message
    ending = await attempt(make_context(tmp_path, Writes(files, OutputArtifact("all", "/out/*", False))))
    assert ending.failure is None


async def test_what_only_the_benchmark_was_given_is_hidden_too(tmp_path: Path) -> None:
    agent = Writes({"/out/a": "judge-key-456"}, OutputArtifact("a", "/out/a", True))
    context = make_context(tmp_path, agent)
    context.give_secrets({}, hidden=["judge-key-456"])
    await attempt(context)
    assert kept(context)["artifacts/a"] == "***"
    assert "judge-key-456" not in context.secrets.values()


class Saves(Benchmark):
    """Saves a state, then fails as long as it is told to; goes on from what it saved."""

    def __init__(self) -> None:
        super().__init__()
        self.fail: Exception | None = None
        self.seen: list[tuple[bool, Json | None]] = []

    async def evaluate(self, grading: Grading) -> Grade:
        self.seen.append((grading.place is not None, grading.saved))
        if grading.saved is None:
            await grading.save({"answer": f"forty-two {SECRET}"})
        if self.fail:
            raise self.fail
        return Grade(1.0, True, {"said": SECRET, "list": [SECRET]})


async def test_grading_goes_on_from_what_was_saved(tmp_path: Path) -> None:
    context, journal = (
        make_context(tmp_path, Writes({"/out.txt": "made"}, OutputArtifact("out.txt", "/out.txt"))),
        Journal(),
    )
    context.benchmark = benchmark = Saves()
    benchmark.fail = SandboxDiedError("gone", outside=True)
    first = await attempt(context, journal)
    assert first.failure is not None and kept(context)["artifacts/out.txt"] == "made"
    assert journal.saved["state"] == {"answer": "forty-two ***"}

    benchmark.fail = None
    context.agent = NapAgent()  # one that leaves nothing: it is not run
    second = await attempt(context, journal, number=2, saved=journal.saved)
    assert second.grade is not None and second.grade.result == {"said": "***", "list": ["***"]}
    assert benchmark.seen == [(True, None), (False, {"answer": "forty-two ***"})]
    assert "agent" not in second.timing and "build" not in second.timing
    assert kept(context, 2)["artifacts/out.txt"] == "made"
    assert second.exit == AgentExit(0)
    assert is_tidy(context)


async def test_what_was_saved_keeps_how_the_agent_ended(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    context.benchmark = Saves()
    saved: Json = {"attempt": 1, "exit_code": 124, "exit_reason": "TIMEOUT", "state": {"answer": "x"}}
    ending = await attempt(context, number=2, saved=saved)
    assert ending.exit == AgentExit(124, ExitReason.TIMEOUT)


async def test_the_agent_may_be_installed_before_the_task_is_set_up(tmp_path: Path) -> None:
    context, steps = make_context(tmp_path), []

    class Early(Benchmark):
        async def describe(self, task_id: str, dataset: str = "default") -> TaskSpec:
            return replace(await super().describe(task_id, dataset), install_first=True)

        async def setup(self, task: TaskSpec, sandbox: Sandbox, log: OutputSink, start: Path) -> None:
            steps.append("setup")

    class Installed(NapAgent):
        async def install(self, trial: AgentTrial) -> None:
            steps.append("install")

    context.benchmark, context.agent = Early(), Installed()
    assert (await attempt(context)).grade is not None
    assert steps == ["install", "setup"]
