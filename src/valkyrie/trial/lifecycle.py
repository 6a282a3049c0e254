"""One attempt: sandbox → setup → install → agent → collect → verify.

Each phase change is committed before the phase's side effects. Whatever goes wrong becomes a failure with
a category; what to do about it is the scheduler's business.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial

from sandboxes.protocol import Sandbox
from sandboxes.types import OutputSink
from valkyrie.agents.protocol import AgentExit, AgentTrial
from valkyrie.benchmarks.protocol import said_of_withheld
from valkyrie.domain import ExitReason, Grade, Json, TaskSpec, TrialState
from valkyrie.errors import AgentError, LeaseLostError, ValkyrieError
from valkyrie.store.layout import log_of
from valkyrie.store.leases import Leased
from valkyrie.trial import verification
from valkyrie.trial.attempt import (
    COUNTED_AS_ZERO,
    Attempt,
    AttemptEnding,
    AttemptFailure,
    TroubleError,
    blamed_on_agent,
    check_user,
    classify,
    is_graded,
    start_entrypoint,
    start_failure,
)
from valkyrie.trial.context import PhaseJournal, RunContext
from valkyrie.trial.outputs import (
    AGENT,
    ARTIFACTS,
    AttemptLog,
    believed,
    collect_outputs,
    gather,
    inherit_outputs,
    keep_paths,
    note_metrics,
    tools_may_be_gone,
)

COLLECT_TIMEOUT_S = 900.0
EQUIP_TIMEOUT_S = 1800.0  # once per agent and root file system its packages are fetched


async def run_attempt(leased: Leased, world: RunContext, journal: PhaseJournal) -> AttemptEnding:
    """Run one attempt to its end. Raises only when the attempt is no longer ours to end."""
    kept = world.folder.attempt(leased.task_id, leased.k, leased.number)
    log, draft = AttemptLog(log_of(kept), world.masker), world.folder.draft(leased.trial_id, leased.number)
    attempt = Attempt(leased, world, journal, log, kept, draft)
    began = time.monotonic()
    world.away.follow(leased, log_of(kept))
    grade: Grade | None = None
    failure: AttemptFailure | None = None
    try:
        grade = await _live(attempt)
        await attempt.publish()
    except LeaseLostError:
        raise
    except Exception as error:  # noqa: BLE001 - the attempt boundary: everything gets a category here
        grade, failure = _count(attempt, classify(error, world.masker))
        with suppress(OSError):
            await attempt.publish()
    finally:
        log.close()
        world.away.ended(leased)
        for folder in (draft, attempt.start, attempt.scratch):
            if folder.exists():
                await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))
    try:
        await attempt.put_away()
    except ValkyrieError as error:
        grade, failure = None, classify(error, world.masker)
    attempt.timing["total"] = round(time.monotonic() - began, 4)
    ended = attempt.failed_exit or attempt.exit
    return AttemptEnding(attempt.state, attempt.timing, grade, failure, ended, attempt.cost, attempt.usage)


async def _live(attempt: Attempt) -> Grade:
    """The sentence of the product: put an agent in a sandbox with a task, grade what it did."""
    attempt.world = await attempt.world.of_grading(attempt.leased.grading)
    task = await attempt.world.task(attempt.leased)
    if attempt.leased.saved is not None:
        return await _go_on_grading(attempt, task, attempt.leased.saved)
    async with _sandbox(attempt, task) as held:
        task = task.placed(held.sandbox.image_defaults)
        steps = task.steps or (task,)
        for step in steps:
            await attempt.enter(TrialState.IN_PROGRESS)
            await _perform(attempt, step, held.sandbox)
            with blamed_on_agent():
                if not verification.keeps_processes(attempt, step):
                    await held.sandbox.kill_all()
                await _keep_outputs(attempt, step, held.sandbox)
            await attempt.enter(TrialState.EVALUATING)
            grade = await verification.verify(attempt, step, held, last=step is steps[-1])
            if not grade.goes_on:
                break
            attempt.go_on(step, grade)
        return grade


def _count(attempt: Attempt, failure: AttemptFailure) -> tuple[Grade | None, AttemptFailure | None]:
    """An agent that kept itself from being graded gets 0; every other failure stays one."""
    attempt.log.note(f"{failure.category} error ({failure.cause}): {failure.message}")
    if failure.cause in COUNTED_AS_ZERO and attempt.world.benchmark.fraction:
        return verification.counted_as_zero(attempt, failure.cause, failure.message), None
    return None, failure


async def _go_on_grading(attempt: Attempt, task: TaskSpec, saved: Json) -> Grade:
    """Grade what an earlier attempt's agent left, without running the agent."""
    reason = saved["exit_reason"]
    attempt.exit = AgentExit(saved["exit_code"], ExitReason(reason) if reason else None)
    attempt.log.note(
        f"{_go_on_as(attempt.leased)} from what attempt {saved['attempt']} saved; the agent is not run again"
    )
    earlier = attempt.world.folder.attempt(attempt.leased.task_id, attempt.leased.k, saved["attempt"])
    await attempt.world.away.fetch(attempt.leased, saved["attempt"], earlier)
    await asyncio.to_thread(inherit_outputs, earlier, attempt.draft)
    attempt.inherit_story(saved["attempt"])
    await attempt.enter(TrialState.EVALUATING)
    return await (verification.grade_kept if saved.get("work") else verification.grade_saved)(attempt, task)


