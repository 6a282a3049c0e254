"""What a task leaves to the author of its image: whom commands run as, and what runs first.

All of it is read from the image, never from a sandbox an agent was in.
"""

from __future__ import annotations

from sandboxes.errors import SandboxUserError
from sandboxes.protocol import Sandbox
from sandboxes.types import Command, OutputSink
from valkyrie.errors import BenchmarkError
from valkyrie.nouns import TaskSpec

_ROOT = (None, "root", "0")


async def start_entrypoint(task: TaskSpec, sandbox: Sandbox, sink: OutputSink) -> None:
    """Run the entrypoint of the task's image in a sandbox that nobody hostile was in."""
    if "entrypoint" in task.of_image:
        await sandbox.start_entrypoint(task.env, sink)


async def check_user(task: TaskSpec, sandbox: Sandbox) -> None:
    """BenchmarkError when the sandbox, once it is set up, has no user that the agent is to run as."""
    if task.user in _ROOT:
        return
    try:
        await sandbox.run(Command(("/bin/sh", "-c", ":"), user=task.user))
    except SandboxUserError as error:
        whose = "USER of its image" if "user" in task.of_image else "agent.user"
        raise BenchmarkError(
            f"task {task.id}: {whose} {task.user!r} cannot be used: {error}", cause="task_setup_failed"
        ) from error
