"""One attempt: sandbox → setup → install → agent → collect → grade.

Each phase change is committed before the phase's side effects. Whatever goes wrong becomes a failure with
a category; what to do about it is the scheduler's business.
"""

from __future__ import annotations

import asyncio
import math
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial

from sandboxes.protocol import Sandbox
from sandboxes.types import OutputSink
from valkyrie.agents.protocol import AgentExit, AgentTrial
from valkyrie.benchmarks.protocol import Grading
from valkyrie.errors import AgentError, GraderError, LeaseLostError, ValkyrieError
from valkyrie.nouns import ExitReason, Grade, Json, TaskSpec, TrialState
from valkyrie.store.layout import log_of
from valkyrie.store.leases import Leased
from valkyrie.trial.artifacts import gather, keep_paths
from valkyrie.trial.attempt import Attempt, Ending
from valkyrie.trial.believing import believed
from valkyrie.trial.collect import AGENT, ARTIFACTS, GRADING, collect_outputs, inherit_outputs
from valkyrie.trial.cost import note_cost
from valkyrie.trial.failures import Failure, TroubleError, classify, is_graded
from valkyrie.trial.leaving import keep, remove
from valkyrie.trial.log import AttemptLog
from valkyrie.trial.world import Journal, World

AGENT_GRACE_S = 60.0  # the sandbox ends an agent that is late; this is how late the sandbox may be
COLLECT_TIMEOUT_S = 900.0
EQUIP_TIMEOUT_S = 1800.0  # once per agent and root file system its packages are fetched


async def run_attempt(leased: Leased, world: World, journal: Journal) -> Ending:
    """Run one attempt to its end. Raises only when the attempt is no longer ours to end."""
    kept = world.folder.attempt(leased.task_id, leased.k, leased.number)
    log, draft = AttemptLog(log_of(kept), world.masker), world.folder.draft(leased.trial_id, leased.number)
    attempt = Attempt(leased, world, journal, log, kept, draft)
    began = time.monotonic()
    world.away.follow(leased, log_of(kept))
    grade: Grade | None = None
    failure: Failure | None = None
    try:
        grade = await _live(attempt)
        await attempt.publish()
    except LeaseLostError:
        raise
    except Exception as error:  # noqa: BLE001 - the attempt boundary: everything gets a category here
        grade, failure = None, classify(error, world.masker)
        log.note(f"{failure.category} error ({failure.cause}): {failure.message}")
        with suppress(OSError):
            await attempt.publish()
    finally:
        log.close()
        world.away.ended(leased)
        for folder in (draft, attempt.start):
            if folder.exists():
                await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))
    try:
        await attempt.put_away()
    except ValkyrieError as error:
        grade, failure = None, classify(error, world.masker)
    attempt.timing["total"] = round(time.monotonic() - began, 4)
    ended = attempt.failed_exit or attempt.exit
    return Ending(attempt.state, attempt.timing, grade, failure, ended, attempt.cost, attempt.usage)


async def _live(attempt: Attempt) -> Grade:
    """The sentence of the product: put an agent in a sandbox with a task, grade what it did."""
    world = attempt.world
    task = await world.task(attempt.leased)
    if attempt.leased.saved is not None:
        return await _go_on_grading(attempt, task, attempt.leased.saved)
    async with _sandbox(attempt, task) as sandbox:
        for step in task.steps or (task,):
            await attempt.enter(TrialState.IN_PROGRESS)
            await _perform(attempt, step, sandbox)
            await sandbox.kill_all()
            await _keep_outputs(attempt, step, sandbox)
            await attempt.enter(TrialState.EVALUATING)
            grade = await _grade(attempt, step, sandbox)
            if not grade.goes_on:
                break
            attempt.go_on(step, grade)
        return grade


async def _go_on_grading(attempt: Attempt, task: TaskSpec, saved: Json) -> Grade:
    """Grade what an earlier attempt's agent left: no sandbox, no agent."""
    reason = saved["exit_reason"]
    attempt.exit = AgentExit(saved["exit_code"], ExitReason(reason) if reason else None)
    attempt.log.note(
        f"grading goes on from what attempt {saved['attempt']} saved; the agent is not run again"
    )
    earlier = attempt.world.folder.attempt(attempt.leased.task_id, attempt.leased.k, saved["attempt"])
    await attempt.world.away.fetch(attempt.leased, saved["attempt"], earlier)
    await asyncio.to_thread(inherit_outputs, earlier, attempt.draft)
    await attempt.enter(TrialState.EVALUATING)
    return await _grade(attempt, task, None)


@asynccontextmanager
async def _sandbox(attempt: Attempt, task: TaskSpec) -> AsyncIterator[Sandbox]:
    """A sandbox of the attempt's own, gone at its end unless it is to be kept."""
    world = attempt.world
    request = world.sandbox_request(attempt.leased, task)
    async with world.gear.doorway() as doorway:
        if world.gear.needed:
            async with attempt.phase("equip", EQUIP_TIMEOUT_S):
                request = await world.gear.equip(request, world.provider, doorway, attempt.log.note)
        async with attempt.phase("build", task.timeouts.build):
            sandbox = await world.provider.create_sandbox(request)
        try:
            yield sandbox
        finally:
            if world.keep_sandbox:
                await keep(world, attempt.leased, sandbox, attempt.log)
            else:
                await asyncio.shield(remove(world, sandbox.id, attempt.log))


