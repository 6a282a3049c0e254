"""The files of a benchmark runner's folder: read within bounds, and kept like those of our own trials."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from valkyrie.errors import UserError
from valkyrie.evals.foreign import source_text
from valkyrie.store.layout import log_of
from valkyrie.trial.collect import AGENT, GRADING, OUTPUT_LIMITS

LARGEST_FILE = 64 * 1024 * 1024
"""Bytes of one JSON file; an answer of that size is a mistake."""
LONGEST_SHOWN = 64 * 1024
"""Characters of a question or an answer in the log; the whole is in the files."""
LOGS = "agent_logs"
OUTPUT = "agent_output"
"""Where the answers of our own trials come out as well."""


def read_plain(file: Path) -> bytes:
    """A file's content; UserError for a link, for what is no file, and for what is too large."""
    try:
        handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as opened:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise UserError(f"{file} is no plain file; a runner writes one.", cause="records")
            content = opened.read(LARGEST_FILE + 1)
    except OSError as error:
        what = "is a link; a runner's folder holds none" if file.is_symlink() else "cannot be read"
        raise UserError(f"{file} {what} ({error.strerror}).", cause="records") from None
    if len(content) > LARGEST_FILE:
        raise UserError(f"{file} has more than {LARGEST_FILE >> 20} MiB.", cause="too_large")
    return content


def keep_task(target: Path, origin: str, *, folder: Path, task_id: str) -> None:
    """Keep one task's answer, evaluation and logs as those of an attempt."""
    output, grading = target / OUTPUT, target / GRADING
    output.mkdir(parents=True)
    grading.mkdir()
    told = read_plain(folder / "eval.json")
    (grading / "eval.json").write_bytes(told)
    lines = [f"ingested from {origin}", f"task {task_id}"]
    if (answer := folder / "generation.json").exists():
        content = read_plain(answer)
        (output / "generation.json").write_bytes(content)
        lines += _keep_answer(json.loads(content), output)
    lines.append(f"evaluation: {_shown(json.loads(told))}")
    lines += keep_below(folder / LOGS, target / AGENT)
    log_of(target).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _keep_answer(generation: dict[str, Any], output: Path) -> list[str]:
    """Write the answer by itself; what the log says of question and answer."""
    answer = generation.get("data", generation.get("answer"))
    if isinstance(answer, str):
        (output / "answer.txt").write_text(answer, encoding="utf-8", errors="replace")
    else:
        (output / "answer.json").write_text(json.dumps(answer) + "\n", encoding="utf-8")
    said = []
    if generation.get("question"):
        said.append(f"question: {_shown(generation['question'])}")
    said.append(f"answer ({generation.get('status')}): {_shown(answer)}")
    if generation.get("error"):
        said.append(f"error: {_shown(generation['error'])}")
    return said


def _shown(value: Any) -> str:
    return source_text(value if isinstance(value, str) else json.dumps(value), LONGEST_SHOWN)


def keep_below(logs: Path, target: Path) -> list[str]:
    """Copy the plain files of a folder, within bounds; return what the log says of what was left behind."""
    left: dict[str, int] = {}
    size = entries = 0
    for name, file in _below(logs):
        status = file.lstat()
        if not stat.S_ISREG(status.st_mode):
            left["no plain files"] = left.get("no plain files", 0) + 1
            continue
        size, entries = size + status.st_size, entries + 1
        if size > OUTPUT_LIMITS.max_bytes or entries > OUTPUT_LIMITS.max_entries:
            left["too much"] = left.get("too much", 0) + 1
            size -= status.st_size
            continue
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target / name, follow_symlinks=False)
    return [f"{count} entries of {logs.name} were left behind ({why})" for why, count in left.items()]


def _below(logs: Path) -> Iterator[tuple[Path, Path]]:
    """Everything but folders below a folder that is itself no link, by relative name."""
    if logs.is_symlink() or not logs.is_dir():
        return
    for parent, folders, names in os.walk(logs):
        linked = [name for name in folders if Path(parent, name).is_symlink()]
        for name in sorted([*names, *linked]):
            file = Path(parent, name)
            yield file.relative_to(logs), file
