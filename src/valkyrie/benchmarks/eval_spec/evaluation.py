"""Grading one stimulus: what needs the sandbox first, then a checkpoint, then judges."""

from __future__ import annotations

import asyncio
import errno
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from sandboxes.errors import SandboxCrowdedError, SandboxError, SandboxFullError
from sandboxes.protocol import Sandbox
from sandboxes.types import OutputSink
from valkyrie.benchmarks.eval_spec import workspace
from valkyrie.benchmarks.eval_spec.layout import Checkouts
from valkyrie.benchmarks.eval_spec.snapshots import (
    folder_name,
    keep_artifacts,
    materialise,
    read_turn_patches,
    turn_patch,
)
from valkyrie.benchmarks.eval_spec.source import EvalOptions, all_needs, asking_of
from valkyrie.benchmarks.eval_spec.transcript import (
    ORACLE,
    TrialAccount,
    patch_to_show,
    read_account,
    silent_transcript,
)
from valkyrie.benchmarks.eval_spec.workbench import SandboxWorkbench
from valkyrie.benchmarks.protocol import Grading
from valkyrie.domain import ExitReason, Grade, Json
from valkyrie.errors import AgentError, GraderError, GraderTimeoutError, UserError
from valkyrie.grade.graders import SCORING_TIMEOUT, GradingTime, MadeGrader, grade_all, verdict
from valkyrie.grade.protocol import (
    JUDGE_NO_VERDICT,
    JUDGE_REFUSED,
    TOKENS_UNREPORTED,
    ConstraintResult,
    GraderInput,
    GraderResult,
    Need,
    Workbench,
    check_constraints,
)
from valkyrie.specs.model import DEFAULT_TIMEOUT_S, EvalSpec, Stimulus
from valkyrie.trajectory.records import to_record
from valkyrie.trajectory.transcript import TRANSCRIPT, Transcript

PATCH = "workspace.patch"
JUDGED = "judged"
"""The workspace as judges are shown it, kept until they have spoken."""
ARTIFACTS = "artifacts"
GRADERS = "graders.json"
"""What each grader said, where one of them could not tell."""
_LOOKED_AT = frozenset({Need.WORKSPACE, Need.DIFF})
_HOST_FAULTS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE, errno.ENFILE})


