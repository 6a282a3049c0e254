"""For authors of agents in Python: say in `execute` what the agent does with what it is told."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from sandboxes.masker import Masker
from sandboxes.types import TIMEOUT_EXIT_CODE, Command
from valkyrie.agents.protocol import (
    AgentCapabilities,
    AgentExit,
    AgentOptions,
    AgentTrial,
    LayerSpec,
    OutputArtifact,
)
from valkyrie.domain import ExitReason, content_digest
from valkyrie.errors import AgentError, UsageError, ValkyrieError
from valkyrie.text import did_you_mean
from valkyrie.trajectory.records import to_record
from valkyrie.trajectory.transcript import TRANSCRIPT, Event, Transcript, measured

MOST_OUTPUT = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended."""

    exit_code: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Workspace:
    """The folder the agent works in, inside the sandbox; paths are relative to it."""

    trial: AgentTrial

    @property
    def path(self) -> str:
        """Where it is in the sandbox."""
        return self.trial.task.cwd

    @property
    def secrets(self) -> Mapping[str, str]:
        """Environment variable → value, of those the run was given for this agent."""
        return self.trial.secrets

    @property
    def model_url(self) -> str | None:
        """`--model-url`, as seen from inside the sandbox."""
        return self.trial.model_url

    async def read(self, path: str) -> bytes:
        """A file's bytes."""
        return await self.trial.sandbox.download_file(f"{self.path}/{path}")

    async def write(self, path: str, content: str | bytes) -> None:
        """Write a file; its folders are made."""
        data = content.encode() if isinstance(content, str) else content
        await self.trial.sandbox.upload_file(f"{self.path}/{path}", data)

    async def files(self, pattern: str = "**") -> list[str]:
        """Absolute paths of its files that match."""
        return await self.trial.sandbox.list_files(f"{self.path}/{pattern}")

    async def turn_ended(self, number: int) -> None:
        """Say that a turn (from 0) but the last has ended, for graders that look at the diff after it."""
        await self.trial.turn_ended(number)

    async def run(self, command: str, *, timeout: float | None = None) -> Done:
        """Run a bash command in it, as the task's user."""
        said: dict[str, list[str]] = {"stdout": [], "stderr": []}
        task = self.trial.task
        words = Command.bash(command, cwd=self.path, env=dict(task.env), user=task.user, timeout=timeout)
        code = await self.trial.sandbox.run(words, lambda stream, text: said[stream].append(text))
        return Done(code, "".join(said["stdout"]), "".join(said["stderr"]))


class SimpleAgent:
    """An agent made of one method. Subclass it, set `name`, write `execute`.

    `execute` runs in the platform's own process, not in the sandbox: it is code of the person who runs the
    eval, and what it does to files goes through the Workspace. What it returns is a Transcript, or just
    what the agent says at the end. What it raises ends the trial as an error of the agent, never as a
    wrong answer.
    """

    name: ClassVar[str]
    version: ClassVar[str] = "1"
    converses: ClassVar[bool] = True
    """False: stimuli with several turns are refused before start."""
    takes_mcp: ClassVar[bool] = False
    """True: it uses `workspace.trial.task.mcp_servers` itself."""
    parameters: ClassVar[Sequence[str]] = ()
    """Words of `-k` it takes; they are in `self.options.kwargs`."""
    layer: LayerSpec | None = None
    needs_solution = False
    final_output: str | None = None
    output_artifacts: Sequence[OutputArtifact] = ()

    def __init__(self, options: AgentOptions) -> None:
        self.options = options
        for key in options.kwargs:
            if key not in self.parameters:
                hint = did_you_mean(key, self.parameters) or " It takes none." * (not self.parameters)
                raise UsageError(f"the agent {self.name} has no parameter {key!r}.{hint}")

    async def execute(self, turns: Sequence[str], workspace: Workspace) -> Transcript | str:
        """Do what it is told, one turn after another."""
        raise NotImplementedError(f"{type(self).__name__} has no execute()")

    @property
    def model(self) -> str | None:
        """`--model`."""
        return self.options.model

    @property
    def secrets(self) -> Mapping[str, str]:
        return self.options.secrets

    @property
    def digest(self) -> str:
        file = inspect.getsourcefile(type(self))
        source = hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else ""
        return content_digest(
            ["simple", self.name, self.version, source, self.options.model, dict(self.options.kwargs)]
        )

    @property
    def capabilities(self) -> AgentCapabilities:
        return AgentCapabilities.from_attributes(self)

    async def install(self, trial: AgentTrial) -> None:
        """Nothing to install; override it to put something into the sandbox."""

    async def run(self, trial: AgentTrial) -> AgentExit:
        """Call `execute` within the task's time and keep what it returned."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(trial.task.timeouts.agent):
                told = await self.execute(trial.turns, Workspace(trial))
        except TimeoutError:
            return AgentExit(TIMEOUT_EXIT_CODE, ExitReason.TIMEOUT)
        except ValkyrieError:
            raise
        except Exception as error:
            # Other people's code runs here, and may raise anything.
            raise AgentError(f"{self.name}: {type(error).__name__}: {error}") from error
        if isinstance(told, str):
            told = _spoken(trial.turns, told)
        if not isinstance(told, Transcript):
            raise AgentError(
                f"{self.name}: execute() returned {type(told).__name__}, no Transcript and no text."
            )
        took = (time.monotonic() - began) * 1000
        await asyncio.to_thread(self._keep, told, trial, took)
        return AgentExit(0)

    def _keep(self, told: Transcript, trial: AgentTrial, took: float) -> None:
        if trial.kept is None:
            return
        measures = told.measures
        if not measures.wall_time_ms:
            measures = replace(measures, wall_time_ms=took)
        told = replace(
            told, measures=measures, executor=told.executor or self.name, model=told.model or self.model
        )
        record = to_record(told, id=trial.task.id, stimulus=trial.task.id, work_dir=trial.task.cwd)
        text = json.dumps(Masker(trial.secrets.values()).data(record), ensure_ascii=False)
        trial.kept.mkdir(parents=True, exist_ok=True)
        (trial.kept / TRANSCRIPT).write_text(text, "utf-8", "replace")


def _spoken(turns: Sequence[str], output: str) -> Transcript:
    """A transcript of which only the questions and the last answer are known."""
    events: list[Event] = []
    for number, said in enumerate(turns):
        turn = {"turnId": str(number)}
        events += [Event("turn_start", turn), Event("user_message", {"content": said, **turn})]
        if number == len(turns) - 1:
            events.append(Event("assistant_message", {"content": output}))
        events.append(Event("turn_end", turn))
    return Transcript(output=output[:MOST_OUTPUT], events=tuple(events), measures=measured(events))
