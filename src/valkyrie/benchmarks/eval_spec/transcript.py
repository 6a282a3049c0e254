"""What happened in a trial, from what the agent left or from the stimulus's golden inputs."""

from __future__ import annotations

import asyncio
import json
import os
import tarfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sandboxes.errors import SandboxError
from valkyrie.benchmarks.eval_spec.source import EvalOptions
from valkyrie.benchmarks.protocol import Grading
from valkyrie.domain import ExitReason, Json
from valkyrie.errors import BenchmarkError
from valkyrie.grade.protocol import Need
from valkyrie.specs.model import FileEntry, Stimulus
from valkyrie.trajectory import Trajectory
from valkyrie.trajectory.conversion import transcript_of
from valkyrie.trajectory.json_fields import TrajectoryError
from valkyrie.trajectory.records import from_record
from valkyrie.trajectory.transcript import TRANSCRIPT, Event, Measures, Transcript, is_cut, is_too_large

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
    """Return whether its author says what a right answer is."""
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


# What happened in a trial, from what the agent left: its own events, its trajectory, or plain text.

TRAJECTORY = "trajectory.json"
OUTPUT = "output.txt"
OUTPUT_ARCHIVE = "agent_output.tar.gz"
"""The file of an attempt that holds what was at the agent's `final_output`."""
LONGEST_ANSWER = 4 << 20
DEEPEST = 200
"""Levels of nesting; what is deeper can be read, and then neither written nor searched."""
SHORT = 64 << 10
_ENDS = {ExitReason.TIMEOUT: "timeout", ExitReason.OS_KILLED: "killed"}


@dataclass(frozen=True, slots=True)
class TrialAccount:
    """What happened in a trial."""

    transcript: Transcript
    as_left: bool = False
    """The file the agent left says just this."""


async def read_account(
    grading: Grading, stimulus: Stimulus, options: EvalOptions, skills: Sequence[str]
) -> TrialAccount:
    """The trial's transcript; an agent that left nothing said nothing."""
    if options.executor == ORACLE and (golden := golden_transcript(stimulus, tuple(skills))) is not None:
        return TrialAccount(_completed(golden, grading, options, skills))
    if grading.told is not None:
        whole = _completed(grading.told, grading, options, skills)
        return TrialAccount(whole, as_left=whole == grading.told)
    found: Transcript | None = None
    size = _size(grading.agent)
    # Handing few words to a thread takes longer than reading them.
    if grading.agent is not None and size is not None and size <= SHORT:
        found = _left_behind(grading.agent, skills)
    elif grading.agent is not None:
        found = await asyncio.to_thread(_left_behind, grading.agent, skills)
    if found is None:
        return TrialAccount(_completed(await _plain(grading, stimulus), grading, options, skills))
    whole = _completed(found, grading, options, skills)
    return TrialAccount(whole, as_left=size is not None and whole == found)


def _size(agent: Path | None) -> int | None:
    """Return bytes of the transcript an agent left; None where it left none."""
    try:
        return None if agent is None else os.stat(f"{agent}/{TRANSCRIPT}").st_size  # noqa: PTH116 - each trial
    except OSError:
        return None


def _left_behind(agent: Path, skills: Sequence[str]) -> Transcript | None:
    try:
        if (data := _read(agent / TRANSCRIPT)) is not None:
            return from_record(data)
        if (data := _read(agent / TRAJECTORY)) is not None:
            return _from_steps(data, skills)
    except (TrajectoryError, ValueError, KeyError, TypeError, RecursionError) as error:
        # What an agent left may be anything; the graders see that it could not be read.
        message = f"what the agent left could not be read: {error}"[:500]
        return Transcript("", [Event("error", {"message": message})], Measures(error_count=1))
    return None


def _from_steps(data: Json, skills: Sequence[str]) -> Transcript:
    return transcript_of(Trajectory.from_json(data), skills=skills)


def _read(path: Path) -> Json | None:
    if not path.is_file():
        return None
    if is_too_large(size := path.stat().st_size):
        raise ValueError(f"it has {size >> 20} MiB, more than trajectory_max_mb allows")
    found: Json = json.loads(path.read_text("utf-8", "replace"))
    if _is_too_deep(found):
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    if isinstance(found, dict) and is_cut(found):
        raise ValueError("it is so large that only its beginning was kept, which tells nothing of the rest")
    return found


