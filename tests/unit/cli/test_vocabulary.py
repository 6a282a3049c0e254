"""One vocabulary, proved command by command: the same words, pairs in both forms, and once is once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

import click
import pytest

from valkyrie.cli.commands import BENCHMARK_JOB, COMMANDS, OPERATORS, RUN, Noun, Verb, meant, real_name
from valkyrie.cli.main import root
from valkyrie.cli.vocabulary import (
    SAME,
    AgentPairs,
    Pairs,
    VocabularyCommand,
    WordsOption,
    called_here,
    words_of,
)
from valkyrie.text import did_you_mean

SHOWN_OTHERWISE = {
    ("run list", "--agent-name"),
    ("run list", "--benchmark-name"),
    ("run delete", "--agent-name"),
    ("run delete", "--benchmark-name"),
    ("run logs", "--task-id"),
    ("run logs", "--follow"),
    ("run regrade", "--task"),
    ("benchmark-job start", "--scenarios"),
    ("benchmark-job start", "--secrets"),
    ("benchmark-job start", "--env-vars"),
    ("benchmark-job logs", "--scenario"),
    ("grade", "--stimulus"),
    ("oracle", "--stimulus"),
    *((command, "--eval-spec") for command in ("lint", "eval", "grade", "oracle", "compare", "export")),
}
"""Names of the seeds that commands show in place of ours."""
SHORTS = {
    "-H": {"--header"},
    "-e": {"--env", "--eval-spec", "--extended"},
    "-f": {"--connect", "--follow"},
    "-h": {"--help"},
    "-i": {"--interval"},
    "-k": {"--kwarg", "--trial"},
    "-l": {"--label"},
    "-n": {"--count", "--job-name", "--name"},
    "-o": {"--output-dir", "--output-file", "--output"},
    "-p": {"--param"},
    "-s": {"--secret"},
    "-y": {"--yes"},
}
"""What each short flag means; more than one only where seeds say so."""


def each_verb(table: Mapping[str, Verb | Noun] = COMMANDS, path: str = "") -> Iterator[tuple[str, Verb]]:
    for name, entry in table.items():
        if isinstance(entry, Noun):
            yield from each_verb(entry.verbs, f"{path}{name} ")
        else:
            yield f"{path}{name}", entry


def loaded(entry: Verb) -> click.Command:
    module, _, attribute = entry.where.partition(":")
    command = getattr(import_module(module), attribute)
    assert isinstance(command, VocabularyCommand)
    return command


EVERY = [(name, loaded(entry)) for name, entry in each_verb()]


def parsed(command: click.Command, *words: str) -> dict[str, Any]:
    """What the parser makes of words, before any of it is converted or asked for."""
    values, rest, _ = command.make_parser(click.Context(command, info_name="x")).parse_args(list(words))
    assert not rest
    return dict(values)


def value_options(command: click.Command) -> Iterator[click.Option]:
    for one in command.params:
        if isinstance(one, click.Option) and not one.is_flag and not one.count:
            yield one


@pytest.mark.parametrize(("name", "command"), EVERY, ids=[name for name, _ in EVERY])
def test_the_same_words_work_in_every_command(name: str, command: click.Command) -> None:
    known = words_of(command)
    for group in SAME:
        options = {known[word] for word in group if word in known}
        assert not options or all(word in known for word in group), (name, group)
        for word in group if options else ():
            option = known[word]
            values = ["KEY=x"] if isinstance(option, Pairs) else ["1"] * option.nargs
            found = parsed(command, word, *([] if option.is_flag else values))
            assert option.name in found, (name, word)
    shown = {word for one in command.params if not getattr(one, "hidden", False) for word in one.opts}
    for group in SAME[:6]:
        for word in group[1:]:
            assert word not in shown or (name, word) in SHOWN_OTHERWISE, (name, word)


@pytest.mark.parametrize(("name", "command"), EVERY, ids=[name for name, _ in EVERY])
def test_other_names_do_not_clutter_the_help(name: str, command: click.Command) -> None:
    page = command.get_help(click.Context(command, info_name=name, terminal_width=200))
    columns = [line.split("  ")[1] for line in page.splitlines() if line.startswith("  -")]
    said = {word.strip(",") for column in columns for word in column.split() if word.startswith("-")}
    own = {word for one in command.params for word in (*one.opts, *one.secondary_opts)}
    assert said <= {*own, "-h", "--help"} | {f"{a}/{b}" for a in own for b in own if a != b}
    assert not said & (set(words_of(command)) - own)


@pytest.mark.parametrize(("name", "command"), EVERY, ids=[name for name, _ in EVERY])
def test_an_option_that_can_be_taken_once_is_refused_twice(name: str, command: click.Command) -> None:
    known = words_of(command)
    for option in value_options(command):
        names = [word for word, one in known.items() if one is option]
        once = [names[0], *["1"] * option.nargs]
        for other in names:
            twice = [*once, other, *["1"] * option.nargs]
            if option.multiple:
                if not isinstance(option, (Pairs, AgentPairs)):
                    assert len(parsed(command, *twice)[option.name or ""]) == 2, (name, other)
                continue
            with pytest.raises(click.UsageError, match="is given twice; it can be taken once"):
                parsed(command, *twice)


@pytest.mark.parametrize(("name", "command"), EVERY, ids=[name for name, _ in EVERY])
def test_pairs_come_in_both_forms(name: str, command: click.Command) -> None:
    known = words_of(command)
    for word, option in known.items():
        if isinstance(option, Pairs):
            want = {option.name: ["KEY=a=b"]}
            assert parsed(command, word, "KEY=a=b") == parsed(command, word, "KEY", "a=b") | want, (
                name,
                word,
            )
            assert parsed(command, word, "KEY", "-5")[option.name or ""] == ["KEY=-5"]
        elif isinstance(option, WordsOption) and word in ("--task-ids", "--scenarios"):
            needed = ["x" for one in command.params if isinstance(one, click.Argument) and one.required]
            assert len(parsed(command, *needed, word, "a", "b", "c")[option.name or ""]) == 3
    for short in ("-k", "-e", "-s", "-H", "-p"):
        if short in known and "--trial" not in known[short].opts and short != "-e":
            assert isinstance(known[short], Pairs), (name, short)


def test_a_short_flag_means_one_thing_where_the_seeds_leave_it_free() -> None:
    found: dict[str, set[str]] = {"-h": {"--help"}}
    for _, command in EVERY:
        for one in command.params:
            for word in one.opts:
                if len(word) == 2 and word.startswith("-"):
                    found.setdefault(word, set()).add(next(name for name in one.opts if name[:2] == "--"))
    assert found.keys() == SHORTS.keys()
    assert all(found[short] <= SHORTS[short] for short in found)


def test_runs_and_jobs_have_the_same_verbs() -> None:
    for noun in (RUN, BENCHMARK_JOB):
        assert {"start", "fetch", "wait", "stop", "results", "logs", "watch"} <= set(noun.verbs)
        for alias, name in {"run": "start", "summary": "fetch", "cancel": "stop"}.items():
            assert alias not in noun.verbs and real_name(noun.verbs, alias) == name
    page = root.get_help(click.Context(root, info_name="valk"))
    own, operators = page.split("For operators:")
    assert all(f"\n  {name} " in operators and f"\n  {name} " not in own for name in OPERATORS)


def test_words_are_given_back_that_a_command_needs() -> None:
    stop = dict(EVERY)["run stop"]
    assert parsed(stop, "--task-ids", "a,b", "3f2a") == {"task_ids": ["a,b"], "ref": "3f2a"}
    assert parsed(stop, "--task-ids", "a", "b", "3f2a") == {"task_ids": ["a", "b"], "ref": "3f2a"}
    assert parsed(stop, "3f2a", "--task-ids", "a", "b") == {"task_ids": ["a", "b"], "ref": "3f2a"}
    start = dict(EVERY)["run start"]
    assert parsed(start, "--label", "--task-ids", "--task-ids", "a") == {
        "label": "--task-ids",
        "task_ids": ["a"],
    }


@pytest.mark.parametrize(
    ("noun", "word", "says"),
    [
        (RUN, "status", "fetch"),
        (RUN, "rm", "delete"),
        (RUN, "ps", "list"),
        (BENCHMARK_JOB, "kill", "stop"),
        (BENCHMARK_JOB, "status", "fetch"),
        (RUN, "test", None),
    ],
)
def test_a_command_is_offered_only_when_it_means_the_same(noun: Noun, word: str, says: str | None) -> None:
    assert meant(noun.verbs, word) == says
    assert says is not None or did_you_mean(word, noun.verbs) == ""


@pytest.mark.parametrize(
    ("typed", "known", "meant_word"),
    [
        ("rnu", ["run", "db"], "run"),
        ("lsit", ["list", "lint"], "list"),
        ("benchmarks", ["benchmark"], "benchmark"),
        ("max_turn", ["max_turns"], "max_turns"),
        ("status", ["start", "stop"], None),
        ("results", ["resume", "retry"], None),
        ("test", ["ingest", "lint"], None),
        ("./my-agent", ["mini-swe-agent"], None),
    ],
)
def test_only_slips_of_the_fingers_are_guessed(typed: str, known: list[str], meant_word: str | None) -> None:
    assert did_you_mean(typed, known) == (f" Did you mean {meant_word!r}?" if meant_word else "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["eval", "x.yaml", "--workspace", "w", "--in-place"], "--work-dir PATH starts from it"),
        (["grade", "-e", "x.yaml", "--backend", "docker"], "`valk eval --provider NAME` chooses"),
        (["grade", "-e", "x.yaml", "--backend-args", "a"], "`valk config provider set`"),
    ],
)
def test_options_of_other_tools_that_are_not_to_be_had_say_why(words: list[str], said: str) -> None:
    with pytest.raises(click.NoSuchOption) as raised:
        root.main(words, "valk", standalone_mode=False)
    assert said in called_here(raised.value).message


def test_backend_is_another_name_of_provider() -> None:
    for command in ("eval", "experiment run", "oracle"):
        entry = dict(each_verb())[command]
        assert words_of(loaded(entry))["--backend"].name == "provider"
