"""`config service`, `config auth`, `config provider`, and what the rest says of them."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pexpect
import pytest

from tests.unit.cli.command_result import CommandResult
from tests.unit.cli.web_server import Answer, Web
from valkyrie.cli import config_service as service_commands

Valk = Callable[..., CommandResult]
CREDENTIAL = "Bearer abcdef-hunter2"


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    return tmp_path / "config" / "valkyrie.yaml"


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port nobody listens on, and that nobody else gets meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def healthy(web: Web, version: str | None = "1.2.3") -> None:
    web.answers["/health"] = Answer(b'{"status": "ok"}', type="application/json")
    if version:
        body = json.dumps({"framework_version": "0.1.0", "service_version": version, "eval_mode": "text"})
        web.answers["/version"] = Answer(body.encode(), type="application/json")


def test_a_services_life(valk: Valk, config_file: Path) -> None:
    said = valk("config", "service", "set", "demo", "http://localhost:8001/")
    assert said.code == 0 and "valk benchmark tasks demo" in said.out and said.err == ""
    assert valk("config", "service", "add", "quiz", "https://q.example/base", "--grading", "text").code == 0
    assert config_file.read_text() == (
        "custom_benchmark_services:\n  demo: http://localhost:8001\n"
        "  quiz:\n    url: https://q.example/base\n    grading: text\n"
    )
    assert config_file.stat().st_mode & 0o777 == 0o600
    listed = valk("config", "service", "list", "--no-check", "--json").json["services"]
    assert [(s["name"], s["url"], s["grading"], s["source"], s["healthy"]) for s in listed] == [
        ("demo", "http://localhost:8001", None, "custom", None),
        ("quiz", "https://q.example/base", "text", "custom", None),
    ]
    assert valk("config", "service", "remove", "demo").out == "Removed demo.\n"
    said = valk("config", "service", "remove", "quizz")
    assert said.code == 1 and "Did you mean 'quiz'?" in said.err
    assert valk("config", "service", "remove", "quiz", "--json").json["removed"] is True
    assert config_file.read_text() == ""
    assert "valk config service set NAME URL" in valk("config", "service", "list").err


def test_a_name_that_hides_a_shipped_benchmark_is_said(valk: Valk) -> None:
    said = valk("config", "service", "set", "quickstart", "http://localhost:1")
    assert said.code == 0 and "--ignore-custom-services" in said.err


@pytest.mark.parametrize(
    ("name", "url", "says"),
    [
        ("demo", "localhost:8001", "an http(s) URL with a host is wanted"),
        ("demo", "http://", "an http(s) URL with a host is wanted"),
        ("demo", "ftp://host", "an http(s) URL with a host is wanted"),
        ("demo", "https://me:hunter2@host", "valk config auth set"),
        ("demo", "https://host/?a=1", "no query"),
        ("demo", "https://host:99999", "not a URL"),
        ("demo", "https://ho st", "an http(s) URL is wanted"),
        ("de mo", "https://host", "is not a name"),
        ("../demo", "https://host", "is not a name"),
        ("", "https://host", "is not a name"),
    ],
)
def test_wrong_services_change_nothing(valk: Valk, config_file: Path, name: str, url: str, says: str) -> None:
    said = valk("config", "service", "set", name, url)
    assert (said.code, said.out) == (2, "") and says in said.err
    assert "hunter2" not in said.err and not config_file.exists()


def test_health_is_asked_of_all_with_their_credentials(valk: Valk, web: Web, closed_port: int) -> None:
    healthy(web)
    web.answers["/old/health"] = Answer(b"{}", type="application/json")
    web.answers["/sick/health"] = Answer(b"", 500)
    for name, url in {
        "well": web.url,
        "old": f"{web.url}/old",
        "sick": f"{web.url}/sick",
        "gone": f"http://127.0.0.1:{closed_port}",
    }.items():
        valk("config", "service", "set", name, url)
    valk("config", "auth", "set", "well", CREDENTIAL)
    web.asked.clear()
    said = valk("config", "service", "list")
    rows = {line.split()[0]: line for line in said.out.splitlines()[2:]}
    assert said.code == 0 and rows["well"].endswith("ok  1.2.3") and rows["old"].endswith("ok")
    assert "down: " in rows["sick"] and "down: " in rows["gone"] and "cannot reach" in rows["gone"]
    credentials = {path: headers.get("authorization") for path, headers in web.asked}
    assert credentials["/health"] == CREDENTIAL and credentials["/old/health"] is None
    assert CREDENTIAL not in said.out + said.err
    states = {s["name"]: s["healthy"] for s in valk("config", "service", "list", "--json").json["services"]}
    assert states == {"well": True, "old": True, "sick": False, "gone": False}


def test_a_service_that_never_answers_is_down(valk: Valk, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_commands, "CHECK_SECONDS", 0.3)
    web.silent.add("/health")
    valk("config", "service", "set", "demo", web.url)
    said = valk("config", "service", "list")
    assert said.code == 0 and "down: " in said.out and "0.3 s" in said.out


def test_a_health_answer_cannot_drive_the_terminal(valk: Valk, web: Web) -> None:
    healthy(web, "1\x1b]0;owned\x07")
    valk("config", "service", "set", "demo", web.url)
    assert "\x1b" not in valk("config", "service", "list").out


def test_registered_services_are_listed_after_ones_own(valk: Valk, tmp_path: Path) -> None:
    (tmp_path / "registry.yaml").write_text(
        "services:\n  demo: http://a\n  other: {url: 'http://b/', grading: text}\n"
    )
    assert valk("config", "set", "service_registry", "registry.yaml").code == 0
    assert valk("config", "get", "service_registry").out == f"{tmp_path / 'registry.yaml'}\n"
    valk("config", "service", "set", "demo", "http://mine")
    listed = valk("config", "service", "list", "--no-check", "--json").json["services"]
    assert [(s["name"], s["url"], s["source"]) for s in listed] == [
        ("demo", "http://mine", "custom"),
        ("other", "http://b", "registry"),
    ]
    said = valk("benchmark", "list")
    assert "service at http://mine" in said.out and "service at http://b" in said.out
    names = [found["name"] for found in valk("benchmark", "list", "--json").json["services"]]
    assert names == ["demo", "other"]
    (tmp_path / "registry.yaml").write_text("demo: ftp://x\n")
    said = valk("config", "service", "list")
    assert said.code == 1 and "registry.yaml: demo: an http(s) URL" in said.err
    (tmp_path / "registry.yaml").unlink()
    said = valk("config", "service", "list")
    assert said.code == 1 and "registry.yaml: No such file" in said.err


def test_credentials_are_never_shown(valk: Valk, config_file: Path) -> None:
    said = valk("config", "auth", "set", "demo", CREDENTIAL)
    assert "Bear***" in said.out and "history" in said.err and "hunter2" not in said.out + said.err
    said = valk("config", "auth", "set", "short", "-", stdin="abcd\n")
    assert said.out.endswith("short: ***\n") and said.err == ""
    assert valk("config", "auth", "set", "piped", stdin=f"{CREDENTIAL}2\n").code == 0
    assert f"piped: {CREDENTIAL}2\n" in config_file.read_text()
    assert config_file.stat().st_mode & 0o777 == 0o600
    said = valk("config", "auth", "list")
    assert said.out.splitlines()[2:] == ["demo   Bear***", "short  ***", "piped  Bear***"]
    listed = valk("config", "auth", "list", "--json")
    assert listed.json["credentials"][1] == {"name": "short", "credential": "***"}
    for words in (["list"], ["list", "--json"], ["get", "benchmark_auth"], ["remove", "benchmark_auth"]):
        said = valk("config", *words)
        assert "hunter2" not in said.out + said.err
    assert valk("config", "auth", "remove", "demo").code == 0
    assert valk("config", "auth", "remove", "demo").code == 1


@pytest.mark.parametrize("value", ["", " \n", "hunter2\nhunter3", "hunter2\u00e9", "hunter2\x00", "h" * 9000])
def test_credentials_no_header_can_carry_are_refused_unshown(
    valk: Valk, config_file: Path, value: str
) -> None:
    said = valk("config", "auth", "set", "demo", "-", stdin=value)
    assert said.code == 2 and "hunter" not in said.err and "hhh" not in said.err and not config_file.exists()


def test_a_wrong_credential_in_the_file_is_named_not_shown(valk: Valk, config_file: Path) -> None:
    config_file.parent.mkdir()
    config_file.write_text("benchmark_auth:\n  demo: 123456789\n")
    said = valk("config", "auth", "list")
    assert said.code == 1 and "yaml:2: benchmark_auth: demo: the credential must be text" in said.err
    assert "123456789" not in said.err


def test_a_credential_is_asked_for_unseen(program_env: dict[str, str], config_file: Path) -> None:
    words = ["-m", "valkyrie", "config", "auth", "set", "demo"]
    child = pexpect.spawn(sys.executable, words, env=program_env, encoding="utf-8", timeout=60)
    try:
        child.expect("Credential of demo")
        child.sendline("Bearer typed-unseen")
        child.expect(pexpect.EOF)
        assert "typed-unseen" not in (child.before or "") and "Bear***" in (child.before or "")
    finally:
        child.close(force=True)
    assert config_file.read_text() == "benchmark_auth:\n  demo: Bearer typed-unseen\n"


def test_a_providers_life(valk: Valk, config_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = {p["name"]: p for p in valk("config", "provider", "list", "--json").json["providers"]}
    assert listed["local"]["default"] and listed["local"]["configured"]
    assert not listed["daytona"]["configured"]
    assert listed["docker"]["available"] is (find_spec("aiodocker") is not None)
    assert listed["daytona"]["reached_with"] == "not configured: no DAYTONA_API_KEY"
    said = valk("config", "provider", "set", "daytona", "my-secret")
    assert said.code == 0 and "valk config provider default daytona" in said.out
    assert "valk secret set my-secret" in said.err
    assert config_file.read_text() == "sandbox_providers:\n  daytona: my-secret\n"
    assert "the secret my-secret" in valk("config", "provider", "list").out
    valk("secret", "set", "my-secret", "--stdin", stdin="{}")
    assert valk("config", "provider", "set", "daytona", "my-secret").err == ""
    assert valk("config", "provider", "set", "daytona").out.startswith(
        "daytona is reached with the environment"
    )
    assert valk("config", "provider", "default", "daytona").code == 0
    assert valk("config", "get", "default_provider").out == "daytona\n"
    said = valk("config", "provider", "remove", "daytona")
    assert said.code == 0 and "still the default" in said.err
    assert valk("config", "provider", "remove", "daytona").code == 1
    monkeypatch.setenv("DAYTONA_API_KEY", "hunter2")  # the other two have defaults
    said = valk("config", "provider", "list", "--json")
    daytona = next(p for p in said.json["providers"] if p["name"] == "daytona")
    assert daytona["configured"] and daytona["default"] and "hunter2" not in said.out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["set", "local"], "needs no configuring"),
        (["set", "daytone"], "Did you mean 'daytona'?"),
        (["set", "daytona", "no name"], "cannot name a secret"),
        (["default", "nowhere"], "wants one of local"),
    ],
)
def test_wrong_providers_change_nothing(valk: Valk, config_file: Path, words: list[str], says: str) -> None:
    said = valk("config", "provider", *words)
    assert (said.code, said.out) == (2, "") and says in said.err and not config_file.exists()


def test_plain_config_commands_point_to_those_of_a_map(valk: Valk) -> None:
    valk("config", "service", "set", "demo", "http://a")
    for words in (["get", "custom_benchmark_services"], ["set", "CUSTOM_benchmark_services", "x"]):
        said = valk("config", *words)
        assert said.code == 2 and "valk config service list" in said.err
    said = valk("config", "list")
    assert "1 entry" in said.out and "sandbox_port" in said.out and "http://a" not in said.out
    counts = {m["key"]: m["entries"] for m in valk("config", "list", "--json").json["maps"]}
    assert counts == {"custom_benchmark_services": 1, "benchmark_auth": 0, "sandbox_providers": 0}


def test_names_are_completed(program_env: dict[str, str], valk: Valk) -> None:
    valk("config", "service", "set", "probe-bench", "http://a")
    for line, found in {
        "valk config serv": "plain,service",
        "valk config service re": "plain,remove",
        "valk config service remove pro": "plain,probe-bench",
        "valk benchmark tasks pro": "plain,probe-bench",
        "valk config provider default day": "plain,daytona",
    }.items():
        env = {
            **program_env,
            "_VALK_COMPLETE": "bash_complete",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split()) - 1),
        }
        done = pexpect.run(f"{sys.executable} -m valkyrie", env=env, encoding="utf-8")
        assert done.split() == [found], line


def test_tasks_of_a_service(valk: Valk, web: Web, tmp_path: Path) -> None:
    healthy(web)
    web.answers["/verify-task-ids"] = Answer(b'{"task_ids": ["b", "a/1"]}', type="application/json")
    valk("config", "service", "set", "probe-bench", web.url)
    valk("config", "auth", "set", "probe-bench", CREDENTIAL)
    words = ("benchmark", "tasks", "probe-bench", "--dataset", "lite", "-H", "X-Team", "blue")
    assert valk(*words).out == "b\na/1\n"
    path, headers = next(asked for asked in web.asked if asked[0].startswith("/verify-task-ids"))
    assert "dataset=lite" in path and (headers["authorization"], headers["x-team"]) == (CREDENTIAL, "blue")
    assert valk(*words, "-o", "ids.txt").code == 0
    assert (tmp_path / "ids.txt").read_text() == "b\na/1\n"
    assert valk(*words, "-H", "authorization", "own", "--json").json["task_ids"] == ["b", "a/1"]
    assert web.asked[-1][1]["authorization"] == "own"
    said = valk(*words, "--ics")
    assert said.code == 2 and "unknown benchmark 'probe-bench'" in said.err
    said = valk("benchmark", "tasks", "quickstart", "-H", "X-Team", "blue")
    assert (said.code, said.out) == (2, "") and "quickstart is none" in said.err