def _is_too_deep(data: object) -> bool:
    level: list[object] = [data]
    for _ in range(DEEPEST):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True


async def _plain(grading: Grading, stimulus: Stimulus) -> Transcript:
    """One turn of an agent that does not tell its steps: the file its contract names, or what it printed."""
    text = await _answer(grading)
    events = [Event("turn_start", {"turnId": "0"}), Event("user_message", {"content": stimulus.turns[0]})]
    if text:
        events.append(Event("assistant_message", {"content": text}))
    if grading.exit_code not in (None, 0):
        message = f"the agent ended with exit code {grading.exit_code}"
        events.append(Event("error", {"message": message}))
    else:
        events.append(Event("turn_end", {"turnId": "0"}))
    errors = sum(1 for event in events if event.type == "error")
    return Transcript(text, events, Measures(turn_count=1, error_count=errors))


def silent_transcript(stimulus: Stimulus, options: EvalOptions, skills: Sequence[str]) -> Transcript:
    """The transcript of an agent that was told its turns and did nothing."""
    events: list[Event] = []
    for number, text in enumerate(stimulus.turns):
        turn = {"turnId": str(number)}
        events += [
            Event("turn_start", turn),
            Event("user_message", {"content": text, **turn}),
            Event("turn_end", turn),
        ]
    return Transcript(
        "",
        events,
        Measures(turn_count=len(stimulus.turns)),
        model=options.model,
        executor=options.executor,
        skills_loaded=tuple(skills),
    )


async def _answer(grading: Grading) -> str:
    if grading.place is not None and grading.final_output:
        try:
            if not await grading.place.is_folder(grading.final_output):
                data = await grading.place.download_file(grading.final_output)
                return data[:LONGEST_ANSWER].decode("utf-8", "replace").strip()
        except SandboxError:
            # It left none, or left it where nothing is carried from; then it was taken out before.
            if (
                kept := await asyncio.to_thread(_kept_answer, grading.agent, grading.final_output)
            ) is not None:
                return kept
    printed = grading.agent / OUTPUT if grading.agent else None
    if printed and printed.is_file():
        return printed.read_text("utf-8", "replace")[:LONGEST_ANSWER].strip()
    return ""


def _kept_answer(agent: Path | None, final_output: str) -> str | None:
    """The file at `final_output` as it was taken out of the agent's sandbox, if it was one file."""
    if agent is None or not (archive := agent.parent / OUTPUT_ARCHIVE).is_file():
        return None
    try:
        with tarfile.open(archive, "r:gz") as tar:
            members = [member for member in tar if member.isfile()]
            if [Path(member.name).name for member in members] != [Path(final_output).name]:
                return None
            file = tar.extractfile(members[0])
            return file.read(LONGEST_ANSWER).decode("utf-8", "replace").strip() if file else None
    except (tarfile.TarError, OSError, EOFError):
        return None


def _completed(
    found: Transcript, grading: Grading, options: EvalOptions, skills: Sequence[str]
) -> Transcript:
    """With what only the engine knows: how long it took, how it ended, what it was given."""
    measures = found.measures
    took = round((grading.seconds or 0.0) * 1000, 1)
    # Time is what we know better than any agent; a fixture's is its author's, and he may set it.
    if not measures.wall_time_ms or (options.executor != "mock" and measures.wall_time_ms < took):
        measures = replace(measures, wall_time_ms=took)
    if grading.tokens and not (measures.total_tokens or measures.input_tokens + measures.output_tokens):
        given, taken = grading.tokens
        measures = replace(measures, input_tokens=given, output_tokens=taken, total_tokens=given + taken)
    known: Json = {
        "measures": measures,
        "model": found.model or options.model,
        "executor": found.executor or options.executor,
        "skills_loaded": found.skills_loaded or tuple(skills),
        "end_reason": found.end_reason or (_ENDS.get(grading.exit_reason) if grading.exit_reason else None),
    }
    added = {name: value for name, value in known.items() if value != getattr(found, name)}
    return replace(found, **added) if added else found
