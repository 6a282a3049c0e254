"""A runner whose answers a model gives, as a scaffolded one has it: what `benchmarks/runners.py` runs."""

from __future__ import annotations

import atexit
from pathlib import Path
from typing import Any

from benchmark_runner import BenchmarkRunner, GenerationResult, GenerationStatus, Task, make_cli
from benchmark_runner.chat import ChatModel
from benchmark_runner.llm import LLMConfig


class MeasuredRunner(BenchmarkRunner):
    """Asks for a word."""

    NAME = "measured"

    def load_tasks(self, dataset_file: Path) -> list[Task]:
        count = int(dataset_file.read_text())
        return [Task(id=f"task-{number}", question=f"Say word {number}") for number in range(count)]

    async def generate(
        self, task: Any, model: str, llm_config: LLMConfig | None = None, log_dir: Path | None = None
    ) -> GenerationResult:
        async with ChatModel(model, llm_config) as chat:
            reply = await chat.ask(task.question)
        return GenerationResult(task_id=task.id, status=GenerationStatus.SUCCESS, data=reply.text)


def keep_peak(file: Path) -> None:
    """The most memory this process ever had, in kB; its parent is told the most of either of them."""
    status = Path("/proc/self/status").read_text()
    file.write_text(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")))


if __name__ == "__main__":
    atexit.register(keep_peak, Path("peak_kb").absolute())
    make_cli(MeasuredRunner)()
