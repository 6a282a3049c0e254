"""Skills a task's own environment brings, shown to the agent where it looks for them."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandboxes.protocol import Sandbox
from sandboxes.types import Command, OutputSink, StreamName
from valkyrie.nouns import TaskSpec

# $1 has the skills, $3 below $2 is where they go, $4 whose they are then. Prints the names of those it
# copied: what the agent would find there anyway stays as it is. This is root's work in a folder where an
# earlier step's agent may have left links, which would give it what they lead to.
_BRING = """
cd -- "$1" 2>/dev/null || exit 65
to=$2
IFS=/
for part in $3; do
  to=$to/$part
  [ ! -L "$to" ] || exit 66
done
unset IFS
mkdir -p -- "$to" || exit 1
for skill in */; do
  skill=${skill%/}
  [ -f "$skill/SKILL.md" ] && [ ! -e "$to/$skill" ] && [ ! -L "$to/$skill" ] || continue
  cp -R -- "$skill" "$to/$skill" && { [ -z "$4" ] || chown -R -- "$4" "$to/$skill"; } || exit 1
  printf '%s\\n' "$skill"
done
[ -z "$4" ] || chown -- "$4" "$to"
"""
_NO_FOLDER = 65
_LINKED = 66
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

    words = ("/bin/sh", "-c", _BRING, "sh", source, task.cwd, at, task.user or "")
    code = await sandbox.run(Command(words), listen)
    names = "".join(printed).splitlines()
    if code == _NO_FOLDER:
        log("stderr", f"the task's skills_dir {source} is not there; the agent gets no skills\n")
    elif code == _LINKED:
        log("stderr", f"{task.cwd}/{at} is, or is below, a link; the agent gets no skills there\n")
    elif code != 0:
        log("stderr", f"not all skills of {source} could be copied (exit code {code})\n")
    return names
