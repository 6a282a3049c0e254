"""What the agent of an exported task finds: the workspace's files, and a script for what must be run."""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
from pathlib import Path, PurePosixPath

from valkyrie.benchmarks.eval_spec.git_staging import lay_out_repository
from valkyrie.benchmarks.eval_spec.options import WORKSPACE
from valkyrie.benchmarks.eval_spec.staging import lay_out, leaving_links
from valkyrie.errors import BenchmarkError, UserError
from valkyrie.specs.model import FileEntry, GitSource, Stimulus
from valkyrie.specs.skills import read_skill

SKILLS_AT = ".agents/skills"
RESERVED = ("Dockerfile", "docker-compose.yaml", "docker-compose.yml", "setup.sh")
"""Names that mean something at the top of `environment/`; a workspace's own are moved back by its setup."""
ASIDE = ".workspace"
_REPOSITORY = (
    "if command -v git >/dev/null; then\n"
    "  git init --quiet && git add -A\n"
    "  git -c user.name=export -c user.email=export@localhost commit --quiet -m start || true\n"
    "fi"
)


def write_environment(stimulus: Stimulus, environment: Path, image: str | None) -> list[str]:
    """Write the task's `environment/`; what could not be taken along."""
    declared = stimulus.environment
    left_out = [f"MCP server {name}: it runs on the machine of the spec" for name in declared.mcp_servers]
    if stimulus.attachments:
        left_out.append("attachments: a task directory has none")
    workspace = environment / "workspace" if image else environment
    workspace.mkdir(parents=True, exist_ok=True)
    steps = ["#!/bin/bash", "set -e"]
    if declared.git:
        _export_repository(declared.git, workspace)
        left_out.append(f"history of {declared.git.source}: only its files are there, as one commit")
    for entry in declared.files:
        put(entry, workspace)
    for skill in declared.skills or ():
        found = read_skill(skill.folder)
        _copy(found.folder, workspace, PurePosixPath(SKILLS_AT, found.folder.resolve().name))
    if not image:
        steps += _set_aside(workspace)
    if declared.git:
        steps.append(_REPOSITORY)
    seconds = max(1, round(declared.command_timeout))
    steps += [f"timeout {seconds} sh -c {shlex.quote(command)}" for command in declared.commands]
    runs = len(steps) > 2
    if runs:
        script = environment / "setup.sh"
        script.write_text("\n".join(steps) + "\n", encoding="utf-8")
        script.chmod(0o755)
    if image:
        (environment / "Dockerfile").write_text(_dockerfile(image, runs=runs), encoding="utf-8")
        if not os.path.lexists(workspace / ".keep"):
            (workspace / ".keep").touch()
    return left_out


def _dockerfile(image: str, *, runs: bool) -> str:
    lines = [f"FROM {image}", f"WORKDIR {WORKSPACE}", f"COPY workspace/ {WORKSPACE}/", "RUN rm -f .keep"]
    if runs:
        lines += ["COPY setup.sh /tmp/setup.sh", "RUN bash /tmp/setup.sh && rm /tmp/setup.sh"]
    return "\n".join(lines) + "\n"


def _set_aside(workspace: Path) -> list[str]:
    """Commands that give files their names back which `environment/` cannot hold under them."""
    steps = []
    for name in RESERVED:
        if os.path.lexists(workspace / name):
            (workspace / name).rename(workspace / f"{name}{ASIDE}")
            steps.append(f"mv -- {name}{ASIDE} {name}")
    return steps


def put(entry: FileEntry, workspace: Path) -> None:
    """A file, or a folder with all that is in it, to where the workspace has it."""
    target = PurePosixPath(entry.dest)
    if target.is_absolute() and target.is_relative_to(WORKSPACE):
        target = target.relative_to(WORKSPACE)
    if target.is_absolute() or ".." in target.parts:
        raise UserError(f"{entry.place or entry.base}: dest {entry.dest!r} is outside the workspace.")
    if not entry.source.exists():
        raise UserError(f"{entry.place or entry.base}: {entry.source} does not exist.")
    into = entry.source.is_file() and (entry.dest.endswith("/") or (workspace / target).is_dir())
    _copy(entry.source, workspace, target / entry.source.name if into else target)


def _copy(source: Path, workspace: Path, target: PurePosixPath) -> None:
    """Copy below a workspace; no link in it is written through."""
    try:
        lay_out(workspace, [(Path(os.path.realpath(source)), str(target))])
    except BenchmarkError as error:
        raise UserError(str(error)) from error


def _export_repository(git: GitSource, workspace: Path) -> None:
    """The files of one commit, without its history."""
    with tempfile.TemporaryDirectory(prefix="valkyrie-export-") as scratch:
        try:
            files = lay_out_repository(git, Path(scratch))
        except UserError as error:
            raise UserError(f"{git.place}: {error}", cause=error.cause) from error
        shutil.rmtree(files / ".git")
        if link := next(leaving_links(files), None):
            raise UserError(f"{git.place}: the link {link} of {git.source} leads out of the repository.")
        _copy(files, workspace, PurePosixPath("."))
