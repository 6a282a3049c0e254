"""`benchmark-job results`."""

from __future__ import annotations

import re

import click

from valkyrie.cli.job.options import job_argument, output_option
from valkyrie.cli.options import tracker, verb
from valkyrie.cli.output import Output
from valkyrie.cli.run.take import target_file, write_results
from valkyrie.report.jobs.documents import job_document
from valkyrie.report.jobs.sides import run_names


@verb(
    "results",
    examples="valk job results nightly --path ./nightly.json\nvalk job results 3f2a --path - | jq .runs",
)
@job_argument
@click.option(
    "--path", metavar="FILE", help="File or folder to write to; - is stdout [default: ./<job>.json]."
)
@click.option("--force", is_flag=True, help="Overwrite the file without asking.")
@output_option
def results(output: Output, *, ref: str, path: str | None, force: bool) -> int:
    """Write the results of a job's runs to one file.

    The job, and under `runs` for each of them its name, its id and what `run results` writes of it. An
    existing file is overwritten only after a yes on a terminal, or with --force; else the command exits 1
    with reason target_exists.
    """
    with tracker() as opened:
        job = opened.fetch_job(ref)
        name = re.sub(r"[^\w.-]+", "-", job.name).strip(".-") or job.id
        target = target_file(path, f"{name}.json", output, force=force)
        names = run_names(job)
        runs = [
            {"name": names[run.id], "run_id": run.id, "results": opened.results(run.id)} for run in job.runs
        ]
    return write_results({**job_document(job), "runs": runs}, target, output)
