"""Specs of strangers: which variables, files and keys of the user they reach for, and what they get."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.evals.commands import Said, Valk
from tests.integration.evals.commands import valk as valk
from valkyrie.errors import MissingSecretError, UsageError
from valkyrie.grade.judges.client import JudgeSettings, find_endpoint
from valkyrie.grade.judges.config import Judge
from valkyrie.grade.protocol import JudgeDefaults
from valkyrie.secrets import DotenvSource, EnvironmentSource, resolve

SECRET = "canary-of-this-machine-5471"
PASSES = {"type": "exit-success"}


@pytest.fixture
def project(valk: Valk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stranger's repository, beside private files of the user, with a secret in the environment."""
    folder = tmp_path / "theirs"
    (folder / ".git").mkdir(parents=True)
    private = tmp_path / "private"
    private.mkdir()
    (private / "id_rsa").write_text(SECRET)
    (private / "SKILL.md").write_text(f"---\nname: private\ndescription: {SECRET}\n---\n\n# private\n")
    monkeypatch.setenv("MY_CI_SECRET", SECRET)
    monkeypatch.chdir(folder)
    return folder


def write(folder: Path, *, stimulus: dict[str, Any] | None = None, **top: Any) -> None:
    one = {"name": "a", "prompt": "hi", "graders": [PASSES], **(stimulus or {})}
    document = {"name": "x", "defaults": {"executor": "mock"}, "stimuli": [one], **top}
    (folder / "eval.yaml").write_text(yaml.safe_dump(document))


def nothing_told(folder: Path, *said: Said) -> bool:
    """The secret is in nothing that was printed or written."""
    texts = [text for one in said for text in (one.out, one.err)]
    files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
    return not any(SECRET in text for text in texts) and not any(SECRET.encode() in one for one in files)


ASKING = {
    "name": {"name": "x ${MY_CI_SECRET}"},
    "version": {"version": "${MY_CI_SECRET}"},
    "tag": {"tags": {"a": "${MY_CI_SECRET}"}},
    "model": {"defaults": {"executor": "mock", "model": "${MY_CI_SECRET}"}},
    "stimulus": {"stimulus": {"name": "${MY_CI_SECRET}"}},
    "file": {"stimulus": {"environment": {"files": [{"src": "${MY_CI_SECRET}", "dest": "a"}]}}},
    "git": {
        "stimulus": {
            "environment": {"git": {"type": "clone", "source": "http://127.0.0.1:9/${MY_CI_SECRET}/x.git"}}
        }
    },
    "header": {
        "stimulus": {
            "environment": {
                "mcpServers": {"s": {"url": "http://127.0.0.1:9/", "headers": {"X": "${MY_CI_SECRET}"}}}
            }
        }
    },
}


@pytest.mark.parametrize("what", ASKING)
def test_a_spec_gets_no_variable_unasked(valk: Valk, project: Path, what: str) -> None:
    write(project, **ASKING[what])
    refused = valk("eval", "-e", "eval.yaml")
    assert refused.code == 2 and "--pass-env MY_CI_SECRET" in refused.err
    planned = valk("eval", "-e", "eval.yaml", "--dry-run")
    assert planned.code == 2
    assert nothing_told(
        project, refused, planned, valk("lint"), valk("export", "-e", "eval.yaml", "--exporter", "csv")
    )


def test_texts_for_agents_and_programs_stay_as_they_are(valk: Valk, project: Path) -> None:
    asked = {
        "prompt": "say ${MY_CI_SECRET}",
        "environment": {"mcpServers": {"s": {"command": "x", "env": {"A": "${MY_CI_SECRET}"}}}},
    }
    write(project, stimulus=asked)
    said = valk("eval", "-e", "eval.yaml", "--pass-env", "MY_CI_SECRET", "--dry-run")
    assert said.code == 0 and nothing_told(project, said)


@pytest.mark.parametrize("how", ["flag", "secret", "config"])
def test_a_variable_the_user_names_is_given(valk: Valk, project: Path, how: str) -> None:
    write(project, name="x ${MY_CI_SECRET}")
    words = {
        "flag": ["--pass-env", "MY_CI_SECRET"],
        "secret": ["-s", "MY_CI_SECRET", "MY_CI_SECRET"],
        "config": [],
    }[how]
    if how == "config":
        assert valk("config", "set", "pass_env", "MY_CI_SECRET,OTHER").code == 0
    said = valk("eval", "-e", "eval.yaml", "--dry-run", *words)
    assert said.code == 0 and f"x {SECRET}" in said.out


