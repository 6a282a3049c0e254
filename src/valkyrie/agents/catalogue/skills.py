"""Skills a task's own environment brings, shown to the agent where it looks for them."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandboxes.protocol import Sandbox
from sandboxes.types import Command, OutputSink, StreamName
from valkyrie.nouns import TaskSpec

# $1 has the skills, $2 is where they go, $3 whose they are then. Prints the names of those it copied: what
# the agent would find there anyway stays as it is.
_BRING = """
cd -- "$1" 2>/dev/null || exit 65
mkdir -p -- "$2" || exit 1
for skill in */; do
  skill=${skill%/}
  [ -f "$skill/SKILL.md" ] && [ ! -e "$2/$skill" ] || continue
  cp -R -- "$skill" "$2/$skill" && { [ -z "$3" ] || chown -R -- "$3" "$2/$skill"; } || exit 1
  printf '%s\\n' "$skill"
done
[ -z "$3" ] || chown -- "$3" "$2"
"""
_NO_FOLDER = 65
_TIDY = 'cd -- "$1" && rmdir -p -- "$2" 2>/dev/null; :'


@asynccontextmanager
async def skills_shown(sandbox: Sandbox, task: TaskSpec, at: str, log: OutputSink) -> AsyncIterator[None]:
    """The skills of `task.skills_dir` below its working folder at `at`, gone again before it is graded."""
    names = await _bring(sandbox, task, at, log)
    try:
        yield
    finally:
        for name in names:
            await sandbox.remove(f"{task.cwd}/{at}/{name}")
        if names:
            command = Command(("/bin/sh", "-c", _TIDY, "sh", task.cwd, at), user=task.user)
            await sandbox.run(command, log)


async def _bring(sandbox: Sandbox, task: TaskSpec, at: str, log: OutputSink) -> list[str]:
    source = posixpath.join(task.cwd, task.skills_dir or "")
    printed: list[str] = []

    def listen(stream: StreamName, text: str) -> None:
        if stream == "stdout":
            printed.append(text)
        else:
            log(stream, text)

    words = ("/bin/sh", "-c", _BRING, "sh", source, f"{task.cwd}/{at}", task.user or "")
    code = await sandbox.run(Command(words), listen)
    names = "".join(printed).splitlines()
    if code == _NO_FOLDER:
        log("stderr", f"the task's skills_dir {source} is not there; the agent gets no skills\n")
    elif code != 0:
        log("stderr", f"not all skills of {source} could be copied (exit code {code})\n")
    return names
