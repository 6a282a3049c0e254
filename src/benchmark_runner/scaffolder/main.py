"""The command line of `create-benchmark-runner`."""

from __future__ import annotations

from pathlib import Path

import click

from benchmark_runner.scaffolder.generator import RunnerSpec, generate
from benchmark_service import __version__
from benchmark_service.scaffold import (
    Framework,
    GenerationError,
    benchmark_name,
    framework_option,
    installed_framework,
    output_dir_option,
    way_to,
)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name")
@framework_option()
@click.option(
    "--templates-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Your own templates instead of the shipped ones: files ending in .jinja are filled in, "
    "all others are copied.",
)
@output_dir_option
@click.version_option(__version__, prog_name="create-benchmark-runner")
def main(name: str, framework: Framework | None, templates_dir: Path | None, output_dir: Path) -> None:
    """Create a benchmark runner in the new folder NAME-runner.

    It runs, tests, lints and type-checks as generated; runner/benchmark.py is the file to make your own.
    """
    chosen = framework or installed_framework()
    try:
        spec = RunnerSpec(benchmark_name(name), chosen.requirement)
        folder = generate(spec, output_dir, templates_dir)
    except GenerationError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"Created {spec.project} at {folder.resolve()}")
    click.echo(f"Framework: {chosen.origin}")
    if templates_dir is None:
        click.echo(_next_steps(spec, folder))


def _next_steps(spec: RunnerSpec, folder: Path) -> str:
    return f"""
Next:
  cd {way_to(folder)}
  make install
  make test
  .venv/bin/{spec.project} run --help
Then write runner/benchmark.py, put your dataset into data/, and see README.md for the rest."""
