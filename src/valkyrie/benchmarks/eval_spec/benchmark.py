"""A benchmark whose tasks are the stimuli of an eval spec, and whose grades are its graders' verdicts."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sandboxes.protocol import Sandbox
from sandboxes.types import OutputSink
from valkyrie.benchmarks.eval_spec import layout, workspace
from valkyrie.benchmarks.eval_spec.evaluation import StimulusGrading, hard_limit, time_limit
from valkyrie.benchmarks.eval_spec.layout import Checkouts
from valkyrie.benchmarks.eval_spec.source import (
    WORKSPACE,
    EvalOptions,
    graders_of,
    open_spec,
    opened_spec,
    servers_inside,
)
from valkyrie.benchmarks.eval_spec.transcript import ORACLE, has_golden, write_solution
from valkyrie.benchmarks.eval_spec.workbench import ROOM
from valkyrie.benchmarks.protocol import BenchmarkCapabilities, Grading
from valkyrie.benchmarks.task_dir.benchmark import ContentDigests
from valkyrie.config.permissions import outside
from valkyrie.domain import MAX_TURNS, FinalScore, Grade, Json, TaskSpec, Timeouts, VerifyMode, content_digest
from valkyrie.errors import BenchmarkError, UsageError
from valkyrie.specs.model import EvalSpec, SpecError, Stimulus
from valkyrie.specs.project import file_root
from valkyrie.text import did_you_mean

FIXTURES = ".mock-executor"
"""Where, below a working directory, the mock agent's fixtures are."""
_LIMITS = frozenset({"runs", "timeout", "place"})
"""Fields of a stimulus that do not change what it tests."""


