"""A project to run a runner from: the live example service, a folder with datasets, the real command line."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import click
import httpx
from click.testing import CliRunner, Result
from starlette.responses import JSONResponse, Response

from benchmark_service import BenchmarkServiceApp
from tests.integration.benchmark_runner.quiz_runner import cli
from tests.integration.benchmark_service.conftest import serving

ROOT = Path(__file__).parents[3]
TRIVIA = ROOT / "examples" / "services" / "trivia"
PROGRAM = Path(__file__).with_name("quiz_runner.py")
QUESTIONS: dict[str, Any] = json.loads((TRIVIA / "questions.json").read_text(encoding="utf-8"))
SUMS = 120


def load_trivia() -> ModuleType:
    """The example service as it is shipped."""
    spec = importlib.util.spec_from_file_location("trivia_example", TRIVIA / "main.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def sums_app() -> BenchmarkServiceApp:
    """The same service with many questions."""
    trivia = load_trivia()

    class Sums(trivia.Trivia):  # type: ignore[misc,name-defined]
        async def load_datasets(self) -> dict[str, dict[str, Any]]:
            known = {
                f"sum-{n:03}": trivia.Question(f"What is {n} + {n}?", (str(2 * n),)) for n in range(SUMS)
            }
            return {"default": known}

    return BenchmarkServiceApp(Sums)


@dataclass
class Asked:
    """One request at the service's door."""

    path: str
    headers: dict[str, str]
    body: Any = None


@dataclass
class Live:
    """A served app, with a door that remembers who came and can turn them away."""

    app: Any
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    refusals: dict[str, list[Response]] = field(default_factory=dict)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        asked = Asked(scope["path"], headers)
        self.asked.append(asked)
        if waiting := self.refusals.get(scope["path"]):
            await waiting.pop(0)(scope, receive, send)
            return
        body = b""

        async def heard() -> Any:
            nonlocal body
            message = await receive()
            body += message.get("body", b"")
            if message["type"] == "http.request" and not message.get("more_body"):
                asked.body = json.loads(body) if body else None
            return message

        await self.app(scope, heard, send)

    def refuse(self, path: str, *statuses: int, **headers: str) -> None:
        """Answer the next callers of a path with these."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        answers = [JSONResponse({"detail": f"no: {status}"}, status, named) for status in statuses]
        self.refusals.setdefault(path, []).extend(answers)

    def bodies(self, path: str) -> list[Any]:
        return [one.body for one in self.asked if one.path == path]

    def graded(self) -> list[str]:
        """The tasks whose answers were graded, in order."""
        return [body["task_id"] for body in self.bodies("/evaluate-response/") if body]

    def hear(self) -> None:
        """Return when everything has been heard that was sent before."""
        for _ in range(2):
            httpx.get(f"{self.url}/health", timeout=60, trust_env=False).raise_for_status()

    def forget(self) -> None:
        self.asked.clear()
        self.refusals.clear()


@contextmanager
def live(app: Any) -> Iterator[Live]:
    """An app behind such a door, on loopback."""
    door = Live(app)
    with serving(door) as door.url:
        yield door


def trivia_task(task_id: str, says: Any = None, does: str = "", **more: Any) -> dict[str, Any]:
    """A question of the example service, answered right unless said otherwise."""
    known = QUESTIONS[task_id]
    right = known["answers"][0]
    return {"id": task_id, "question": known["question"], "says": right if says is None else says} | (
        {"does": does} | more if does else more
    )


def trivia_tasks(wrong: int = 4) -> list[dict[str, Any]]:
    """All questions; so many are answered wrong."""
    return [
        trivia_task(task_id, "no idea" if number < wrong else None)
        for number, task_id in enumerate(QUESTIONS)
    ]


def sum_task(number: int, does: str = "", **more: Any) -> dict[str, Any]:
    return {
        "id": f"sum-{number:03}",
        "question": f"What is {number} + {number}?",
        "says": str(2 * number),
        "does": does,
        **more,
    }


@dataclass
class RunnerProject:
    """Where a person sits who runs the quiz runner."""

    root: Path
    service: Live
    cli: click.Group = cli

    @property
    def results(self) -> Path:
        return self.root / "results"

    def write_tasks(self, tasks: Sequence[dict[str, Any]], name: str = "tasks.json") -> Path:
        path = self.root / name
        path.write_text(json.dumps({"dataset_name": "default", "tests": list(tasks)}))
        return path

    def __call__(self, *words: str, code: int = 0) -> Result:
        """A command, in this process."""
        done = CliRunner().invoke(self.cli, list(words))
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == code, (done.exit_code, done.output)
        return done

    def run(
        self, *words: str, code: int = 0, run_id: str = "r1", model: str = "m1", service: bool = True
    ) -> str:
        usual = {"--model": model, "--run-id": run_id}
        if service:
            usual["--service-url"] = self.service.url
        left = [word for key, value in usual.items() if key not in words for word in (key, value)]
        return self("run", *left, *words, code=code).output

    def evaluate(self, *words: str, code: int = 0, run_id: str = "r1") -> str:
        return self(
            "evaluate", "--run-id", run_id, "--service-url", self.service.url, *words, code=code
        ).output

    def score(self, *words: str, code: int = 0, run_id: str = "r1") -> str:
        return self("score", "--run-id", run_id, "--service-url", self.service.url, *words, code=code).output

    def read(self, *place: str, run_id: str = "r1") -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.results.joinpath(run_id, *place).read_text(encoding="utf-8"))
        return found

    def generation(self, task_id: str, run_id: str = "r1") -> dict[str, Any]:
        return self.read(task_id, "generation.json", run_id=run_id)

    def evaluation(self, task_id: str, run_id: str = "r1") -> dict[str, Any]:
        return self.read(task_id, "eval.json", run_id=run_id)

    def journal(self) -> list[str]:
        """What was generated, in order."""
        path = Path(os.environ["QUIZ_JOURNAL"])
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.removeprefix("begin ") for line in lines if line.startswith("begin ")]

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        """A command in a process of its own."""
        return subprocess.Popen(
            [sys.executable, str(PROGRAM), *words],
            cwd=self.root,
            env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def files(self) -> list[str]:
        return sorted(str(path.relative_to(self.root)) for path in self.root.rglob("*"))
