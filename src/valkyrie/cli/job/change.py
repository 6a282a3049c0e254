"""`benchmark-job stop`, `resume`, `retry`, `delete`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from valkyrie.cli.agent_model import with_models
from valkyrie.cli.job.options import (
    CATEGORIES,
    agent_option,
    attempts_option,
    concurrency_option,
    follow_option,
    job_argument,
    multiplier_option,
    output_option,
    scenarios_option,
    time_limit_option,
    timeout_option,
)
from valkyrie.cli.job.run import show_started
from valkyrie.cli.options import confirm, header_option, tracker, verb, yes_option
from valkyrie.cli.output import Output
from valkyrie.job_views import JobAgent, JobChange, JobRetry, JobStop
from valkyrie.report.formats import counts_line, plural, safe
from valkyrie.report.jobs.documents import job_document
from valkyrie.report.jobs.panels import job_state, next_commands
from valkyrie.report.jobs.sides import ACTIVE, run_names

if TYPE_CHECKING:
    from valkyrie.job_views import JobView, StartedJob
    from valkyrie.tracker.protocol import Tracker


@verb("stop", examples="valk job stop 3f2a\nvalk job stop nightly --force --yes")
@job_argument
@click.option("--force", is_flag=True, help="Kill trials under way instead of letting them finish.")
@yes_option
@output_option
def stop(output: Output, *, ref: str, force: bool, yes: bool) -> int:
    """Stop a job; trials under way finish unless forced.

    What has not begun is stopped; `job resume` goes on with it. --force asks first on a terminal; where
    nobody can be asked it needs --yes.
    """
    with tracker() as opened:
        job = opened.fetch_job(ref)
        if force:
            under_way = sum(run.counts.get(state, 0) for run in job.runs for state in ACTIVE)
            question = f"Kill {plural(under_way, 'trial')} of job {safe(job.name)} ({job.id}) under way?"
            confirm(output, question, yes=yes)
        job = opened.stop_job(job.id, JobStop(force=force))
    output.emit("job", event="update", **job_document(job))
    show_state(job, output)
    return 0


def show_state(job: JobView, output: Output) -> None:
    """A job's state, what its runs count, and what one may do next."""
    output.line(f"{job.id}  {safe(job.name)}  {job_state(job.state, output.ink)}")
    names = run_names(job)
    output.lines(f"  {names[run.id]}  {counts_line(run.counts)}" for run in job.runs)
    output.panel("Next", next_commands(job))


@verb(
    "resume",
    examples="valk job resume 3f2a --connect\n"
    "valk job resume 3f2a --agent codex:gpt-5 --concurrency 50\n"
    "valk job resume 3f2a --task-ids parse-dates sort-words --trials 4",
)
@job_argument
@agent_option(required=False, help="Add this agent to the job's. Repeatable.")
@scenarios_option("Add these tasks to the job's; `all` is every task of its benchmark.", "--task-ids")
@attempts_option(None, "Trials of each task from now on; never fewer than before.")
@concurrency_option(None, "Trials at once from now on.")
@timeout_option("Seconds an agent may take from now on.")
@multiplier_option(None)
@time_limit_option
@header_option
@follow_option
@output_option
def resume(
    output: Output,
    *,
    ref: str,
    agents: Sequence[JobAgent],
    scenarios: tuple[str, ...],
    trials: int | None,
    concurrency: int | None,
    agent_timeout: float | None,
    timeout_multiplier: float | None,
    time_limit: float | None,
    headers: dict[str, str],
    follow: bool,
) -> int:
    """Go on, perhaps with more agents, tasks or trials.

    Stopped trials run again, what a crash interrupted goes on, and what was added begins; what has ended
    is never run again. Everything left out stays as it was.
    """
    change = JobChange(
        agents=with_models(agents),
        scenarios=tuple(dict.fromkeys(scenarios)),
        trials=trials,
        concurrency=concurrency,
        agent_timeout=agent_timeout,
        timeout_multiplier=timeout_multiplier,
        time_limit=time_limit,
        headers=headers,
    )
    with tracker(to_start=True) as opened:
        return _go_on(opened, opened.resume_job(ref, change), follow, output)


@verb("retry", examples="valk job retry 3f2a\nvalk job retry 3f2a --category infrastructure --connect")
@job_argument
@click.option("--category", type=click.Choice(CATEGORIES), help="Only errors of this category.")
@concurrency_option(None, "Trials at once from now on.")
@header_option
@follow_option
@output_option
def retry(
    output: Output,
    *,
    ref: str,
    follow: bool,
    **same: Any,
) -> int:
    """Run errored (and stopped) trials again.

    Ends by the agent's own doing count as the worst score and stay, unless --category agent is given. Earlier
    attempts and their logs are kept; what was graded is not run again.
    """
    with tracker(to_start=True) as opened:
        started = opened.retry_job(ref, JobRetry(**same))
        return _go_on(opened, started, follow, output)


@verb("delete", examples="valk job delete 3f2a --yes")
@job_argument
@yes_option
@output_option
def delete(output: Output, *, ref: str, yes: bool) -> int:
    """Forget an ended job, its runs and all that was kept.

    Results, logs and kept files are deleted for good. A job in progress is refused: stop it first.
    """
    with tracker() as opened:
        job = opened.fetch_job(ref)
        what = f"job {safe(job.name)} ({job.id}) and its {plural(len(job.runs), 'run')}"
        confirm(output, f"Delete {what} for good?", yes=yes)
        opened.delete_job(job.id)
    output.emit("job_deleted", job_id=job.id)
    output.line(f"Deleted {what}.")
    return 0


def _go_on(opened: Tracker, started: StartedJob, follow: bool, output: Output) -> int:
    job = started.job
    show_started(started, "Nothing to do" if job.ended else "Job goes on", output, follow=follow or job.ended)
    if not follow or job.ended:
        return 0
    from valkyrie.cli.job.watch import watch_job

    return watch_job(opened, job.id, output)