class StimulusGrading:
    """How the trials of one stimulus are graded."""

    def __init__(
        self,
        stimulus: Stimulus,
        spec: EvalSpec,
        options: EvalOptions,
        made: Sequence[MadeGrader],
        threshold: float | None,
        checkouts: Checkouts,
    ) -> None:
        self._stimulus = stimulus
        self._spec = spec
        self._options = options
        self._made = made
        self._checks = [one for one in made if not one.is_judge]
        self._judges = [one for one in made if one.is_judge]
        self._needs = all_needs(made)
        self._threshold = threshold
        self._checkouts = checkouts
        self.wants_diff = Need.DIFF in self._needs
        self.runs_programs = Need.PROGRAMS in self._needs
        self._diff_turns = frozenset(
            one.diff_turn
            for one in made
            if one.diff_turn is not None and one.diff_turn < len(stimulus.turns) - 1
        )

    @cached_property
    def _golden_patch(self) -> str | None:
        return patch_to_show(self._stimulus, self._needs)

    @cached_property
    def _skills(self) -> Sequence[str]:
        return workspace.skill_names(self._stimulus, self._options)

    async def grade(self, grading: Grading) -> Grade:
        """The verdict of all graders, or GraderError when one of them cannot tell.

        An agent that was cut off, or ended in failure without a word, gave no answer: that is graded 0.
        """
        if grading.control:
            return await self._grade_start(grading)
        story = await read_account(grading, self._stimulus, self._options, self._skills)
        with _reading_work():
            given = await self._given(grading, story.transcript)
        if not story.as_left:
            await asyncio.to_thread(_write_json, grading.evidence / TRANSCRIPT, self._record(grading, story))
        unfinished = self._unfinished(grading, given.transcript)
        if self._options.skip_grade:
            if unfinished is not None:
                raise unfinished
            return Grade(None, None, {"graded": False})
        if unfinished is not None:
            result: Json = {"graders": [], "threshold": self._threshold}
            return Grade(0.0, False, result, cause=unfinished.cause, message=str(unfinished))
        held = await self._constraints(given)
        if not self._made:
            return _ungraded(held)
        time = GradingTime.from_now(self._spec.scoring.timeout)
        if grading.saved is None:
            results = await grade_all(self._checks, given, time=time)
            if self._judges:
                await self._set_aside(grading, given, self._record(grading, story))
                await grading.save({"results": [one.to_json() for one in results]})
        else:
            results = [GraderResult.from_json(one) for one in grading.saved["results"]]
        checked, judged = iter(results), iter(await self._ask_judges(given, time))
        in_order = [next(judged if one.is_judge else checked) for one in self._made]
        if self._options.executor == ORACLE and _is_silent(given.transcript):
            in_order = [
                _not_applicable(said) if one.absence_only else said
                for one, said in zip(self._made, in_order, strict=True)
            ]
            if all(one.status == "skipped" for one in in_order):
                return _ungraded(held, in_order)
        return await self._verdict(in_order, grading, held)

    async def _constraints(self, given: GraderInput) -> tuple[ConstraintResult, ...]:
        enforced = self._options.enforce_constraints
        return await check_constraints(self._stimulus.constraints, given, enforced=enforced)

    async def _ask_judges(self, given: GraderInput, time: GradingTime | None) -> list[GraderResult]:
        """Return what judges say. One that ended without a verdict is asked once more, from the beginning.

        By chance a model does not call its tool; what the agent wrote is not to be blamed for that.
        """
        results = await grade_all(self._judges, given, time=time)
        silent = [at for at, one in enumerate(results) if _cause_of(one) == JUDGE_NO_VERDICT]
        if silent:
            again = await grade_all([self._judges[at] for at in silent], given, time=time)
            for at, result in zip(silent, again, strict=True):
                results[at] = result
        return results

    async def _grade_start(self, grading: Grading) -> Grade:
        """The verdict on a workspace nobody touched, with nothing said and nothing changed.

        It tells whether the graders can tell at all; nothing of it is kept, and nothing is saved.
        """
        turns = len(self._stimulus.turns)
        given = GraderInput(
            stimulus=self._stimulus,
            transcript=silent_transcript(self._stimulus, self._options, self._skills),
            bench=self._bench(grading),
            asking=asking_of(self._spec, self._options),
            golden_patch=self._golden_patch,
            diff="" if self.wants_diff else None,
            turn_diffs=dict.fromkeys(range(turns), "") if self._diff_turns else {},
        )
        if grading.place is not None and grading.start is not None and self._needs & _LOOKED_AT:
            final = await workspace.snapshot(
                self._stimulus,
                self._options,
                grading.place,
                grading.start,
                grading.log,
                checkouts=self._checkouts,
            )
            unseen = workspace.unseen(self._stimulus, self._options, final)
            given = replace(given, workspace=final, unseen=unseen)
        time = GradingTime.from_now(self._spec.scoring.timeout)
        return await self._verdict(await grade_all(self._made, given, time=time), grading)

    async def look_after_turn(self, number: int, sandbox: Sandbox, log: OutputSink, start: Path) -> None:
        """Keep what has changed so far, if a grader wants to know that of this turn."""
        if number not in self._diff_turns:
            return
        try:
            state = await workspace.snapshot(
                self._stimulus, self._options, sandbox, start, log, checkouts=self._checkouts
            )
            diff = await workspace.diff(start, state)
        except GraderError as error:
            log("stderr", f"what changed up to turn {number} cannot be told: {error}\n")
            return
        await asyncio.to_thread(_write, start / turn_patch(number), diff)

    def _record(self, grading: Grading, story: TrialAccount) -> Json:
        return to_record(
            story.transcript,
            id=f"{self._stimulus.name}#{grading.k}",
            stimulus=self._stimulus.name,
            work_dir=grading.task.cwd,
        )

    async def _verdict(
        self, results: Sequence[GraderResult], grading: Grading, held: Sequence[ConstraintResult] = ()
    ) -> Grade:
        found = verdict(results, self._threshold)
        details: Json = {"graders": [one.to_json() for one in found.results], "threshold": self._threshold}
        if held:
            details["constraints"] = [one.to_json() for one in held]
        if found.errors:
            await asyncio.to_thread(_write_json, grading.evidence / GRADERS, details)
            first = found.errors[0]
            cause = _cause_of(first)
            if cause == TOKENS_UNREPORTED and self._agent_reports(grading):
                # The agent kept its tokens from being counted: that is graded, and not tried again.
                return Grade(
                    0.0, False, details, cause=cause, message=f"grader {first.name}: {first.evidence}"
                )
            if cause == JUDGE_REFUSED:  # whatever it is asked
                raise UserError(f"grader {first.name}: {first.evidence}", cause=cause)
            if any(_cause_of(one) == SCORING_TIMEOUT for one in found.errors):
                raise GraderTimeoutError(f"grader {first.name}: {first.evidence}")
            raise GraderError(
                f"grader {first.name}: {first.evidence}", cause=cause if cause.startswith("judge") else None
            )
        failed = next((one for one in found.results if one.status == "ok" and not one.passed), None)
        broken = any(one.enforced and not one.held for one in held)
        passed = found.passed and not broken
        reason = f"{failed.name}: {failed.evidence}" if failed and not passed else None
        return Grade(found.score, passed, details, reason=reason)

    def _agent_reports(self, grading: Grading) -> bool:
        """Return whether tokens are the agent's to report; a plugin and the mock tell what they were made
        to."""
        told = ("mock", "nop", ORACLE)
        return not grading.control and grading.told is None and self._options.executor not in told

    def _unfinished(self, grading: Grading, transcript: Transcript) -> AgentError | None:
        """Return why there is no answer: the agent was cut off, or broke before it said anything.

        One that came to a limit of its constraints is graded by what it had done by then.
        """
        if grading.exit_reason is ExitReason.TIMEOUT:
            if time_limit(self._stimulus, self._spec, self._options) is not None:
                return None
            return AgentError(
                f"The agent took longer than {grading.task.timeouts.agent:g} s.", cause="agent_timeout"
            )
        if grading.exit_code and not transcript.output.strip() and grading.exit_reason is None:
            most = self._stimulus.constraints.max_turns
            if most is not None and transcript.measures.turn_count >= most > 0:
                return None
            return AgentError(
                f"The agent said nothing and ended with exit code {grading.exit_code}; `valk run logs` shows "
                "why."
            )
        return None

    async def _given(self, grading: Grading, transcript: Transcript) -> GraderInput:
        given = GraderInput(
            stimulus=self._stimulus,
            transcript=transcript,
            bench=self._bench(grading),
            asking=asking_of(self._spec, self._options),
            golden_patch=self._golden_patch,
        )
        if grading.place is None or grading.start is None:
            return await asyncio.to_thread(_as_set_aside, grading.agent, given)
        final = await self._final_state(grading, grading.start)
        diff = await workspace.diff(grading.start, final) if final and self.wants_diff else None
        if diff is not None:
            await asyncio.to_thread(_write, grading.evidence / PATCH, diff)
        if final is None:
            return given
        kept: Mapping[int, str] = {}
        if self._diff_turns:
            kept = await asyncio.to_thread(_keep_turns, grading.start, grading.evidence)
        unseen = workspace.unseen(self._stimulus, self._options, final)
        return replace(given, workspace=final, unseen=unseen, diff=diff, turn_diffs=kept)

    def _bench(self, grading: Grading) -> Workbench | None:
        """Return where graders' programs run, if there are any."""
        if Need.PROGRAMS not in self._needs or grading.place is None or grading.start is None:
            return None
        return SandboxWorkbench(grading.place, self._stimulus, grading.start, renew=grading.renew)

    async def _final_state(self, grading: Grading, start: Path) -> Path | None:
        """The workspace on this machine, if someone has to look at it."""
        assert grading.place is not None
        kept = self._options.workspace
        include = self._stimulus.artifacts_include
        if not (self._needs & _LOOKED_AT or kept or include):
            return None
        final = await workspace.snapshot(
            self._stimulus, self._options, grading.place, start, grading.log, checkouts=self._checkouts
        )
        unseen = workspace.unseen(self._stimulus, self._options, final)
        if kept:
            target = Path(kept, self._options.variant, folder_name(self._stimulus.name))
            if (grading.task.trials or 1) > 1:
                target /= f"trial-{grading.k}"
            await materialise(final, target, unseen)
        if include:
            chosen = grading.evidence / ARTIFACTS
            await keep_artifacts(final, include, self._stimulus.artifacts_exclude, chosen, unseen)
        return final

    async def _set_aside(self, grading: Grading, given: GraderInput, story: Json) -> None:
        """Keep what judges are shown with the attempt: a later one shows the same, without the agent."""
        if grading.agent is None:
            return
        await asyncio.to_thread(_write_json, grading.agent / TRANSCRIPT, story)
        if given.diff is not None:
            await asyncio.to_thread(_write, grading.agent / PATCH, given.diff)
        wants_files = any(Need.WORKSPACE in one.needs for one in self._judges)
        if wants_files and given.workspace is not None:
            await materialise(given.workspace, grading.agent / JUDGED, given.unseen)