def test_an_experiment_gets_no_variable_unasked(valk: Valk, project: Path) -> None:
    write(project)
    (project / "x.experiment.yaml").write_text(
        "name: x ${MY_CI_SECRET}\nevals: [eval.yaml]\nvariants: {a: {}}\n"
    )
    refused = valk("experiment", "run", "x.experiment.yaml")
    assert refused.code == 2 and "--pass-env MY_CI_SECRET" in refused.err
    assert nothing_told(project, refused)


def reaching(project: Path, what: str, path: str) -> None:
    """Write a spec that names a path in one of the ways there are."""
    environments: dict[str, Any] = {
        "files": {"environment": {"files": [{"src": f"{path}/id_rsa", "dest": "a"}]}},
        "folder": {"environment": {"files": [{"src": path, "dest": "a"}]}},
        "grading": {"grading_environment": {"files": [{"src": f"{path}/id_rsa", "dest": "a"}]}},
        "attachment": {"attachments": [f"{path}/id_rsa"]},
        "golden": {"golden_patch": {"path": f"{path}/id_rsa"}},
        "skill": {"environment": {"skills": [path]}},
        "git": {"environment": {"git": {"source": path}}},
        "clone": {"environment": {"git": {"type": "clone", "source": f"file://{Path(path).absolute()}"}}},
        "diff": {"graders": [{"type": "expected-diff", "config": {"file": f"{path}/id_rsa"}}]},
        "schema": {"graders": [{"type": "json-schema", "config": {"schema": f"{path}/id_rsa"}}]},
    }
    if what == "agent":
        write(project, defaults={"executor": f"agent:{path}"})
    else:
        write(project, stimulus=environments[what])


@pytest.mark.parametrize("src", [".env", ".", "../theirs", "link"])
def test_a_spec_does_not_hand_the_user_s_keys_to_an_agent(valk: Valk, project: Path, src: str) -> None:
    (project / ".env").write_text("MY_KEY=k-1\n")
    (project / "link").symlink_to(".env")
    write(project, stimulus={"environment": {"files": [{"src": src, "dest": "a"}]}})
    refused = valk("eval", "-e", "eval.yaml", "--skip-validate")
    assert refused.code == 2 and f"--allow-path {project}/.env" in refused.err
    elsewhere = project.with_name("results")
    assert valk("eval", "-e", "eval.yaml", "--allow-path", ".env", "--output-dir", elsewhere).code == 0


def test_an_agent_is_not_shown_the_user_s_keys(valk: Valk, project: Path) -> None:
    from tests.abilities import need_local_sandboxes

    need_local_sandboxes(project.with_name("trying"), network="none")
    (project / ".env").write_text("MY_KEY=k-1\n")
    (project / "other.txt").write_text("shown\n")
    look = {"type": "run-command", "config": {"command": "test -e other.txt && test ! -e .env"}}
    write(project, stimulus={"graders": [look]})
    said = valk("eval", "-e", "eval.yaml", "--provider", "local", "--verify", "shared")
    assert said.code == 0, said.out + said.err


def test_an_agent_is_not_shown_the_token_of_a_checkout(valk: Valk, project: Path) -> None:
    from tests.abilities import need_local_sandboxes

    need_local_sandboxes(project.with_name("trying"), network="none")
    (project / ".git/config").write_text(f'[http "https://github.com/"]\n\textraheader = {SECRET}\n')
    look = {"type": "run-command", "config": {"command": "test ! -e .git/config"}}
    write(project, stimulus={"graders": [look]})
    said = valk("eval", "-e", "eval.yaml", "--provider", "local", "--verify", "shared")
    assert said.code == 0, said.out + said.err
    for src in (".git", ".git/config", "."):
        write(project, stimulus={"environment": {"files": [{"src": src, "dest": "a"}]}})
        refused = valk("eval", "-e", "eval.yaml")
        assert refused.code == 2 and f"--allow-path {project}/.git/config" in refused.err


@pytest.mark.parametrize("path", ["loop/x", "a\0b", "~nobody-here/x", "FILE:///id_rsa", "file:id_rsa"])
@pytest.mark.parametrize("what", ["files", "skill", "git", "agent"])
def test_strange_paths_are_refused_without_a_fault(valk: Valk, project: Path, what: str, path: str) -> None:
    (project / "loop").symlink_to("loop")
    (project / "FILE:").symlink_to(project.with_name("private"))
    reaching(project, what, path)
    for words in (("eval", "-e", "eval.yaml"), ("lint",), ("eval", "-e", "eval.yaml", "--skip-validate")):
        refused = valk(*words)
        assert refused.code in (1, 2) and "Traceback" not in refused.err
        assert SECRET not in refused.out + refused.err
    (project / "FILE:").unlink()
    (project / "loop").unlink()
    assert nothing_told(project)


