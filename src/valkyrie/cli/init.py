"""`init`: the first eval of a project."""

from __future__ import annotations

from pathlib import Path

import click

from valkyrie.cli.options import verb
from valkyrie.cli.output import Output


@verb("init", examples="valk init\nvalk init my-evals --ci github\nvalk eval --suite smoke")
@click.argument("folder", metavar="[DIR]", type=click.Path(file_okay=False, path_type=Path), default=Path())
@click.option("--ci", type=click.Choice(["github"]), help="Also write a workflow that runs the evals.")
@click.option("--force", is_flag=True, help="Overwrite the files that are there already.")
def init(output: Output, *, folder: Path, ci: str | None, force: bool) -> None:
    """Write a first eval, a skill and a suite.

    What is written runs at once, without a model or a key: its eval is answered by `mock`, from fixtures.
    Change the prompts and graders to yours, then name a real agent. Asks nothing; existing files are left
    alone and the command exits 2, unless --force is given.
    """
    from valkyrie.evals.starter.writing import start_project

    started = start_project(folder, ci=ci, force=force)
    files = [str(path) for path in started.files]
    output.emit("eval_project_created", folder=str(folder.absolute()), files=files)
    for path in started.files:
        output.line(f"Wrote {folder / path}")
    there = "" if folder == Path() else f"cd {folder} && "
    commands = [
        ("Check it", f"{there}valk lint --strict"),
        ("Run it", f"{there}valk eval --suite smoke"),
        ("With an agent", f"{there}valk eval --suite smoke --agent claude-code"),
    ]
    output.panel("Next", commands)
