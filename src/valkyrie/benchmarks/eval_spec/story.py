"""What happened in a trial, from what the agent left: its own events, its trajectory, or plain text."""

from __future__ import annotations

import asyncio
import json
import os
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sandboxes.errors import SandboxError
from valkyrie.benchmarks.eval_spec.golden import ORACLE, golden_transcript
from valkyrie.benchmarks.eval_spec.options import EvalOptions
from valkyrie.benchmarks.protocol import Grading
from valkyrie.nouns import ExitReason, Json
from valkyrie.specs.model import Stimulus
from valkyrie.trajectory.cut import is_cut, is_too_large
from valkyrie.trajectory.reading import TrajectoryError
from valkyrie.trajectory.records import from_record
from valkyrie.trajectory.transcript import TRANSCRIPT, Event, Measures, Transcript

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
class Story:
    """What happened in a trial."""

    transcript: Transcript
    as_left: bool = False
    """The file the agent left says just this."""


async def read_story(
    grading: Grading, stimulus: Stimulus, options: EvalOptions, skills: Sequence[str]
) -> Story:
    """The trial's transcript; an agent that left nothing said nothing."""
    if options.executor == ORACLE and (golden := golden_transcript(stimulus, tuple(skills))) is not None:
        return Story(_completed(golden, grading, options, skills))
    if grading.told is not None:
        whole = _completed(grading.told, grading, options, skills)
        return Story(whole, as_left=whole == grading.told)
    found: Transcript | None = None
    size = _size(grading.agent)
    # Handing few words to a thread takes longer than reading them.
    if grading.agent is not None and size is not None and size <= SHORT:
        found = _left_behind(grading.agent, skills)
    elif grading.agent is not None:
        found = await asyncio.to_thread(_left_behind, grading.agent, skills)
    if found is None:
        return Story(_completed(await _plain(grading, stimulus), grading, options, skills))
    whole = _completed(found, grading, options, skills)
    return Story(whole, as_left=size is not None and whole == found)


def _size(agent: Path | None) -> int | None:
    """Bytes of the transcript an agent left; None where it left none."""
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
    from valkyrie.trajectory import Trajectory
    from valkyrie.trajectory.converting import transcript_of

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
