"""The command line of a runner: other names of its options, and once is once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from benchmark_runner import BenchmarkRunner, commands, make_cli
from benchmark_runner.sandbox.cli import cli as sandbox_cli

RUN = ["run", "--model", "m", "--run-id", "r"]


class Quiz(BenchmarkRunner):
    NAME = "quiz"


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """What `run` was asked for, instead of a run."""
    asked: list[dict[str, Any]] = []

    def run(_runner: Any, _common: Any, sources: Any, own: Any, **given: Any) -> int:
        asked.append({"sources": sources, "own": own, **given})
        return 0

    monkeypatch.setattr(commands, "run", run)
    monkeypatch.chdir(tmp_path)
    return asked


def call(*words: str, **options: Any) -> None:
    make_cli(Quiz, **options).main([*RUN, *words], "quiz", standalone_mode=False)


@pytest.mark.parametrize("word", ["--parallelism", "--concurrency", "--workers", "--n-concurrent-trials"])
def test_names_of_parallelism(ran: list[dict[str, Any]], word: str) -> None:
    call(word, "3")
    assert ran[0]["parallelism"] == 3


def test_dataset_is_dataset_name(ran: list[dict[str, Any]]) -> None:
    call("--dataset", "validation")
    assert ran[0]["sources"].dataset_name == "validation"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--parallelism", "2", "--workers", "3"], "--parallelism is given twice"),
        (["--dataset", "a", "--dataset-name", "b"], "--dataset-name is given twice"),
        (["--model", "other"], "--model is given twice"),
        (["--run-id=s"], "--run-id is given twice"),
    ],
)
def test_once_is_once(ran: list[dict[str, Any]], words: list[str], said: str) -> None:
    with pytest.raises(click.UsageError, match=said):
        call(*words)
    assert not ran


def test_flags_and_lists_may_come_again(ran: list[dict[str, Any]]) -> None:
    many = click.option("--tag", multiple=True)
    call("--skip-eval", "--skip-eval", "--tag", "a", "--tag", "b", extra_run_options=[many])
    assert ran[0]["own"] == {"tag": ("a", "b")}


def test_an_option_of_the_runners_own_goes_first(ran: list[dict[str, Any]]) -> None:
    call("--workers", "3", "--concurrency", "4", extra_run_options=[click.option("--workers", type=int)])
    assert (ran[0]["own"], ran[0]["parallelism"]) == ({"workers": 3}, 4)


def test_the_help_shows_one_name() -> None:
    run = make_cli(Quiz).commands["run"]
    text = run.get_help(click.Context(run))
    assert "--parallelism" in text and "--workers" not in text and "--dataset " not in text


def test_the_command_for_sandboxes_says_it_too() -> None:
    command = next(one for one in sandbox_cli.commands.values() for two in one.params if _once(two))
    option = next(one for one in command.params if _once(one))
    with pytest.raises(click.UsageError, match="is given twice"):
        command.make_context("x", [option.opts[0], "a", option.opts[0], "b"])


def _once(one: click.Parameter) -> bool:
    return isinstance(one, click.Option) and not (one.multiple or one.is_flag or one.count)
