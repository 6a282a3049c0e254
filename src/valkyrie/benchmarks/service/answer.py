"""The agent's text answer, taken from its `final_output`."""

from __future__ import annotations

from sandboxes.errors import SandboxFileNotFoundError
from sandboxes.protocol import Sandbox
from sandboxes.types import OutputSink
from valkyrie.errors import AgentOutputError

ANSWER_LIMIT = 4 * 1024 * 1024


async def read_answer(sandbox: Sandbox, final_output: str | None, log: OutputSink) -> str:
    """The text at `final_output`: a file, or a folder of one. An agent that left none said nothing."""
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
    return b"".join(pieces).decode("utf-8", "replace")


async def _only_file(sandbox: Sandbox, folder: str) -> str | None:
    found = await sandbox.list_files(f"{folder.rstrip('/')}/*")
    if len(found) > 1:
        raise AgentOutputError(
            f"{folder} holds {len(found)} files; a text-graded benchmark wants one answer. "
            "Let final_output name the file."
        )
    return found[0] if found else None
