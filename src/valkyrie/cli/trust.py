"""`trust`: let the plugins of a project run on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from benchmark_runner.terminal import Column, Table, safe
from valkyrie.cli.options import verb
from valkyrie.cli.output import Output
from valkyrie.errors import UsageError, ValkyrieError
from valkyrie.specs.project import FILENAMES, examine_project, find_file
from valkyrie.trust import ProjectCode, record_trust, remove_trust, trust_state, trusted_projects

if TYPE_CHECKING:
    from valkyrie.trust import TrustedProject


@verb("trust", examples="valk trust\nvalk trust ~/work/our-evals\nvalk trust --list\nvalk trust --remove")
@click.argument("path", required=False, type=click.Path(path_type=Path))
@click.option("--list", "listed", is_flag=True, help="List the trusted projects, and which have changed.")
@click.option("--remove", is_flag=True, help="Trust the project no longer.")
def trust(output: Output, *, path: Path | None, listed: bool, remove: bool) -> int:
    """Let a project's own plugins run on this machine.

    Plugins that a .vally.yaml names are Python that runs here, outside any sandbox. They are loaded only from
    a project that was trusted: its folder, and a digest of its .vally.yaml, its plugins' files and the Python
    files beside those. Whenever one of them changes, the project must be trusted again. PATH is the
    project's folder or any below it; without one, the current folder. Nothing is loaded by this command.

    A folder outside any repository and without a .vally.yaml is trusted as the top of its specs: they may
    name files anywhere below it.
    """
    if listed and remove:
        raise click.UsageError("--list and --remove exclude each other.")
    if listed:
        return _list(output)
    return _remove(output, path) if remove else _trust(output, path)


def _trust(output: Output, path: Path | None) -> int:
    code = _code(path)
    entry = record_trust(code)
    files = [str(file) for file in code.files() if file.exists()]
    output.emit("trust", folder=str(entry.folder), digest=entry.digest, files=files, plugins=code.plugins)
    output.line(f"Trusted {safe(str(entry.folder))}  {entry.digest[:12]}")
    output.lines(f"  {safe(file)}" for file in files)
    if not code.plugins:
        output.line("It names no plugins: nothing of it runs on this machine outside a sandbox.")
    return 0


def _remove(output: Output, path: Path | None) -> int:
    folder = _recorded_folder(path or Path())
    if folder is None:
        raise UsageError(f"{path or Path.cwd()} is not trusted; `valk trust --list` shows what is.")
    remove_trust(folder)
    output.emit("trust_removed", folder=str(folder))
    output.line(f"{safe(str(folder))} is not trusted any more.")
    return 0


def _recorded_folder(path: Path) -> Path | None:
    """Return the nearest folder at or above `path` that is in the record."""
    known = {one.folder for one in trusted_projects()}
    here = path.resolve()
    return next((folder for folder in (here, *here.parents) if folder in known), None)


def _list(output: Output) -> int:
    known = [(one, _state(one)) for one in trusted_projects()]
    output.emit(
        "trusted",
        projects=[
            {"folder": str(one.folder), "digest": one.digest, "since": one.since, "state": state}
            for one, state in known
        ],
    )
    if not known:
        output.line("No project is trusted. `valk trust PATH` trusts one.")
        return 0
    rows: list[Sequence[str]] = [
        [safe(str(one.folder)), one.digest[:12], one.since[:10], state] for one, state in known
    ]
    output.table(Table([Column(title) for title in ("Folder", "Digest", "Since", "State")], rows))
    return 0


def _state(entry: TrustedProject) -> str:
    try:
        return trust_state(_code(entry.folder))
    except ValkyrieError:
        return "gone"


def _code(path: Path | None) -> ProjectCode:
    """Return what of the project around `path` can execute; files of other users are read here."""
    start = path or Path()
    if not start.exists():
        raise UsageError(f"there is no {start}; name a project's folder.")
    file = find_file(start if start.is_dir() else start.parent)
    if file is None:
        return ProjectCode((start if start.is_dir() else start.parent).resolve() / FILENAMES[0])
    project, notes = examine_project(file)
    notes.raise_errors()
    code = project.code()
    if code is None:
        raise AssertionError("a project that was read has a file")
    return code