def _keep_turns(start: Path, evidence: Path) -> Mapping[int, str]:
    found = read_turn_patches(start)
    for number, diff in found.items():
        _write(evidence / turn_patch(number), diff)
    return found


def _as_set_aside(agent: Path | None, given: GraderInput) -> GraderInput:
    if agent is None:
        return given
    patch, judged = agent / PATCH, agent / JUDGED
    return replace(
        given,
        diff=patch.read_text("utf-8", "replace") if patch.is_file() else None,
        workspace=judged if judged.is_dir() else None,
    )


def _cause_of(result: GraderResult) -> str:
    """Return why a grader could not tell; empty for one that could."""
    if result.status != "error":
        return ""
    return next((str(one["cause"]) for one in result.details if one.get("cause")), "")


@contextmanager
def _reading_work() -> Iterator[None]:
    """Turn what an agent's odd files make host code raise into a GraderError: the control decides then."""
    try:
        yield
    except OSError as error:
        if isinstance(error, SandboxError) or error.errno in _HOST_FAULTS:
            raise
        raise GraderError(f"what the agent left cannot be looked at: {error}") from error
    except (ValueError, RecursionError) as error:
        raise GraderError(
            f"what the agent left cannot be looked at: {type(error).__name__}: {error}"
        ) from error
    except (SandboxCrowdedError, SandboxFullError) as error:
        raise GraderError(f"what the agent left cannot be looked at: {error}") from error