async def _perform(attempt: Attempt, task: TaskSpec, sandbox: Sandbox) -> None:
    """Set the task up, install the agent, let it work."""
    world, agent = attempt.world, attempt.world.agent
    with _masked(attempt) as sink:
        solution = world.benchmark.solution(task) if agent.needs_solution else None
        trial = AgentTrial(
            world.as_the_agent_sees(task),
            sandbox,
            world.secrets,
            sink,
            solution,
            kept=attempt.part(AGENT, task),
            model_url=world.gear.model_url,
            layer=world.gear.layer_to_bring,
            k=attempt.leased.k,
            attempt=attempt.leased.number,
        )
        if len(trial.turns) > 1 and (look := getattr(world.benchmark, "turn_ended", None)):
            trial = replace(trial, turn_ended=partial(look, task, sandbox, sink, attempt.start))
        if task.step:
            attempt.log.note(f"step {task.step}")
        order = ("install", "setup") if task.install_first else ("setup", "install")
        for phase in ("setup",) if attempt.grades else order:  # in a later step, the agent is there
            async with attempt.phase(phase, getattr(task.timeouts, phase)):
                if phase == "setup":
                    await world.benchmark.setup(task, sandbox, sink, attempt.start)
                else:
                    await agent.install(trial)
        limit = task.timeouts.agent
        async with attempt.phase("agent", None if limit is None else limit + AGENT_GRACE_S):
            await world.gear.open_door(sandbox, sink)
            attempt.exit = believed(await agent.run(trial), world.masker)
            attempt.use(attempt.exit.usage)


async def _keep_outputs(attempt: Attempt, task: TaskSpec, sandbox: Sandbox) -> None:
    """Bring out what the agent made, however it ended."""
    agent, masker = attempt.world.agent, attempt.world.masker
    if task.artifacts or task.gathering:
        async with attempt.phase("collect", COLLECT_TIMEOUT_S):
            with _masked(attempt) as sink:
                await gather(task, sandbox, attempt.log, sink)
            await keep_paths(task, sandbox, attempt.part(ARTIFACTS, task), attempt.log)
    if agent.final_output or agent.output_artifacts:
        async with attempt.phase("collect", COLLECT_TIMEOUT_S):
            await collect_outputs(agent, task.id, sandbox, attempt.draft, masker, attempt.log)
            said = await note_cost(attempt.draft, attempt.log)
            attempt.correct_cost(said)
    if attempt.exit and attempt.exit.told:
        await attempt.keep_told(task, attempt.exit.told)
    _judge_exit(attempt)


def _judge_exit(attempt: Attempt) -> None:
    """A failed agent is graded all the same, unless the run was asked to call it an error.

    One whose model could not be reached was not tested at all.
    """
    ended = attempt.exit
    if ended is None:
        return
    if ended.trouble and not is_graded(ended.trouble.cause):
        raise TroubleError(ended.trouble)
    if ended.exit_code == 0 or ended.reason is not None:
        return
    if attempt.world.settings.on_agent_failure == "error":
        raise AgentError(f"The agent's command ended with exit code {ended.exit_code}.")
    attempt.log.note(f"the agent's command ended with exit code {ended.exit_code}; graded all the same")


async def _grade(attempt: Attempt, task: TaskSpec, sandbox: Sandbox | None) -> Grade:
    """Let the benchmark judge; what it kept as evidence appears whole or not at all."""
    world = attempt.world
    with _masked(attempt) as sink:
        grading = Grading(
            task,
            sandbox,
            sink,
            evidence=attempt.part(GRADING, task),
            final_output=world.agent.final_output,
            saved=attempt.leased.saved["state"] if attempt.leased.saved else None,
            save=attempt.save,
            agent=attempt.part(AGENT, task),
            told=attempt.exit.told if attempt.exit else None,
            start=attempt.start if sandbox else None,
            exit_code=attempt.exit.exit_code if attempt.exit else None,
            exit_reason=attempt.exit.reason if attempt.exit else None,
            seconds=attempt.timing.get("agent"),
            k=attempt.leased.k,
            earlier=attempt.grades,
        )
        async with attempt.phase("grade", task.timeouts.grade and task.timeouts.grade + AGENT_GRACE_S):
            grade = await world.benchmark.evaluate(grading)
    if world.masker:
        grade = replace(grade, result=world.masker.data(grade.result))
    if grade.score is not None and not math.isfinite(grade.score):
        raise GraderError(f"The benchmark's score is {grade.score}, which is no number.")
    return grade


def _masked(attempt: Attempt) -> AbstractContextManager[OutputSink]:
    """The attempt's log as a sink that no secret passes."""
    masker = attempt.world.masker
    return masker.sink(attempt.log.write) if masker else nullcontext(attempt.log.write)
