"""The agent's text answer, taken from its `final_output`."""

from __future__ import annotations

import json

from sandboxes.errors import SandboxFileNotFoundError
from sandboxes.protocol import Sandbox
from sandboxes.types import OutputSink
from valkyrie.errors import AgentOutputError

ANSWER_LIMIT = 4 * 1024 * 1024
GENERATION = "generation.json"
"""What a benchmark runner leaves of a task, in a folder of the task's own."""
RUN = "run_config.json"
"""What makes a folder that of a runner's run, also when there is no answer in it."""
_REASON_LIMIT = 500


async def read_answer(sandbox: Sandbox, final_output: str | None, log: OutputSink) -> str:
    """The text at `final_output`: a file, a folder of one, or the folder of a benchmark runner's run.

    An agent that left none said nothing.
    """
    path = final_output
    if path is not None and await sandbox.is_folder(path):
        path = await _only_file(sandbox, path)
    if path is None:
        log("stderr", f"the agent left no answer at {final_output or 'any final_output'}: graded as empty\n")
        return ""
    pieces, size = [], 0
    try:
        async for piece in sandbox.stream_download(path):
            size += len(piece)
            if size > ANSWER_LIMIT:
                raise AgentOutputError(f"{path} is no answer: it has more than {ANSWER_LIMIT >> 20} MiB.")
            pieces.append(piece)
    except SandboxFileNotFoundError:
        log("stderr", f"the agent left no answer at {path}: graded as empty\n")
        return ""
    text = b"".join(pieces).decode("utf-8", "replace")
    return _generated(text, path) if path != final_output and path.endswith(f"/{GENERATION}") else text


async def _only_file(sandbox: Sandbox, folder: str) -> str | None:
    below = folder.rstrip("/")
    found = await sandbox.list_files(f"{below}/*/{GENERATION}")
    if not found:
        found = await sandbox.list_files(f"{below}/*")
        if f"{below}/{RUN}" in found:
            return None
    if len(found) > 1:
        raise AgentOutputError(
            f"{folder} holds {len(found)} files; a text-graded benchmark wants one answer. "
            "Let final_output name the file."
        )
    return found[0] if found else None


def _generated(text: str, path: str) -> str:
    """The answer in a runner's generation. One that failed is no answer, and not to be graded as one."""
    try:
        generation = json.loads(text)
    except (ValueError, RecursionError):
        generation = None
    if not isinstance(generation, dict):
        raise AgentOutputError(f"{path} is no JSON object, so there is no answer in it.")
    if generation.get("status") == "error":
        reason = str(generation.get("error") or "it does not say why")[:_REASON_LIMIT]
        raise AgentOutputError(f"The runner could not answer: {reason}")
    answer = generation.get("data", generation.get("answer"))
    return answer if isinstance(answer, str) else "" if answer is None else json.dumps(answer)