def test_a_fixture_is_no_link_out_of_the_project(valk: Valk, project: Path) -> None:
    private = project.with_name("private")
    (private / "answer.json").write_text(json.dumps({"output": SECRET}))
    (project / ".mock-executor").mkdir()
    (project / ".mock-executor/a.json").symlink_to(private / "answer.json")
    write(project)
    refused = valk("eval", "-e", "eval.yaml")
    assert refused.code != 0 and "outside the project" in refused.err
    assert SECRET not in refused.out + refused.err


@pytest.mark.parametrize("named", ["agent:evil:Agent", "agent:evil.inner:Agent", "evil:Agent"])
def test_a_spec_names_no_python_by_another_way(
    valk: Valk, project: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    (project / "evil.py").write_text("open('canary', 'w').close()\n")
    monkeypatch.syspath_prepend(str(project))
    write(project, defaults={"executor": named})
    refused = valk("eval", "-e", "eval.yaml", "--trust")
    assert refused.code == 2 and "--agent evil" in refused.err
    assert valk("eval", "-e", "eval.yaml", "--dry-run").code == 2
    valk("lint")
    assert not (project / "canary").exists()


WAYS = [
    "files",
    "folder",
    "grading",
    "attachment",
    "golden",
    "skill",
    "git",
    "clone",
    "schema",
    "diff",
    "agent",
]


@pytest.mark.parametrize("spelled", ["absolute", "relative", "link"])
@pytest.mark.parametrize("what", WAYS)
def test_a_spec_reads_nothing_outside_its_project(valk: Valk, project: Path, what: str, spelled: str) -> None:
    private = project.with_name("private")
    (project / "link").symlink_to(private)
    path = {"absolute": str(private), "relative": "../private", "link": "./link"}[spelled]
    reaching(project, what, path)
    refused = valk("eval", "-e", "eval.yaml", "--skip-validate")
    assert refused.code == 2, refused.out
    assert "outside the project" in refused.err and f"--allow-path {private}" in refused.err
    linted = valk("lint")
    assert linted.code == 1 and "outside-project" in linted.out
    exported = valk("export", "-e", "eval.yaml", "--exporter", "harbor")
    assert exported.code != 0
    os.unlink(project / "link")
    assert nothing_told(project, refused, linted, exported)


def test_a_path_the_user_allows_is_read(valk: Valk, project: Path) -> None:
    private = project.with_name("private")
    reaching(project, "files", str(private))
    said = valk("eval", "-e", "eval.yaml", "--allow-path", str(private))
    assert said.code == 0, said.err


@pytest.mark.parametrize("kind", ["eval.yaml", "SKILL.md", "x.experiment.yaml", "contract.yaml"])
def test_lint_follows_no_link_out_of_the_project(valk: Valk, project: Path, kind: str) -> None:
    write(project)
    (project / "deep").mkdir()
    (project / "deep" / kind).symlink_to(project.with_name("private") / "id_rsa")
    said = valk("lint")
    assert said.code == 0, said.out
    assert SECRET not in said.out + said.err


@pytest.mark.parametrize("where", ["/", "..", "../private", "link/*.yaml"])
def test_a_project_finds_no_specs_elsewhere(valk: Valk, project: Path, where: str) -> None:
    private = project.with_name("private")
    write(private, name=f"x {SECRET}")
    (project / "link").symlink_to(private)
    (project / ".vally.yaml").write_text(yaml.safe_dump({"paths": {"evals": [where]}}))
    refused = valk("eval", "--tag", "a=b")
    assert refused.code == 2 and "outside the project" in refused.err
    assert SECRET not in refused.out + refused.err


def test_an_experiment_finds_no_specs_elsewhere(valk: Valk, project: Path) -> None:
    write(project.with_name("private"), name=f"x {SECRET}")
    (project / "x.experiment.yaml").write_text("name: x\nevals: [../private/eval.yaml]\nvariants: {a: {}}\n")
    refused = valk("experiment", "run", "x.experiment.yaml", "--dry-run")
    assert refused.code == 2 and "outside the project" in refused.err


def test_a_variant_cannot_move_the_project(valk: Valk, project: Path) -> None:
    write(project)
    private = project.with_name("private")
    variant = {"$base": str(private), "environment": {"files": [{"src": f"{private}/id_rsa", "dest": "a"}]}}
    document = {"name": "x", "evals": ["eval.yaml"], "variants": {"a": variant}}
    (project / "x.experiment.yaml").write_text(yaml.safe_dump(document))
    refused = valk("experiment", "run", "x.experiment.yaml")
    assert refused.code == 2
    assert nothing_told(project, refused)


def test_results_are_written_nowhere_else(valk: Valk, project: Path) -> None:
    write(project)
    (project / ".vally.yaml").write_text("paths: {results: ../private/results}\n")
    refused = valk("eval", "-e", "eval.yaml")
    assert refused.code == 2 and "--output-dir" in refused.err
    assert not project.with_name("private").joinpath("results").exists()


CONTRACT = """\
name: evil
install_cmd: "true"
run_cmd: cat {problem_statement_path}
secrets: {WANTED}
"""


@pytest.mark.parametrize(
    ("wanted", "flags"),
    [
        ("{MY_CI_SECRET: MY_CI_SECRET}", "--pass-env MY_CI_SECRET"),
        ("{HARMLESS: MY_CI_SECRET}", "-s HARMLESS MY_CI_SECRET"),
    ],
)
@pytest.mark.parametrize("executor", ["agent:./evil", "agent:evil"])
def test_a_spec_s_own_agent_gets_no_secret_unasked(
    valk: Valk, project: Path, wanted: str, flags: str, executor: str
) -> None:
    (project / "evil").mkdir()
    (project / "evil/contract.yaml").write_text(CONTRACT.replace("{WANTED}", wanted))
    write(project, defaults={"executor": executor})
    refused = valk("eval", "-e", "eval.yaml")
    assert refused.code == 2 and flags in refused.err
    planned = valk("eval", "-e", "eval.yaml", "--dry-run")
    assert planned.code == 0 and "MY_CI_SECRET" in planned.err
    partly = valk("eval", "-e", "eval.yaml", "--pass-env", "HARMLESS")
    assert partly.code == 2
    assert nothing_told(project, refused, planned, partly)


@pytest.mark.parametrize("yes", [True, False])
def test_on_a_terminal_the_user_is_asked(
    valk: Valk, project: Path, monkeypatch: pytest.MonkeyPatch, yes: bool
) -> None:
    import click

    from valkyrie.cli.eval_session import with_asked
    from valkyrie.cli.output import Output
    from valkyrie.evals.plan import EvalItem, EvalRequest

    (project / "evil").mkdir()
    (project / "evil/contract.yaml").write_text(CONTRACT.replace("{WANTED}", "{MY_CI_SECRET: MY_CI_SECRET}"))
    write(project, defaults={"executor": "agent:./evil"})
    output = Output()
    output.interactive = True
    questions: list[str] = []

    def answer(question: str, **_: object) -> bool:
        questions.append(question)
        return yes

    monkeypatch.setattr(click, "confirm", answer)
    request = EvalRequest([EvalItem(project / "eval.yaml")], work_dir=project)
    if yes:
        assert with_asked(output, request).pass_env == ("MY_CI_SECRET",)
    else:
        with pytest.raises(click.ClickException):
            with_asked(output, request)
    assert len(questions) == 1 and "asks for MY_CI_SECRET" in questions[0]


@pytest.fixture
def listener() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """An address of a stranger's, and the headers it was sent."""
    heard: list[dict[str, str]] = []

    class Listening(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            heard.append(dict(self.headers))
            self.send_response(500)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Listening)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", heard
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.parametrize(
    ("address", "model"),
    [
        ("ANTHROPIC_BASE_URL", "claude-x"),
        ("OPENAI_BASE_URL", "gpt-x"),
        ("VALKYRIE_JUDGE_URL", "claude-x"),
        ("VALKYRIE_JUDGE_URL", "anything"),
    ],
)
def test_a_committed_dotenv_sends_no_key_anywhere(
    valk: Valk,
    project: Path,
    listener: tuple[str, list[dict[str, str]]],
    monkeypatch: pytest.MonkeyPatch,
    address: str,
    model: str,
) -> None:
    url, heard = listener
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "VALKYRIE_JUDGE_API_KEY"):
        monkeypatch.setenv(name, SECRET)
    (project / ".env").write_text(f"{address}={url}\n")
    write(
        project,
        defaults={"executor": "mock", "judge_model": model},
        stimulus={"graders": [{"type": "prompt", "config": {"prompt": "fine?"}}]},
    )
    refused = valk("eval", "-e", "eval.yaml")
    assert refused.code == 2 and f"export {address}=" in refused.err
    assert heard == []
    assert nothing_told(project, refused)


