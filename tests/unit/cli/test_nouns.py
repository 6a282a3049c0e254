"""`agent`, `benchmark`, `secret`, `config`, `doctor`, `demo`."""

from __future__ import annotations

import getpass
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sandboxes.types import Capabilities
from tests.abilities import need_local_sandboxes
from tests.unit.cli.command_result import HERE, CommandResult
from tests.unit.cli.filled_store import FilledStore, failed, passed
from tests.unit.cli.recorded_tracker import VERBS, RecordedTracker
from valkyrie.cli import doctor
from valkyrie.cli.doctor import LocalSandboxProof
from valkyrie.tracker.local import LocalTracker
from valkyrie.tracker.protocol import Tracker

Valk = Callable[..., CommandResult]
WORKS = LocalSandboxProof(
    True,
    capabilities=Capabilities(
        "local",
        "bubblewrap",
        networks=frozenset({"none"}),
        enforcement={"memory": "cgroup v2", "cpus": "not enforced"},
        missing=[("cpus: no cpu controller", "delegate it")],
    ),
)
BROKEN = LocalSandboxProof(False, "bwrap is not installed")


def test_a_recorded_tracker_speaks_the_protocol(tracker: RecordedTracker, tmp_path: Path) -> None:
    recorded: Tracker = LocalTracker(tmp_path)
    assert all(callable(getattr(recorded, verb)) for verb in VERBS)
    recorded.close()
    assert tracker.asked("close") == [()]
    with pytest.raises(TypeError):
        recorded.fetch()  # type: ignore[call-arg]


def test_an_agents_life(valk: Valk, tmp_path: Path) -> None:
    assert "valk agent push ./mine" in valk("agent", "init", "mine").out
    assert valk("agent", "push", "mine", "--name", "other", "--json").json["agent"]["name"] == "other"
    said = valk("agent", "list")
    assert "other" in said.out and "Last Modified" in said.out and "Pushed By" in said.out
    [listed] = valk("agent", "list", "--json").json["agents"]
    assert (listed["name"], listed["pushed_by"]) == ("other", getpass.getuser())
    assert valk("agent", "download", "other", "-o", "copies").code == 0
    assert (tmp_path / "copies" / "other" / "contract.yaml").is_file()
    assert valk("agent", "remove", "other").code == 2
    assert valk("agent", "remove", "other", "--yes").out == "Removed other.\n"
    assert "valk agent init" in valk("agent", "list").out


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["push", "nowhere"], 2),
        (["remove", "nope", "--yes"], 2),
        (["download", "nope"], 2),
        (["init", "no/such name"], 2),
    ],
)
def test_agent_mistakes(valk: Valk, words: list[str], code: int) -> None:
    said = valk("agent", *words)
    assert (said.code, said.out) == (code, "") and said.err.startswith("Error: ")


def test_agent_catalog(valk: Valk) -> None:
    listed = {agent["name"]: agent for agent in valk("agent", "catalog", "--json").json["agents"]}
    assert list(listed)[:2] == ["oracle", "nop"] and "oracle" in valk("agent", "catalog").out
    assert "max_turns" in listed["claude-code"]["parameters"]


def test_benchmarks(valk: Valk, tmp_path: Path) -> None:
    assert "quickstart" in valk("benchmark", "list").out
    ids = valk("benchmark", "tasks", "quickstart").out.split()
    assert len(ids) == 12 == valk("benchmark", "list", "--json").json["benchmarks"][0]["tasks"]
    assert valk("benchmark", "tasks", "quickstart", "--json").json["task_ids"] == ids
    valk("benchmark", "tasks", "quickstart", "-o", "ids.txt")
    assert (tmp_path / "ids.txt").read_text().split() == ids
    said = valk("benchmark", "tasks", "quickstrat")
    assert said.code == 2 and "quickstart" in said.err
    assert "--benchmark ./mine" in valk("benchmark", "init", "mine").out
    assert len(valk("benchmark", "tasks", "./mine").out.split()) == 1
    assert valk("benchmark", "init", "mine").code == 2


def test_secrets_come_from_stdin_and_are_never_shown(valk: Valk, tmp_path: Path) -> None:
    assert valk("secret", "set", "key", "--stdin", stdin="hunter2\n").out.startswith("Kept key.")
    assert (tmp_path / "config" / "secrets.json").stat().st_mode & 0o777 == 0o600
    assert valk("secret", "list").out == "key\n"
    said = valk("secret", "list", "--json")
    assert said.json["names"] == ["key"] and "hunter2" not in said.out
    assert valk("secret", "remove", "key").code == 2
    assert valk("secret", "remove", "key", "-y").code == 0
    assert valk("secret", "list").out == ""


def test_secrets_that_are_too_long_or_no_text(valk: Valk) -> None:
    for content, why in (("x" * 70_000, "64 KiB"), ("\udcff\udcfe", "UTF-8"), ("\udcff" * 70_000, "64 KiB")):
        said = valk("secret", "set", "key", "--stdin", stdin=content)
        assert said.code == 2 and why in said.err
    assert valk("secret", "list").out == ""


