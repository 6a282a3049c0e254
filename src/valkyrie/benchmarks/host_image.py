"""`--host-image`: repeat a task's Dockerfile on whatever root file system the sandbox has.

A stand-in, not the image: the base image is not used, and a RUN line that fails is noted in the log and
passed over, because most of them install what the root may already have.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from sandboxes.dockerignore import Dockerignore
from sandboxes.protocol import Sandbox
from sandboxes.types import Command, OutputSink
from valkyrie.benchmarks.dockerfile import CopyFiles, MakeFolder, Recipe, RunProgram
from valkyrie.benchmarks.transfer import make_folder, put_file, put_folder


async def repeat_dockerfile(recipe: Recipe, context: Path, sandbox: Sandbox, log: OutputSink) -> None:
    """Carry out the steps of `recipe`; `context` is the folder of the Dockerfile."""
    for note in recipe.notes:
        log("stderr", f"Dockerfile {note}\n")
    ignore = Dockerignore.of(context)
    if not ignore.rules:
        await _repeat(recipe, context, sandbox, log)
        return
    with tempfile.TemporaryDirectory(prefix="valkyrie-") as scratch:
        allowed = Path(scratch) / "context"
        await asyncio.to_thread(
            shutil.copytree, context, allowed, symlinks=True, ignore=ignore.names_left_out
        )
        await _repeat(recipe, allowed, sandbox, log)


async def _repeat(recipe: Recipe, context: Path, sandbox: Sandbox, log: OutputSink) -> None:
    for step in recipe.steps:
        if isinstance(step, MakeFolder):
            await make_folder(sandbox, step.path)
        elif isinstance(step, CopyFiles):
            await _copy(step, context, sandbox, log)
        else:
            await _run(step, sandbox, log)


async def _run(step: RunProgram, sandbox: Sandbox, log: OutputSink) -> None:
    code = await sandbox.run(Command(step.argv, cwd=step.cwd, env=step.env), log)
    if code != 0:
        log("stderr", f"Dockerfile line {step.line}: RUN ended with exit code {code}; going on without it\n")


async def _copy(step: CopyFiles, context: Path, sandbox: Sandbox, log: OutputSink) -> None:
    root = context.resolve()
    for pattern in step.sources:
        found = [root] if pattern in (".", "./") else sorted(root.glob(pattern.removeprefix("./")))
        inside = [path for path in found if path.resolve().is_relative_to(root)]
        if not inside:
            log("stderr", f"Dockerfile COPY {pattern}: nothing of that name beside the Dockerfile\n")
        for path in inside:
            if path.is_dir():
                await put_folder(sandbox, path, step.target.rstrip("/") or "/")
            elif step.target.endswith("/") or await sandbox.is_folder(step.target):
                await put_file(sandbox, path, f"{step.target.rstrip('/')}/{path.name}")
            else:
                await put_file(sandbox, path, step.target)
