"""Golden inputs of a stimulus: a patch, a command and a trajectory that are known to be right."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from valkyrie.errors import BenchmarkError
from valkyrie.grade.protocol import Need
from valkyrie.nouns import Json
from valkyrie.specs.model import FileEntry, Stimulus
from valkyrie.trajectory import Trajectory
from valkyrie.trajectory.converting import transcript_of
from valkyrie.trajectory.reading import TrajectoryError
from valkyrie.trajectory.transcript import Transcript

ORACLE = "oracle"
"""The agent that is given them, and no other."""
MOST_BYTES = 16 << 20
_SOLVE = """\
set -e
cd {cwd}
here=$(dirname "$0")
if [ -f "$here/golden.patch" ]; then
  if command -v git >/dev/null 2>&1; then
    git apply --whitespace=nowarn "$here/golden.patch"
  else
    patch -p1 < "$here/golden.patch"
  fi
fi
if [ -f "$here/golden_command.sh" ]; then /bin/sh "$here/golden_command.sh"; fi
"""


def has_golden(stimulus: Stimulus) -> bool:
    """Whether its author says what a right answer is."""
    given = (
        stimulus.golden_patch,
        stimulus.golden_patch_file,
        stimulus.golden_command,
        stimulus.golden_trajectory,
        stimulus.golden_trajectory_file,
    )
    return any(one is not None for one in given)


def patch_to_show(stimulus: Stimulus, needs: Collection[Need]) -> str | None:
    """Return the golden patch for graders with these needs; a file that none of them asks for is not read."""
    return golden_patch(stimulus) if Need.GOLDEN_PATCH in needs else stimulus.golden_patch


def golden_patch(stimulus: Stimulus) -> str | None:
    """The patch, written out or from its file. Raises BenchmarkError where the file cannot be read."""
    if stimulus.golden_patch is not None or stimulus.golden_patch_file is None:
        return stimulus.golden_patch
    return _text(stimulus.golden_patch_file, "golden_patch")


def golden_transcript(stimulus: Stimulus, skills: tuple[str, ...] = ()) -> Transcript | None:
    """The trajectory as graders see it; its output is the agent's last message."""
    data, file = stimulus.golden_trajectory, stimulus.golden_trajectory_file
    if data is None and file is None:
        return None
    try:
        found: Json = (data or {}) if file is None else json.loads(_text(file, "golden_trajectory"))
        return transcript_of(Trajectory.from_json(found), skills=skills)
    except (TrajectoryError, ValueError, TypeError, RecursionError) as error:
        what = f"stimulus {stimulus.name!r}: `golden_trajectory` is no ATIF trajectory: {error}"
        raise BenchmarkError(what, cause="task_broken") from None


def write_solution(stimulus: Stimulus, folder: Path, cwd: str) -> Path:
    """Write the folder of a solution that applies patch and command in `cwd`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "solve.sh").write_text(_SOLVE.format(cwd=cwd), "utf-8")
    if (patch := golden_patch(stimulus)) is not None:
        (folder / "golden.patch").write_text(patch if patch.endswith("\n") else f"{patch}\n", "utf-8")
    if stimulus.golden_command is not None:
        (folder / "golden_command.sh").write_text(f"{stimulus.golden_command}\n", "utf-8")
    return folder


def _text(entry: FileEntry, key: str) -> str:
    try:
        with entry.source.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise OSError(f"it has more than {MOST_BYTES >> 20} MiB")
        return data.decode()
    except (OSError, UnicodeDecodeError) as error:
        message = f"`{key}`: {entry.source} cannot be read: {error}"
        raise BenchmarkError(message, cause="task_broken") from None