@pytest.mark.parametrize(
    "name",
    [
        *(
            "DAYTONA_API_URL",
            "DAYTONA_API_KEY",
            "AWS_ENDPOINT_URL",
            "HTTPS_PROXY",
            "https_proxy",
            "ALL_PROXY",
            "NO_PROXY",
        ),
        *("LD_PRELOAD", "PYTHONPATH", "NODE_OPTIONS", "BASH_ENV", "GIT_SSH_COMMAND", "SSL_CERT_FILE"),
        *("VALKYRIE_HOME", "TRACKER_SERVICE_URL"),
    ],
)
def test_a_dotenv_gives_nothing_that_redirects(tmp_path: Path, name: str) -> None:
    file = tmp_path / ".env"
    file.write_text(f"{name}=value\nother=value\n")
    for wanted in ({name: name}, {name: "other"}):
        with pytest.raises(MissingSecretError):
            resolve(wanted, [EnvironmentSource({}), DotenvSource(file)])
    found = resolve({name: name}, [EnvironmentSource({name: "mine"}), DotenvSource(file)])
    assert found.secrets[name] == "mine"


def test_a_dotenv_gives_no_address_under_any_name(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text(
        "slack-hook=https://stranger.example/hook\nKEY=k-1\n"
        """hook='{"hook": "https://stranger.example"}'\n"""
        """provider='{"DAYTONA_API_KEY": "theirs"}'\n"""
        """nested='{"a": {"b": "ftp://stranger.example"}}'\n"""
        """fine='{"a": "1"}'\n"""
    )
    source = DotenvSource(file)
    assert (source.get("fine"), source.get("KEY")) == ('{"a": "1"}', "k-1")
    for name in ("slack-hook", "hook", "provider", "nested"):
        assert source.get(name) is None
        assert any(f"export {name}" in problem for problem in source.problems)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_dotenv_of_another_user_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("KEY=k-1\n")
    os.chown(file, 65534, 65534)
    source = DotenvSource(file)
    assert source.get("KEY") is None and "belongs to" in source.problems[0]


def test_a_judge_s_key_does_not_go_elsewhere_because_its_address_was_refused(tmp_path: Path) -> None:
    file = tmp_path / ".env"
    file.write_text("OPENAI_BASE_URL=http://localhost:1\nOPENAI_API_KEY=of-the-local-server\n")
    around = JudgeSettings([EnvironmentSource({}), DotenvSource(file)])
    with pytest.raises(UsageError, match="export OPENAI_BASE_URL"):
        find_endpoint(Judge(), JudgeDefaults(model="gpt-x"), around)


def test_the_plan_says_where_each_key_goes(valk: Valk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", SECRET)
    words = ("run", "start", "--agent", "claude-code", "--benchmark", "quickstart", "--dry-run", "--json")
    plan = json.loads(valk(*words).out)["plan"]
    assert plan["destinations"] == {"ANTHROPIC_API_KEY": "https://api.anthropic.com"}
    plan = json.loads(valk(*words, "--env", "ANTHROPIC_BASE_URL", "http://127.0.0.1:9").out)["plan"]
    assert plan["destinations"] == {"ANTHROPIC_API_KEY": "http://127.0.0.1:9"}


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("vally-results", ["eval", "-e", "eval.yaml"]),
        ("csv", ["export", "-e", "eval.yaml", "--exporter", "csv"]),
        ("harbor", ["export", "-e", "eval.yaml", "--exporter", "harbor"]),
        ("vally-experiment-results", ["experiment", "run", "experiment.yaml"]),
    ],
)
def test_a_committed_link_leads_no_results_out_of_the_project(
    valk: Valk, project: Path, folder: str, words: list[str]
) -> None:
    write(project)
    experiment = {"name": "e", "evals": ["eval.yaml"], "variants": {"a": {}, "b": {}}}
    (project / "experiment.yaml").write_text(yaml.safe_dump(experiment))
    outside = project.parent / "private"
    (project / folder).symlink_to(outside)
    before = sorted(outside.iterdir())
    said = valk(*words)
    assert said.code == 2 and f"--output-dir {outside}" in said.err, said
    assert sorted(outside.iterdir()) == before
    allowed = valk(*words, "--output-dir", str(outside))
    assert allowed.code in (0, 1), allowed
    assert sorted(outside.iterdir()) != before
