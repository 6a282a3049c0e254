"""The process edge: exit codes, errors, suggestions, versions, imports."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import click
import pytest

from tests.unit.cli.command_result import HERE, CommandResult
from tests.unit.cli.filled_store import FilledStore, passed
from tests.unit.cli.recorded_tracker import RecordedTracker
from valkyrie import __version__ as VERSION
from valkyrie.cli.commands import COMMANDS, LazyGroup, Noun, Verb
from valkyrie.cli.main import root

Valk = Callable[..., CommandResult]
HEAVY = ("rich", "pydantic", "sqlalchemy", "asyncio", "yaml", "alembic")


def verbs(table: Mapping[str, Verb | Noun] = COMMANDS, path: str = "") -> Iterator[tuple[str, Verb]]:
    for name, entry in table.items():
        if isinstance(entry, Noun):
            yield from verbs(entry.verbs, f"{path}{name} ")
        else:
            yield f"{path}{name}", entry


def load(entry: Verb) -> click.Command:
    module, _, attribute = entry.where.partition(":")
    command = getattr(importlib.import_module(module), attribute)
    assert isinstance(command, click.Command)
    return command


@pytest.mark.parametrize(("name", "entry"), list(verbs()))
def test_summary_in_the_table_is_the_commands_own(name: str, entry: Verb) -> None:
    command = load(entry)
    assert (command.help or "").split("\n")[0] == entry.summary
    assert command.name == name.split()[-1]


@pytest.mark.parametrize(("name", "entry"), list(verbs()))
def test_every_command_has_json_color_and_described_options(name: str, entry: Verb) -> None:
    options = {param.name: param for param in load(entry).params if isinstance(param, click.Option)}
    assert {"as_json", "no_color"} <= options.keys()
    assert all(option.help for option in options.values())


def test_version_agrees_with_the_project() -> None:
    project = tomllib.loads((HERE.parents[2] / "pyproject.toml").read_text())["project"]
    assert project.get("version", VERSION) == VERSION


def test_help_lists_every_command(valk: Valk) -> None:
    said = valk("--help")
    assert said.code == 0
    assert all(name in said.out and entry.summary.split()[0] in said.out for name, entry in COMMANDS.items())
    assert valk("run", "-h").out.startswith("Usage: valk run ")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["rnu"], "No such command 'rnu'. Did you mean 'run'?"),
        (["run", "strat"], "Did you mean 'start'?"),
        (["frobnicate"], "There are: run, benchmark"),
        (["run", "start", "--agnt", "x"], "'--agent'"),
        (["run", "start", "--agent", "x", "--benchmark", "y", "--turns", "z"], "No such option '--turns'."),
        (["job", "start", "--name-of-job", "x"], "No such option '--name-of-job'."),
        (["run", "start", "--allow-env", "X"], "Did you mean '--pass-env'?"),
        (["run", "status"], "No such command 'status'. Did you mean 'fetch'?"),
        (["test"], "No such command 'test'. There are: run,"),
        (["run", "list", "--status", "DONE"], "'DONE' is not one of 'IN_PROGRESS'"),
        (["run", "start", "--agent", "x"], "Missing option '--benchmark'"),
        (
            ["run", "start", "--agent", "a", "--benchmark", "b", "--concurrency", "0"],
            "0 is not in the range x>=1",
        ),
        (
            ["run", "start", "--agent", "a", "--benchmark", "b", "-k", "t", "1", "-k", "t", "2"],
            "t is given twice",
        ),
        (["run", "fetch"], "Missing argument 'RUN'"),
        (["run", "fetch", "zzz"], "No run or job 'zzz'"),
        (["run", "update", "aaaa"], "Nothing to change"),
        (["run", "list", "--limit", "3", "--all"], "exclude each other"),
    ],
)
def test_wrong_words_exit_2_in_two_lines_with_empty_stdout(valk: Valk, words: list[str], says: str) -> None:
    said = valk(*words)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("Error: ") and says in said.err
    assert len(said.err.splitlines()) <= 2


def test_bare_groups_show_help_on_stderr(valk: Valk) -> None:
    said = valk("run")
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("Usage: valk run") and "start" in said.err


def test_a_failure_under_json_ends_stderr_with_one_document(valk: Valk) -> None:
    said = valk("run", "fetch", "zzz", "--json")
    assert (said.code, said.out) == (2, "")
    assert said.json_error == {
        "schema_version": 1,
        "kind": "error",
        "command": "run fetch",
        "error_message": "No run or job 'zzz'. `valk run list` shows runs, `valk job list --all` jobs.",
        "reason": "unknown",
    }


def test_a_bug_is_one_line_unless_debugging(
    valk: Valk, tracker: RecordedTracker, filled: FilledStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled.add_run()
    tracker.fail("fetch", KeyError("nothing"))
    said = valk("run", "fetch", "x")
    assert said.code == 1 and "Traceback" not in said.err
    assert "bug in Valkyrie: KeyError" in said.err and "VALKYRIE_DEBUG=1" in said.err
    monkeypatch.setenv("VALKYRIE_DEBUG", "1")
    with pytest.raises(KeyError):
        valk("run", "fetch", "x")


def test_an_interrupt_is_quiet(valk: Valk, tracker: RecordedTracker, filled: FilledStore) -> None:
    filled.add_run()
    tracker.fail("fetch", KeyboardInterrupt())
    said = valk("run", "fetch", "x")
    assert said.code == 130 and said.err.strip() == "Interrupted."


def test_error_text_cannot_drive_the_terminal(valk: Valk) -> None:
    said = valk("run", "fetch", "\x1b[2Jevil\x07")
    assert "\x1b" not in said.err and "\x07" not in said.err


def loaded(code: str, env: dict[str, str]) -> set[str]:
    report = "import sys, json; sys.stderr.write(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], env=env, capture_output=True, text=True
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def test_version_imports_nothing(program_env: dict[str, str]) -> None:
    code = "import sys; sys.argv=['valk','--version']; from valkyrie.__main__ import main; main()"
    modules = loaded(code, program_env)
    assert not modules & {"click", "importlib.metadata", "pathlib", *HEAVY}


@pytest.mark.parametrize("words", [["--help"], ["config", "service", "--help"], ["--version", "--help"]])
def test_help_imports_no_command(words: list[str], program_env: dict[str, str]) -> None:
    code = f"import sys; from valkyrie.cli.main import main; main({words!r})"
    modules = loaded(code, program_env)
    assert not modules & set(HEAVY)
    assert {m for m in modules if m.startswith("valkyrie.")} == {
        "valkyrie.cli", "valkyrie.cli.main", "valkyrie.cli.commands",
    }  # fmt: skip


UNNEEDED = {"rich", "pydantic", "yaml", "alembic", "httpx", "jinja2"}


@pytest.mark.parametrize("words", [["run", "list"], ["run", "fetch", "aaaa"]])
def test_hot_commands_load_little(words: list[str], program_env: dict[str, str], filled: FilledStore) -> None:
    filled.add_run()
    modules = loaded(f"from valkyrie.cli.main import main; main({words!r})", program_env)
    assert not {module.split(".")[0] for module in modules} & UNNEEDED


@pytest.mark.parametrize("words", ["run list --all --json", "run logs aaaa"])
def test_a_closed_pipe_is_quiet(program_env: dict[str, str], filled: FilledStore, words: str) -> None:
    filled.add_runs([f"{number:04x}" for number in range(60)])
    filled.add_run(trials=[passed("solve-it")])
    filled.log("one line\n" * 5000, "solve-it")
    command = f"{sys.executable} -m valkyrie {words} | head -c 8"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], env=program_env, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_module_and_completion_entry(program_env: dict[str, str], tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "valkyrie", "--version"], env=program_env, capture_output=True, text=True
    )
    assert done.stdout == f"valkyrie {VERSION}\n"
    env = {**program_env, "_VALK_COMPLETE": "bash_complete", "COMP_WORDS": "valk run st", "COMP_CWORD": "2"}
    done = subprocess.run([sys.executable, "-m", "valkyrie"], env=env, capture_output=True, text=True)
    assert done.stdout.split() == ["plain,start", "plain,stop"]


def test_nested_groups_are_lazy_too(valk: Valk) -> None:
    with click.Context(root) as context:
        group = root.get_command(context, "config")
        assert isinstance(group, LazyGroup) and isinstance(group.get_command(context, "auth"), LazyGroup)
    assert "Did you mean 'service'?" in valk("config", "servise", "list").err
    assert valk("config", "service", "set", "--json").json_error["command"] == "config service set"
