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
from valkyrie.trial import outputs, verification
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

COLLECT_TIMEOUT_S = 900.0
EQUIP_TIMEOUT_S = 1800.0  # once per agent and root file system its packages are fetched


async def run_attempt(leased: Leased, context: RunContext, journal: PhaseJournal) -> AttemptEnding:
    """Run one attempt to its end. Raises only when the attempt is no longer ours to end."""
    kept = context.folder.attempt(leased.task_id, leased.k, leased.number)
    log = outputs.AttemptLog(log_of(kept), context.masker)
    draft = context.folder.draft(leased.trial_id, leased.number)
    attempt = Attempt(leased, context, journal, log, kept, draft)
    began = time.monotonic()
    context.away.follow(leased, log_of(kept))
    grade: Grade | None = None
    failure: AttemptFailure | None = None
    try:
        grade = await _live(attempt)
        await attempt.publish()
    except LeaseLostError:
        raise
    except Exception as error:  # noqa: BLE001 - the attempt boundary: everything gets a category here
        grade, failure = _count(attempt, classify(error, context.masker))
        with suppress(OSError):
            await attempt.publish()
    finally:
        log.close()
        context.away.ended(leased)
        for folder in (draft, attempt.start, attempt.scratch):
            if folder.exists():
                await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))
    try:
        await attempt.put_away()
    except ValkyrieError as error:
        grade, failure = None, classify(error, context.masker)
    attempt.timing["total"] = round(time.monotonic() - began, 4)
    ended = attempt.failed_exit or attempt.exit
    return AttemptEnding(attempt.state, attempt.timing, grade, failure, ended, attempt.cost, attempt.usage)


async def _live(attempt: Attempt) -> Grade:
    """The sentence of the product: put an agent in a sandbox with a task, grade what it did."""
    attempt.context = await attempt.context.of_grading(attempt.leased.grading)
    task = await attempt.context.task(attempt.leased)
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
    if failure.cause in COUNTED_AS_ZERO and attempt.context.benchmark.fraction:
        return verification.counted_as_zero(attempt, failure.cause, failure.message), None
    return None, failure


async def _go_on_grading(attempt: Attempt, task: TaskSpec, saved: Json) -> Grade:
    """Grade what an earlier attempt's agent left, without running the agent."""
    reason = saved["exit_reason"]
    attempt.exit = AgentExit(saved["exit_code"], ExitReason(reason) if reason else None)
    attempt.log.note(
        f"{_go_on_as(attempt.leased)} from what attempt {saved['attempt']} saved; the agent is not run again"
    )
    earlier = attempt.context.folder.attempt(attempt.leased.task_id, attempt.leased.k, saved["attempt"])
    await attempt.context.away.fetch(attempt.leased, saved["attempt"], earlier)
    await asyncio.to_thread(outputs.inherit_outputs, earlier, attempt.draft)
    attempt.inherit_transcript(saved["attempt"])
    await attempt.enter(TrialState.EVALUATING)
    return await (verification.grade_kept if saved.get("work") else verification.grade_saved)(attempt, task)


def _go_on_as(leased: Leased) -> str:
    return f"grading {leased.grading} begins" if leased.grading else "grading goes on"


@asynccontextmanager
async def _sandbox(attempt: Attempt, task: TaskSpec) -> AsyncIterator[verification.HeldSandbox]:
    """A sandbox of the attempt's own, gone at its end unless it is to be kept."""
    context, environment = attempt.context, attempt.context.agent_environment
    request = context.sandbox_request(attempt.leased, task)
    async with environment.model_folder() as folder:
        if environment.needed:
            async with attempt.phase("equip", EQUIP_TIMEOUT_S):
                request = await environment.equip(request, context.provider, folder, attempt.log.note)
        async with attempt.phase("build", task.timeouts.build):
            held = verification.HeldSandbox(attempt, await context.provider.create_sandbox(request))
        try:
            yield held
        finally:
            await held.release()


async def _perform(attempt: Attempt, task: TaskSpec, sandbox: Sandbox) -> None:
    """Set the task up, install the agent, let it work."""
    context, agent, environment = attempt.context, attempt.context.agent, attempt.context.agent_environment
    with verification.masked(attempt) as sink:
        solution = context.benchmark.solution(task) if agent.needs_solution else None
        trial = AgentTrial(
            context.as_the_agent_sees(task),
            sandbox,
            context.secrets,
            sink,
            solution,
            kept=attempt.part(outputs.AGENT, task),
            model_url=environment.model_url,
            layer=environment.layer_to_bring,
            k=attempt.leased.k,
            attempt=attempt.leased.number,
            trajectory_limit=context.trajectory_limit,
        )
        if len(trial.turns) > 1 and (look := context.benchmark.capabilities.turn_ended):
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
                    if not attempt.grades and (attempt.agent_was_here or environment.shows_layer):
                        await environment.check_layer(sandbox)
                    continue
                attempt.agent_was_here = True
                with blamed_on_agent():
                    await agent.install(trial)
        limit = task.timeouts.agent
        with blamed_on_agent():
            async with attempt.phase("agent", None if limit is None else limit + verification.GRACE_S):
                await environment.open_proxy(sandbox, sink)
                heard = replace(trial, log=attempt.listen(sink))
                attempt.exit = outputs.believed(await agent.run(heard), context.masker)
                attempt.use(attempt.exit.usage)


async def _set_up(attempt: Attempt, task: TaskSpec, sandbox: Sandbox, sink: OutputSink) -> None:
    """Prepare the sandbox for the agent, and note what that changed of the system."""
    if attempt.agent_was_here:
        await verification.set_up_after_agent(attempt, task, sandbox, sink)
    else:
        await start_entrypoint(task, sandbox, sink)
        await attempt.context.benchmark.setup(task, sandbox, sink, attempt.start)
        await check_user(task, sandbox)
        await verification.note_start(attempt, task, sandbox)


async def _keep_outputs(attempt: Attempt, task: TaskSpec, sandbox: Sandbox) -> None:
    """Bring out what the agent made, however it ended; of one that never started there is nothing."""
    agent, masker = attempt.context.agent, attempt.context.masker
    begun = attempt.grades or agent.needs_solution
    if not begun and attempt.exit and (failure := start_failure(attempt.exit, attempt.heard)):
        raise failure
    if task.artifacts or task.gathering:
        async with attempt.phase("collect", COLLECT_TIMEOUT_S):
            with verification.masked(attempt) as sink, outputs.tools_may_be_gone(agent, attempt.log):
                await outputs.gather(task, sandbox, attempt.log, sink)
                await outputs.keep_paths(task, sandbox, attempt.part(outputs.ARTIFACTS, task), attempt.log)
    if agent.final_output or agent.output_artifacts:
        async with attempt.phase("collect", COLLECT_TIMEOUT_S):
            with outputs.tools_may_be_gone(agent, attempt.log):
                await outputs.collect_outputs(agent, task.id, sandbox, attempt.draft, masker, attempt.log)
            attempt.correct_usage(await outputs.note_metrics(attempt.draft, attempt.log))
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
    if attempt.context.settings.on_agent_failure == "error":
        raise AgentError(f"The agent's command ended with exit code {ended.exit_code}.")
    attempt.log.note(f"the agent's command ended with exit code {ended.exit_code}; graded all the same")
