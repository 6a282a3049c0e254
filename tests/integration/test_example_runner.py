"""The example runner, from its command line to a score: live service, scripted model."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmark_service import BenchmarkService, BenchmarkServiceApp
from tests.integration.benchmark_service.quizzes import hosted
from tests.integration.benchmark_service.scripted_service import serving
from valkyrie.testing import Fault, ModelServer, Say, Script

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CLI = EXAMPLES / "runners" / "trivia-votes" / "cli.py"
KEY = "sk-model-0123456789"
ANSWERS = {
    "legs does a spider": "ANSWER: 8",
    "planet of the solar system": "It is large.\nANSWER: Jupiter",
    "symbol of gold": "**Answer:** Au",
    "capital of Portugal": "ANSWER: Lisboa",
    "sides does a hexagon": "ANSWER: 6",
    "language Python": "ANSWER: Guido van Rossum",
    "water boil": "ANSWER: 100",
    "mostly through France": "ANSWER: Seine",
    "bits are in a byte": "ANSWER: 8",
    "smallest prime": "ANSWER: 2",
    "painted Guernica": "ANSWER: Picasso",
}


def trivia() -> type[BenchmarkService]:
    """The example service."""
    spec = importlib.util.spec_from_file_location(
        "example_trivia", EXAMPLES / "services" / "trivia" / "main.py"
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["example_trivia"] = module
    spec.loader.exec_module(module)
    service: type[BenchmarkService] = module.Trivia
    return service


@dataclass
class Desk:
    """A person who uses the runner, in a folder of their own."""

    folder: Path
    model_url: str
    service_url: str
    keys: dict[str, str]

    async def run(self, *words: str, code: int = 0) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(CLI),
            "run",
            *("--model", "openai/gpt-x", "--run-id", "first", "--service-url", self.service_url),
            *("--custom-endpoint", self.model_url, *words),
            cwd=self.folder,
            env={"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "CUSTOM_API_KEY": KEY, **self.keys},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        printed = (await process.communicate())[0].decode()
        assert process.returncode == code, printed
        return printed

    def kept(self, name: str) -> Any:
        return json.loads((self.folder / "results" / "first" / name).read_text())


async def test_a_dataset_of_the_service_is_answered_and_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conversations: dict[str, list[Any]] = {words: [Say(text)] for words, text in ANSWERS.items()}
    conversations["land on the moon"] = [
        Fault("rate_limit", times=1, retry_after=0.01),
        Say("In 1969, in July."),
        Say("ANSWER: 1969"),
    ]
    script = Script(conversations, by_text={words: words for words in conversations})
    async with hosted(monkeypatch, trivia()) as service, ModelServer(script) as model:
        desk = Desk(tmp_path, model.url, service.url, {"VALS_AUTH_KEY": "acme-key"})
        printed = await desk.run("--dataset-name", "default", "--json")
    assert json.loads(printed.splitlines()[-1])["benchmark"] == "trivia"
    config, score = desk.kept("run_config.json"), desk.kept("final_score.json")
    assert (config["task_source"], config["dataset_name"]) == ("service", "default")
    assert config["settings"]["options"] == {"votes": 3, "max_turns": 8}
    assert (score["final_score"], score["complete"]) == (91.67, True)
    assert desk.kept("longest-river-of-france/eval.json")["result"]["correct"] is False
    moon = desk.kept("year-of-the-first-moon-landing/generation.json")
    assert (moon["data"], moon["status"], moon["total_turns"]) == ("1969", "success", 4)
    votes = desk.kept("year-of-the-first-moon-landing/agent_logs/votes.json")
    assert votes["votes"] == {"1969": 2}
    assert votes["output_tokens"] == model.spent("land on the moon").output
    # TASK_MODEL's field came from the service and reached the model.
    asked = [request.body["input"][0]["content"] for request in model.requests]
    assert any("is a number" in text for text in asked) and any("is a name" in text for text in asked)
    logs = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert sum("failed_tries" in text for text in logs) == 12
    assert not any(KEY in text or "acme-key" in text for text in logs)


async def test_a_divided_model_chooses_and_every_ending_is_told_apart(tmp_path: Path) -> None:
    script = Script(
        {
            "prime": [Fault("refusal")],
            "planet": [Say("No idea.")] * 9,
            "captain": [Say("ANSWER: 8")],
            "one": [Say("ANSWER: 6")],
            "two": [Say("ANSWER: 8")],
            "three": [Say("I would not know."), Say("Really not.")],
        },
        by_text={
            "smallest prime": "prime",
            "planet": "planet",
            "divided between": "captain",
            "voter 1": "one",
            "voter 2": "two",
            "voter 3": "three",
        },
    )
    async with serving(BenchmarkServiceApp(trivia())) as url, ModelServer(script) as model:
        desk = Desk(tmp_path, model.url, url, {})
        tasks = ("legs-of-a-spider", "smallest-prime", "largest-planet")
        await desk.run("--max-turns", "5", *tasks)
        spider, prime, planet = (desk.kept(f"{task}/generation.json") for task in tasks)
        assert (spider["data"], spider["total_turns"], spider["status"]) == ("8", 5, "success")
        assert (prime["data"], prime["status"]) == ("", "success") and "declined" in prime["error"]
        assert (planet["data"], planet["status"]) == ("", "max_turns")
        assert desk.kept("largest-planet/eval.json")["status"] == "did_not_complete"
        assert desk.kept("final_score.json")["metadata"] == {"questions": 3, "answered": 2, "correct": 1}
        asked = len(model.requests)
        refused = await desk.run("--votes", "5", *tasks, code=1)
        assert "--force-resume" in refused
        await desk.run("--max-turns", "5", *tasks)
        assert len(model.requests) == asked