def hard_limit(stimulus: Stimulus, spec: EvalSpec, options: EvalOptions) -> float:
    """Return seconds after which the agent is stopped, and has not answered."""
    return options.timeout or stimulus.timeout or spec.defaults.timeout or DEFAULT_TIMEOUT_S


def time_limit(stimulus: Stimulus, spec: EvalSpec, options: EvalOptions) -> float | None:
    """Return seconds after which a constraint stops the agent, if that is before its time is over."""
    limit = stimulus.constraints.time_limit
    return limit if limit is not None and limit < hard_limit(stimulus, spec, options) else None


def _is_silent(transcript: Transcript) -> bool:
    """Return whether nobody said or did anything in it."""
    shown = ("assistant_message", "tool_call", "skill_activation", "system")
    return not transcript.output.strip() and not any(one.type in shown for one in transcript.events)


def _not_applicable(result: GraderResult) -> GraderResult:
    """Nobody worked, so that what must not be there cannot be: that proves nothing of the grader."""
    evidence = "n/a: no agent worked, and it only says what must not be there; give a `golden_trajectory`"
    return replace(result, status="skipped", passed=True, score=1.0, evidence=evidence)


def _ungraded(held: Sequence[ConstraintResult], results: Sequence[GraderResult] = ()) -> Grade:
    """Of a stimulus without graders that speak: only constraints that are enforced give it a verdict."""
    graders = [one.to_json() for one in results]
    result: Json = {"graders": graders, "graded": False, "constraints": [one.to_json() for one in held]}
    if not any(one.enforced for one in held):
        return Grade(None, None, result)
    kept = all(one.held for one in held)
    return Grade(float(kept), kept, {**result, "graded": True})


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8", "replace")


def _write_json(path: Path, data: Json) -> None:
    _write(path, json.dumps(data, ensure_ascii=False))