def test_secret_mistakes(valk: Valk) -> None:
    assert valk("secret", "set", "key", "hunter2").code == 2
    assert "--stdin" in valk("secret", "set", "key").err
    assert "cannot name a secret" in valk("secret", "set", "no name").err
    assert "empty" in valk("secret", "set", "key", "--stdin", stdin="\n").err
    assert valk("secret", "remove", "nope", "-y").code == 2


def test_config(valk: Valk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert valk("config", "path").out.strip() == str(tmp_path / "config" / "valkyrie.yaml")
    assert valk("config", "get", "default_concurrency").out == "5\n"
    assert valk("config", "set", "DEFAULT_CONCURRENCY", "9").code == 0
    said = valk("config", "get", "default_concurrency", "--json")
    assert (said.json["value"], said.json["source"]) == (9, "file")
    assert "default_concurrency" in valk("config", "list").out
    assert valk("config", "get", "webhook").code == 1
    assert valk("config", "remove", "default_concurrency").out == "Removed default_concurrency.\n"
    assert "Did you mean 'webhook'" in valk("config", "set", "webhok", "x").err
    said = valk("config", "set", "default_provider", "locla")
    assert said.code == 2 and "local, process, daytona, docker, null" in said.err
    monkeypatch.setenv("VALKYRIE_PROVIDER", "locla")
    said = valk("run", "start", "--agent", "a", "--benchmark", "b")
    assert said.code == 1 and "VALKYRIE_PROVIDER" in said.err and "locla" in said.err
    (tmp_path / "config" / "valkyrie.yaml").write_text("nonsense: 1\n")
    said = valk("run", "start", "--agent", "a", "--benchmark", "b")
    assert said.code == 1 and "valkyrie.yaml:1: Unknown config key 'nonsense'" in said.err


def test_doctor_names_the_way_out(valk: Valk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "local_sandbox", lambda: WORKS)
    monkeypatch.setattr(doctor, "_bubblewrap", lambda: doctor.Check("bubblewrap", "ok", "0.8.0"))
    said = valk("doctor")
    assert said.code == 0 and "✓" in said.out and "!" in said.out
    assert "delegate it" in said.out and "passt" in said.out
    monkeypatch.setattr(doctor, "local_sandbox", lambda: BROKEN)
    said = valk("doctor", "--json")
    assert said.code == 1 and said.json["healthy"] is False
    failed = [check for check in said.json["checks"] if check["mark"] == "fail"]
    assert [check["name"] for check in failed] == ["local sandbox"]


def test_doctor_sees_a_data_folder_that_is_none(
    valk: Valk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "local_sandbox", lambda: WORKS)
    (tmp_path / "home").write_text("a file")
    said = valk("doctor")
    assert said.code == 1 and "home is no folder" in said.out and "1 thing must" in said.out


def test_doctor_sees_a_broken_config(valk: Valk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "local_sandbox", lambda: WORKS)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "valkyrie.yaml").write_text("nonsense: 1\n")
    said = valk("doctor")
    assert said.code == 1 and "Unknown config key 'nonsense'" in said.out


@pytest.mark.parametrize(("local", "provider"), [(WORKS, "local"), (BROKEN, "process")])
def test_demo_ends_with_the_score_table(
    valk: Valk,
    tracker: RecordedTracker,
    filled: FilledStore,
    monkeypatch: pytest.MonkeyPatch,
    local: LocalSandboxProof,
    provider: str,
    tmp_path: Path,
) -> None:
    if provider == "local":
        need_local_sandboxes(tmp_path / "probe")
    monkeypatch.setattr(doctor, "local_sandbox", lambda: local)
    filled.executor.on_wake = lambda: filled.end_runs(
        lambda agent: passed() if agent == "oracle" else failed()
    )
    said = valk("demo")
    assert said.code == 0 and "95 % interval" in said.out
    assert "12/12" in said.out and "0/12" in said.out
    assert {request.provider for request in tracker.asked("start")} == {provider}
    assert ("NOTHING IS ISOLATED" in said.err) is (provider == "process")


def test_demo_fails_when_the_oracle_does(
    valk: Valk, filled: FilledStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "local_sandbox", lambda: BROKEN)
    grades = iter([failed()])
    filled.executor.on_wake = lambda: filled.end_runs(
        lambda agent: next(grades, passed()) if agent == "oracle" else failed()
    )
    said = valk("demo", "--json")
    assert said.code == 1 and "oracle should pass 12, but 11 of 12 passed" in said.err


def test_the_reference_page_is_up_to_date(program_env: dict[str, str]) -> None:
    script = HERE.parents[2] / "scripts" / "generate_cli_reference.py"
    done = subprocess.run(
        [sys.executable, script, "--check"], env=program_env, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
