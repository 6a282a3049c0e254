"""A runner whose tasks say what its generator does. Also a program: `python quiz_runner.py run …`."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import click

from benchmark_runner import BenchmarkRunner, GenerationResult, GenerationStatus, Task, make_cli


class QuizTask(Task):
    """A question with what the generator says to it, and what it does besides."""

    says: Any = ""
    does: str = ""


class MuteError(Exception):
    """Cannot even say what is wrong."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class QuizRunner(BenchmarkRunner):
    NAME = "quiz"
    GENERATION_VERSION_ENV = "QUIZ_GENERATION_VERSION"
    TASK_MODEL = QuizTask

    def load_tasks(self, dataset_file: Path) -> list[Task]:
        document = json.loads(dataset_file.read_text(encoding="utf-8"))
        return [QuizTask.model_validate(entry) for entry in document["tests"]]

    async def generate(
        self, task: QuizTask, model: str, llm_config: Any = None, log_dir: Path | None = None
    ) -> GenerationResult:
        note(f"begin {task.id}")
        if task.does:
            changed = await getattr(self, f"_{task.does}")(task, model, llm_config, log_dir)
            if changed is not None:
                return changed  # type: ignore[no-any-return]
        note(f"end {task.id}")
        return GenerationResult(task_id=task.id, status=GenerationStatus.SUCCESS, data=task.says)

    async def _wait(self, *_: Any) -> None:
        """Until the file named by QUIZ_GATE is there."""
        while not Path(os.environ["QUIZ_GATE"]).exists():
            await asyncio.sleep(0.01)

    async def _block(self, *_: Any) -> None:
        """As a library that knows nothing of asyncio does."""
        time.sleep(60)

    async def _print(self, *_: Any) -> None:
        print("printed by the generator")
        subprocess.run(["echo", "printed by its child"], check=True)

    async def _pause(self, *_: Any) -> None:
        await asyncio.sleep(float(os.environ["QUIZ_PAUSE"]))

    async def _raise(self, task: QuizTask, *_: Any) -> None:
        raise RuntimeError(task.says)

    async def _quote_keys(self, _task: QuizTask, _model: str, config: Any, log_dir: Path) -> None:
        key = config.custom_api_key.get_secret_value()
        raise RuntimeError(f"401: bad key {os.environ['OPENAI_API_KEY']}, or {key}")

    async def _raise_if_broken(self, *_: Any) -> None:
        if os.environ.get("QUIZ_BROKEN"):
            raise RuntimeError("broken for now")

    async def _exit(self, *_: Any) -> None:
        raise SystemExit(3)

    async def _cancelled(self, *_: Any) -> None:
        raise asyncio.CancelledError

    async def _cancel_itself(self, *_: Any) -> None:
        current = asyncio.current_task()
        assert current is not None
        current.cancel()
        await asyncio.sleep(5)

    async def _hang(self, *_: Any) -> None:
        await asyncio.Event().wait()

    async def _hang_and_complain(self, *_: Any) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ValueError("interrupted") from None

    async def _own_timeout(self, *_: Any) -> None:
        raise TimeoutError("the model took too long")

    async def _mute(self, *_: Any) -> None:
        raise MuteError

    async def _odd_path(self, *_: Any) -> None:
        raise FileNotFoundError(2, "No such file", "caf\udce9.txt")

    async def _wrong_type(self, task: QuizTask, *_: Any) -> Any:
        return task.says

    async def _no_json(self, task: QuizTask, *_: Any) -> GenerationResult:
        return GenerationResult(task_id=task.id, status=GenerationStatus.SUCCESS, data=object())

    async def _not_a_number(self, task: QuizTask, *_: Any) -> GenerationResult:
        return GenerationResult(task_id=task.id, status=GenerationStatus.SUCCESS, data={"x": float("nan")})

    async def _half_a_character(self, task: QuizTask, *_: Any) -> GenerationResult:
        return GenerationResult(
            task_id=task.id, status=GenerationStatus.SUCCESS, data=f"{task.says}\ud83d", question="\ud83d?"
        )

    async def _run_out_of_turns(self, task: QuizTask, *_: Any) -> GenerationResult:
        return GenerationResult(
            task_id=task.id, status=GenerationStatus.MAX_TURNS, total_turns=30, error="30 turns"
        )

    async def _give_up(self, task: QuizTask, *_: Any) -> GenerationResult:
        return GenerationResult(task_id=task.id, status=GenerationStatus.ERROR, error=str(task.says))

    async def _keep_a_log(self, task: QuizTask, model: str, config: Any, log_dir: Path) -> None:
        seen = {"model": model, "options": dict(self.options), **config.sampling}
        (log_dir / "seen.json").write_text(json.dumps(seen))


def note(line: str) -> None:
    """A line in the journal named by QUIZ_JOURNAL, whole whoever else writes."""
    if journal := os.environ.get("QUIZ_JOURNAL"):
        handle = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        os.write(handle, f"{line}\n".encode())
        os.close(handle)


cli = make_cli(
    QuizRunner,
    default_dataset_file=Path("tasks.json"),
    extra_run_options=[
        click.option("--prompt-style", default="plain"),
        click.Option(["--judge-key"], help="A secret of the runner's own."),
    ],
)

if __name__ == "__main__":
    cli()
