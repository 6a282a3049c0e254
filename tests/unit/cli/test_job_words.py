"""Options that take several words, and how `agent[:model]` is read."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from valkyrie.agents.catalog import CATALOG
from valkyrie.cli.vocabulary import (
    Pairs,
    VocabularyCommand,
    WordsOption,
    parse_agent,
    split_agent,
    with_models,
)


@click.command(cls=VocabularyCommand)
@click.option("--scenarios", cls=WordsOption)
@click.option("--metadata", "--set", "pairs", cls=Pairs, metavar="KEY=value…")
@click.option("--flag", is_flag=True)
@click.argument("rest", nargs=-1)
def command(scenarios: tuple[str, ...], pairs: dict[str, str], flag: bool, rest: tuple[str, ...]) -> None:
    click.echo(repr((list(scenarios), pairs, flag, list(rest))))


def said(*words: str) -> tuple[list[str], dict[str, str], bool, list[str]]:
    result = CliRunner().invoke(command, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: tuple[list[str], dict[str, str], bool, list[str]] = eval(result.output)
    return found


@pytest.mark.parametrize(
    ("words", "scenarios", "rest"),
    [
        (["--scenarios", "a", "b", "c"], ["a", "b", "c"], []),
        (["--scenarios", "a", "--scenarios", "b"], ["a", "b"], []),
        (["--scenarios", "a", "a", "--scenarios", "a"], ["a", "a", "a"], []),
        (["--scenarios=a", "b"], ["a"], ["b"]),
        (["--scenarios=-x"], ["-x"], []),
        (["--scenarios", "a", "--scenarios=b", "c"], ["a", "b"], ["c"]),
        (["--scenarios", "a", "b", "--", "c"], ["a", "b"], ["c"]),
        (["first", "--scenarios", "a"], ["a"], ["first"]),
        (["--", "--scenarios", "a"], [], ["--scenarios", "a"]),
        ([], [], []),
    ],
)
def test_words_go_on_to_the_next_flag(words: list[str], scenarios: list[str], rest: list[str]) -> None:
    found = said(*words)
    assert (found[0], found[3]) == (scenarios, rest)


def test_a_following_flag_ends_the_words() -> None:
    assert said("--scenarios", "a", "b", "--flag", "c") == (["a", "b"], {}, True, ["c"])
    assert said("--metadata", "A=1", "B=2=3", "C=", "--scenarios", "x", "y") == (
        ["x", "y"], {"A": "1", "B": "2=3", "C": ""}, False, [],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--scenarios", "--flag"], "requires an argument"),
        (["--scenarios"], "requires an argument"),
        (["--set", "A"], "'A' is not of the form KEY=value."),
        (["--set", "=1"], "not of the form"),
        (["--metadata", "A=1", "A=2"], "A is given twice"),
        (["--set", "A", "--flag"], "'A' is not of the form KEY=value."),
    ],
)
def test_wrong_words_are_refused(words: list[str], complaint: str) -> None:
    result = CliRunner().invoke(command, words)
    assert result.exit_code == 2 and complaint in result.output


@pytest.mark.parametrize(
    ("word", "agent", "model"),
    [
        ("oracle", "oracle", None),
        ("codex:gpt-5", "codex", "gpt-5"),
        ("goose:ollama/qwen:32b", "goose", "ollama/qwen:32b"),
        ("mine:openai/gpt-4o", "mine", "openai/gpt-4o"),
        ("./mine:gpt-x", "./mine", "gpt-x"),
        ("./mine", "./mine", None),
        ("./not-there:gpt-x", "./not-there", "gpt-x"),
        ("./odd:name", "./odd:name", None),
        ("./odd:name:gpt:x", "./odd:name", "gpt:x"),
        ("click.testing:CliRunner", "click.testing:CliRunner", None),
        ("click.testing:CliRunner:gpt-x", "click.testing:CliRunner", "gpt-x"),
        ("no.such.package:Qwen", "no.such.package", "Qwen"),
    ],
)
def test_an_agent_ends_at_its_first_colon(word: str, agent: str, model: str | None, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "odd:name").mkdir()
    found = parse_agent(word)
    assert (found.agent, found.model) == (agent, model)
    assert found.said == word


def test_an_agent_that_needs_a_model_gets_one() -> None:
    needing = next(name for name, entry in CATALOG.items() if entry.needs_model)
    with pytest.raises(click.UsageError, match=f"--agent {needing}:MODEL"):
        with_models([parse_agent(needing)])
    assert with_models([parse_agent(needing)], "gpt-x") == with_models([parse_agent(f"{needing}:gpt-x")])


def test_one_model_may_be_named_in_two_places_but_not_two() -> None:
    assert split_agent("codex:gpt-5", None) == split_agent("codex", "gpt-5") == ("codex", "gpt-5")
    assert split_agent("codex:gpt-5", "gpt-5") == ("codex", "gpt-5")
    assert split_agent("upload:" + 64 * "a", None) == ("upload:" + 64 * "a", None)
    assert split_agent("mock:gpt5", None) == ("mock", "gpt5")
    with pytest.raises(click.UsageError, match="two models"):
        split_agent("codex:gpt-5", "gpt-4")


@pytest.mark.parametrize("word", ["", ":gpt", "codex:", "./mine:"])
def test_half_an_agent_is_none(word: str) -> None:
    with pytest.raises(ValueError, match="AGENT or AGENT:MODEL"):
        parse_agent(word)
