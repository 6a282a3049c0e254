"""A runner for the trivia benchmark: the model votes on its own answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from voting import Council, OutOfTurnsError

from benchmark_runner import BenchmarkRunner, ChatModel, GenerationResult, GenerationStatus, LLMConfig, Task
from benchmark_runner.chat import ChatRefusalError

VOTES, MAX_TURNS = 3, 8


class TriviaTask(Task):
    """A question that says what its answer is."""

    kind: Literal["number", "name"] = "name"


class TriviaRunner(BenchmarkRunner):
    """Asks a model several times, and once more where it disagrees with itself."""

    NAME = "trivia"
    PAYLOAD_TYPE = "text"
    PAYLOAD_SCHEMA_VERSION = 1
    GENERATION_VERSION_ENV = "TRIVIA_GENERATION_VERSION"
    TASK_MODEL = TriviaTask

    def load_tasks(self, dataset_file: Path) -> list[Task]:
        dataset = json.loads(Path(dataset_file).read_text(encoding="utf-8"))
        return [TriviaTask.model_validate(test) for test in dataset["tests"]]

    async def generate(
        self, task: TriviaTask, model: str, llm_config: LLMConfig | None = None, log_dir: Path | None = None
    ) -> GenerationResult:
        status, answer, error = GenerationStatus.SUCCESS, "", None
        async with ChatModel(model, llm_config, log_dir=log_dir) as chat:
            council = Council(chat, max_turns=self.options.get("max_turns", MAX_TURNS))
            try:
                answer = await council.decide(task.question, task.kind, self.options.get("votes", VOTES))
            except OutOfTurnsError as stopped:
                status, error = GenerationStatus.MAX_TURNS, str(stopped)
            except ChatRefusalError as refused:
                # A model that will not answer has answered wrongly; it is no failure of ours to try again.
                answer, error = "", str(refused)
        if log_dir is not None:
            (log_dir / "votes.json").write_text(json.dumps(council.minutes(), indent=2) + "\n")
        return GenerationResult(
            task_id=task.id, status=status, data=answer, total_turns=council.turns, error=error
        )
