"""What the command lines of both scaffolders share."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from benchmark_service.scaffolding.framework import Framework, framework_at


def framework_option(extra: str | None = None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--framework PATH`, given to the command as a Framework or None."""

    def found(_context: click.Context, _parameter: click.Parameter, path: Path | None) -> Framework | None:
        try:
            return None if path is None else framework_at(path, extra)
        except ValueError as error:
            raise click.BadParameter(f"{error}.") from None

    return click.option(
        "--framework",
        type=click.Path(exists=True, path_type=Path),
        callback=found,
        help="The framework to depend on: a checkout, a wheel or a .tar.gz. "
        "Left out, it is where this command was installed from.",
    )


output_dir_option = click.option(
    "--output-dir",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    help="Folder to create the project in. Left out, the current one.",
)


def way_to(folder: Path) -> str:
    """The folder as an argument for `cd`: relative unless that climbs."""
    way = os.path.relpath(folder)
    return shlex.quote(str(folder.resolve()) if way.startswith(os.pardir) else way)
