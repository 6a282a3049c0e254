"""The files tasks come with, for runners that fetch them one by one."""

from __future__ import annotations

from pathlib import Path

from fastapi import HTTPException
from fastapi.responses import FileResponse
from pydantic import BaseModel

from benchmark_service.base import BenchmarkService

__all__ = ["TaskInputs", "input_file", "listed_inputs"]


class TaskInputEntry(BaseModel):
    """One file: its name, and where in the sandbox it goes."""

    filename: str
    dest: str


class TaskInputs(BaseModel):
    """All files of a task."""

    inputs: list[TaskInputEntry]


async def listed_inputs(service: BenchmarkService, task_id: str, dataset: str) -> TaskInputs:
    """What the service declares for the task."""
    declared = await service.list_task_inputs(task_id, dataset)
    return TaskInputs(inputs=[TaskInputEntry(filename=entry.filename, dest=entry.dest) for entry in declared])


async def input_file(service: BenchmarkService, task_id: str, filename: str, dataset: str) -> FileResponse:
    """One declared file's bytes; a name that is not declared never reaches the file system."""
    listed = await listed_inputs(service, task_id, dataset)
    if filename not in {entry.filename for entry in listed.inputs}:
        raise HTTPException(404, f"Input not found: {filename}")
    path = Path(await service.task_input_path(task_id, filename, dataset))
    if not path.is_file():
        raise HTTPException(404, f"Input not found: {filename}")
    return FileResponse(path, media_type="application/octet-stream", filename=filename)
