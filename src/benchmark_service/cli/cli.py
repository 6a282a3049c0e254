"""The command line of `create-benchmark-service`."""

from __future__ import annotations

import re
from pathlib import Path

import click

from benchmark_service import __version__
from benchmark_service.cli.generator import ProjectSpec, generate
from benchmark_service.scaffold import (
    Framework,
    GenerationError,
    benchmark_name,
    framework_option,
    installed_framework,
    output_dir_option,
    way_to,
)

EXTRA = "daytona"
"""Services reach sandboxes through Daytona's API, whoever offers it."""

IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")


def _image(_context: click.Context, _parameter: click.Parameter, image: str | None) -> str | None:
    if image is not None and not IMAGE.fullmatch(image):
        raise click.BadParameter(f"{image!r} is not an image reference such as python:3.12-slim.")
    return image


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("name")
@framework_option(EXTRA)
@click.option(
    "--image", callback=_image, help="Container image the tasks run in. Left out, they run in any sandbox."
)
@output_dir_option
@click.version_option(__version__, prog_name="create-benchmark-service")
def main(name: str, framework: Framework | None, image: str | None, output_dir: Path) -> None:
    """Create a benchmark service in the new folder NAME-benchmark-service.

    It runs, tests, lints and type-checks as generated, with two example tasks to replace by your own.
    """
    chosen = framework or installed_framework(EXTRA)
    try:
        spec = ProjectSpec(benchmark_name(name), chosen.requirement, image)
        folder = generate(spec, output_dir)
    except GenerationError as error:
        raise click.ClickException(str(error)) from None
    click.echo(f"Created {spec.project} at {folder.resolve()}")
    click.echo(f"Framework: {chosen.origin}")
    click.echo(_next_steps(spec.name, folder))


def _next_steps(name: str, folder: Path) -> str:
    return f"""
Next:
  cd {way_to(folder)}
  make install
  make test
  make dev                          # serves on http://127.0.0.1:8001; go on in another terminal
  valk config service add {name} http://127.0.0.1:8001
  valk run start --benchmark {name} --agent ./agents/example"""