def _go_on_as(leased: Leased) -> str:
    return f"grading {leased.grading} begins" if leased.grading else "grading goes on"


@asynccontextmanager
async def _sandbox(attempt: Attempt, task: TaskSpec) -> AsyncIterator[verification.HeldSandbox]:
    """A sandbox of the attempt's own, gone at its end unless it is to be kept."""
    world = attempt.world
    request = world.sandbox_request(attempt.leased, task)
    async with world.gear.doorway() as doorway:
        if world.gear.needed:
            async with attempt.phase("equip", EQUIP_TIMEOUT_S):
                request = await world.gear.equip(request, world.provider, doorway, attempt.log.note)
        async with attempt.phase("build", task.timeouts.build):
            held = verification.HeldSandbox(attempt, await world.provider.create_sandbox(request))
        try:
            yield held
        finally:
            await held.release()


async def _perform(attempt: Attempt, task: TaskSpec, sandbox: Sandbox) -> None:
    """Set the task up, install the agent, let it work."""
    world, agent = attempt.world, attempt.world.agent
    with verification.masked(attempt) as sink:
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
            trajectory_limit=world.trajectory_limit,
        )
        if len(trial.turns) > 1 and (look := getattr(world.benchmark, "turn_ended", None)):
            trial = replace(trial, turn_ended=partial(look, task, sandbox, sink, attempt.start))
        if task.step:
            attempt.log.note(f"step {task.step}")
        if not agent.needs_solution and not attempt.grades and (said := said_of_withheld(task.env)):
            attempt.log.note(said)
        order = ("install", "setup") if task.install_first else ("setup", "install")
        for phase in ("setup",) if attempt.grades else order:  # in a later step, the agent is there
            async with attempt.phase(phase, getattr(task.timeouts, phase)):
                if phase == "setup":
                    await _set_up(attempt, task, sandbox, sink)
                    if not attempt.grades and (attempt.agent_was_here or world.gear.shows_layer):
                        await world.gear.check_layer(sandbox)
                    continue
                attempt.agent_was_here = True
                with blamed_on_agent():
                    await agent.install(trial)
        limit = task.timeouts.agent
        with blamed_on_agent():
            async with attempt.phase("agent", None if limit is None else limit + verification.GRACE_S):
                await world.gear.open_door(sandbox, sink)
                heard = replace(trial, log=attempt.listen(sink))
                attempt.exit = believed(await agent.run(heard), world.masker)
                attempt.use(attempt.exit.usage)


async def _set_up(attempt: Attempt, task: TaskSpec, sandbox: Sandbox, sink: OutputSink) -> None:
    """Prepare the sandbox for the agent, and note what that changed of the system."""
    if attempt.agent_was_here:
        await verification.set_up_after_agent(attempt, task, sandbox, sink)
    else:
        await start_entrypoint(task, sandbox, sink)
        await attempt.world.benchmark.setup(task, sandbox, sink, attempt.start)
        await check_user(task, sandbox)
        await verification.note_start(attempt, task, sandbox)


async def _keep_outputs(attempt: Attempt, task: TaskSpec, sandbox: Sandbox) -> None:
    """Bring out what the agent made, however it ended; of one that never started there is nothing."""
    agent, masker = attempt.world.agent, attempt.world.masker
    begun = attempt.grades or agent.needs_solution
    if not begun and attempt.exit and (failure := start_failure(attempt.exit, attempt.heard)):
        raise failure
    if task.artifacts or task.gathering:
        async with attempt.phase("collect", COLLECT_TIMEOUT_S):
            with verification.masked(attempt) as sink, tools_may_be_gone(agent, attempt.log):
                await gather(task, sandbox, attempt.log, sink)
                await keep_paths(task, sandbox, attempt.part(ARTIFACTS, task), attempt.log)
    if agent.final_output or agent.output_artifacts:
        async with attempt.phase("collect", COLLECT_TIMEOUT_S):
            with tools_may_be_gone(agent, attempt.log):
                await collect_outputs(agent, task.id, sandbox, attempt.draft, masker, attempt.log)
            attempt.correct_usage(await note_metrics(attempt.draft, attempt.log))
    if attempt.exit and attempt.exit.told:
        await attempt.keep_told(task, attempt.exit.told)
    elif task.instruction:
        await attempt.keep_instruction(task)
    _judge_exit(attempt)


def _judge_exit(attempt: Attempt) -> None:
    """A failed agent is graded all the same, unless the run was asked to call it an error.

    One whose model could not be reached at all was not tested.
    """
    ended = attempt.exit
    if ended is None:
        return
    if ended.trouble and not is_graded(ended.trouble.cause):
        if not ended.usage or not ended.usage.steps:
            raise TroubleError(ended.trouble)
        # An agent that has tools can print whatever it likes: once it has worked, its word buys no retry.
        attempt.log.note(f"the agent says: {ended.trouble.message}; graded all the same, for it had worked")
    if ended.exit_code == 0 or ended.reason is not None:
        return
    if attempt.world.settings.on_agent_failure == "error":
        raise AgentError(f"The agent's command ended with exit code {ended.exit_code}.")
    attempt.log.note(f"the agent's command ended with exit code {ended.exit_code}; graded all the same")
