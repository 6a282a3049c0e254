"""What `run-command` and `program` share: where they run, and what may not be set."""

from __future__ import annotations

from pathlib import PurePosixPath

from valkyrie.errors import GraderError
from valkyrie.grade.config import Config
from valkyrie.grade.protocol import Given, Workbench

RESERVED = ("EVALUATE_WORKSPACE", "EVALUATE_GRADER_INPUT")
DEFAULT_TIMEOUT_S = 60.0


def bench_of(given: Given) -> Workbench:
    """Where programs run, or the error that there is no such place."""
    if given.bench is None:
        raise GraderError(
            "there is no sandbox to run a program in. With `valkyrie grade`, name the workspace: "
            "--workspace DIR."
        )
    return given.bench


def sub_path(config: Config) -> str:
    """`sub_path`, which stays inside the workspace."""
    said = config.text("sub_path", default="")
    path = PurePosixPath(said)
    if path.is_absolute() or ".." in path.parts or "\0" in said or "\\" in said:
        raise config.wrong(f"`sub_path` is {said!r}; it must be a folder inside the workspace.")
    return "" if str(path) == "." else str(path)


def arguments(config: Config) -> tuple[str, ...]:
    """`args`: a list of texts, empty ones included."""
    listed = config.value("args", default=[])
    wanted = isinstance(listed, list | tuple) and all(isinstance(one, str | int | float) for one in listed)
    if not wanted or any("\0" in str(one) for one in listed):
        raise config.wrong(f"`args` is {listed!r}; it must be a list of texts.")
    return tuple(str(one).lower() if isinstance(one, bool) else str(one) for one in listed)