class EvalBenchmark:
    """One eval.yaml, as a command line wants it read."""

    fraction = True

    def __init__(self, file: Path, options: EvalOptions | None = None) -> None:
        self._file = file
        self._options = options or EvalOptions()
        self._digests: dict[str, str] = {}
        self._checkouts = Checkouts()
        self._contents = ContentDigests()
        self._gradings: dict[str, StimulusGrading] = {}

    @classmethod
    def with_options(cls, file: Path, options: Json) -> EvalBenchmark:
        """Return the benchmark of a spec with options as `source` has them."""
        return cls(file, EvalOptions.from_json(options))

    @cached_property
    def spec(self) -> EvalSpec:
        """The spec as it is on disk when it is first needed."""
        return open_spec(self._file, self._options).spec

    @cached_property
    def _texts(self) -> dict[str, str]:
        """Digests of stimuli's own words, as far as they were worked out in this process."""
        return opened_spec(self._file, self._options).digests

    @cached_property
    def _tasks(self) -> dict[tuple[str, str], TaskSpec]:
        """What was described in this process before, when the run was planned."""
        return opened_spec(self._file, self._options).tasks

    @cached_property
    def _said(self) -> str:
        return repr(self._options)

    @cached_property
    def _stimuli(self) -> Mapping[str, Stimulus]:
        chosen = self._options.stimuli
        return {
            one.name: one
            for one in self.spec.stimuli
            if (chosen is None or one.name in chosen) and self._trials(one)
        }

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def source(self) -> Json:
        return {"kind": "eval_spec", "file": str(self._file), "options": self._options.to_json()}

    @property
    def capabilities(self) -> BenchmarkCapabilities:
        return BenchmarkCapabilities(turn_ended=self.turn_ended)

    async def datasets(self) -> list[str]:
        return ["default"]

    async def list_tasks(self, dataset: str = "default") -> list[str]:
        if dataset != "default":
            raise UsageError(f"{self.name} has only the dataset default, not {dataset!r}.")
        return list(self._stimuli)

    async def describe(self, task_id: str, dataset: str = "default") -> TaskSpec:
        _ = dataset
        stimulus = self._stimulus(task_id)
        fixture = self._fixture(stimulus)
        if fixture is not None or _has_files(stimulus, self._options):
            return await self._describe(stimulus, fixture)
        known, key = self._tasks, (self._said, task_id)
        if key not in known:
            known[key] = await self._describe(stimulus, None)
        return known[key]

    async def _describe(self, stimulus: Stimulus, fixture: Json | None) -> TaskSpec:
        options = self._options
        if problems := self._problems(stimulus):
            raise BenchmarkError("\n".join(problems), cause="task_broken")
        runs_programs = self._grading(stimulus).runs_programs
        return TaskSpec(
            id=stimulus.name,
            digest=await self._known_digest(stimulus, fixture),
            instruction=stimulus.turns[0],
            turns=stimulus.turns if len(stimulus.turns) > 1 and not self._proves else (),
            cwd=WORKSPACE,
            network=options.network,
            env=dict(stimulus.environment.env),
            timeouts=Timeouts(agent=self._agent_seconds(stimulus), grade=self.spec.scoring.timeout or 600.0),
            trials=self._trials(stimulus),
            mcp_servers={} if self._proves else servers_inside(stimulus, self._options, self._file.parent),
            has_solution=self._options.executor == ORACLE and has_golden(stimulus),
            mounts=workspace.mounts(stimulus, options),
            grading_folders=(ROOM,) if runs_programs else (),
            # What a program needs comes with the workspace; what an agent did to the system does not count.
            verify=VerifyMode.FRESH,
            grading_runs=runs_programs,
            metadata=self._metadata(stimulus, fixture),
        )

    async def setup(self, task: TaskSpec, sandbox: Sandbox, log: OutputSink, start: Path) -> None:
        stimulus = self._stimulus(task.id)
        await workspace.prepare(
            stimulus,
            self._options,
            sandbox,
            start,
            log,
            needs_diff=self._grading(stimulus).wants_diff,
            checkouts=self._checkouts,
        )
        if self._options.executor != "mock":  # which is told by the task alone
            await sandbox.upload_file(task.problem_path, task.instruction.encode())

    async def turn_ended(
        self, task: TaskSpec, sandbox: Sandbox, log: OutputSink, start: Path, number: int
    ) -> None:
        """A turn of the conversation, but the last, has ended."""
        await self._grading(self._stimulus(task.id)).look_after_turn(number, sandbox, log, start)

    @property
    def _proves(self) -> bool:
        """No agent works: golden inputs take its place, or nothing does."""
        return self._options.executor in (ORACLE, "nop")

    def solution(self, task: TaskSpec) -> Path | None:
        """The stimulus's golden patch and command, for the oracle alone."""
        stimulus = self._stimulus(task.id)
        if self._options.executor != ORACLE or not has_golden(stimulus):
            return None
        folder = Path(self._solutions.name, content_digest(task.id)[-16:])
        return write_solution(stimulus, folder, task.cwd)

    @cached_property
    def _solutions(self) -> tempfile.TemporaryDirectory[str]:
        """Where solutions are written; gone with this object."""
        return tempfile.TemporaryDirectory(prefix="valkyrie-golden-")

    async def evaluate(self, grading: Grading) -> Grade:
        return await self._grading(self._stimulus(grading.task.id)).grade(grading)

    async def final_score(
        self, grades: Mapping[str, Sequence[Grade | None]], dataset: str = "default"
    ) -> FinalScore:
        """Mean over stimuli of the mean over their trials; what was not graded counts 0."""
        _ = dataset
        means = [
            statistics.fmean((grade.score or 0.0) if grade else 0.0 for grade in trials)
            for trials in grades.values()
            if trials
        ]
        graded = sum(1 for trials in grades.values() if any(one and one.score is not None for one in trials))
        return FinalScore(
            statistics.fmean(means) if means and graded else None,
            {"tasks": len(grades), "ungraded": len(grades) - graded, "threshold": self._threshold},
        )

    async def close(self) -> None:
        await asyncio.to_thread(self._checkouts.close)
        if "_solutions" in self.__dict__:
            await asyncio.to_thread(self._solutions.cleanup)
            del self._solutions

    @property
    def _threshold(self) -> float | None:
        asked = self._options.threshold
        return self.spec.scoring.threshold if asked is None else asked

    def _stimulus(self, task_id: str) -> Stimulus:
        found = self._stimuli.get(task_id)
        if found is None:
            raise UsageError(
                f"{self._file} has no stimulus {task_id!r}.{did_you_mean(task_id, self._stimuli)}"
            )
        return found

    def _trials(self, stimulus: Stimulus) -> int:
        asked = self._options.runs
        own = self.spec.defaults.runs if stimulus.runs is None else stimulus.runs
        return own if asked is None else asked

    def _agent_seconds(self, stimulus: Stimulus) -> float:
        """Return how long the agent may work: its time-out, or a constraint that stops it before."""
        about = stimulus, self.spec, self._options
        return time_limit(*about) or hard_limit(*about)

    def _problems(self, stimulus: Stimulus) -> list[str]:
        found = [
            str(finding)
            for finding in workspace.problems(stimulus, self._options)
            if finding.severity == "error"
        ]
        try:
            self._grading(stimulus)
        except SpecError as error:
            found += map(str, error.findings)
        return found

    def _grading(self, stimulus: Stimulus) -> StimulusGrading:
        found = self._gradings.get(stimulus.name)
        if found is None:
            made = [] if self._options.skip_grade else graders_of(stimulus, self.spec, self._options)
            found = StimulusGrading(
                stimulus, self.spec, self._options, made, self._threshold, self._checkouts
            )
            self._gradings[stimulus.name] = found
        return found

    async def _known_digest(self, stimulus: Stimulus, fixture: Json | None) -> str:
        """Files are read aside; most stimuli have none."""
        if stimulus.name in self._digests or not _has_files(stimulus, self._options):
            return self._digest(stimulus, fixture)
        return await asyncio.to_thread(self._digest, stimulus, fixture)

    def _digest(self, stimulus: Stimulus, fixture: Json | None) -> str:
        """Return what the stimulus tests: its text, its files, its graders, and how they are weighed."""
        if stimulus.name not in self._digests:
            options, spec = self._options, self.spec
            self._digests[stimulus.name] = content_digest(
                {
                    "stimulus": self._text_digest(stimulus),
                    "files": layout.content_digest(stimulus, options, self._contents),
                    "scoring": [self._threshold, dict(spec.scoring.weights)],
                    "judge": [
                        options.judge_model or spec.defaults.judge_model,
                        options.judge_url,
                        *([options.judge_effort] if options.judge_effort else []),
                    ],
                    "efforts": [spec.defaults.reasoning_effort, spec.defaults.judge_reasoning_effort],
                    "skills": [options.skill_dir, options.skills_at],
                    "plugins": list(options.grader_plugins),
                    "graded": not options.skip_grade,
                    "enforced": options.enforce_constraints,
                    "fixture": fixture,
                }
            )
        return self._digests[stimulus.name]

    def _text_digest(self, stimulus: Stimulus) -> str:
        if stimulus.name not in self._texts:
            words = {name: value for name, value in _fields(stimulus) if name not in _LIMITS}
            self._texts[stimulus.name] = content_digest(_without_places(words))
        return self._texts[stimulus.name]

    def _metadata(self, stimulus: Stimulus, fixture: Json | None) -> Json:
        found: Json = {
            "prompt": stimulus.prompt[:2000],
            "tags": {k: list(v) for k, v in stimulus.tags.items()},
            "mock_fixture": fixture,
        }
        if skills := workspace.skill_names(stimulus, self._options):
            found["skills"] = list(skills)
        if effort := self.spec.defaults.reasoning_effort:
            found["reasoning_effort"] = effort
        if (turns := stimulus.constraints.max_turns) is not None:
            found[MAX_TURNS] = turns
        return found

    def _fixture_places(self, stimulus: Stimulus) -> Iterator[Path | str]:
        """In what the workspace starts from, or beside the spec."""
        inner = f"{FIXTURES}/{stimulus.name}.json"
        for entry in stimulus.environment.files:
            dest = entry.dest.strip("/")
            if dest == inner:
                yield entry.source
            elif dest in ("", ".", FIXTURES):
                yield entry.source / (f"{stimulus.name}.json" if dest == FIXTURES else inner)
        if self._options.work_dir:
            yield os.path.join(self._options.work_dir, inner)  # noqa: PTH118 - asked of each trial
        yield os.path.join(self._file.parent, inner)  # noqa: PTH118

    def _fixture(self, stimulus: Stimulus) -> Json | None:
        """Return what the mock agent answers, if a file says it."""
        if "/" in stimulus.name or self._options.executor != "mock":
            return None
        for path in dict.fromkeys(self._fixture_places(stimulus)):
            if os.path.isfile(path):  # noqa: PTH113
                self._refuse_leaving(Path(path))
                try:
                    found: Json = json.loads(Path(path).read_text("utf-8"))
                except ValueError as error:
                    raise UsageError(f"{path} is not JSON: {error}") from None
                return found
        return None

    def _refuse_leaving(self, fixture: Path) -> None:
        """Raise UsageError for a fixture that is a link out of the project."""
        roots = [self._options.work_dir or self._file.parent, *self._options.allow_paths]
        if fixture.is_symlink() and (
            real := outside(fixture, file_root(self._file.parent), *map(Path, roots))
        ):
            raise UsageError(f"{fixture} is a link to {real}, outside the project; copy the file instead.")


def _has_files(stimulus: Stimulus, options: EvalOptions) -> bool:
    environment = stimulus.environment
    return bool(
        environment.files
        or environment.git
        or environment.skills
        or stimulus.grading_files
        or stimulus.attachments
        or options.skill_dir
    )


def _without_places(value: object) -> object:
    """The same data without where in a file it stood, and without where on this machine the file is."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, (list, tuple)):
        return [_without_places(one) for one in value]
    if isinstance(value, Mapping) or is_dataclass(value):
        named = value.items() if isinstance(value, Mapping) else _fields(value)
        return {str(k): _without_places(v) for k, v in named if k not in ("place", "base")}
    return value


def _fields(value: Any) -> Iterator[tuple[str, object]]:
    """A dataclass as names and values, nothing copied."""
    return ((one, getattr(value, one)) for one in type(value).__dataclass_fields__)
