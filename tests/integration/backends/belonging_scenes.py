"""Agents, secrets and benchmarks, as command lines; each scene is played on every back end."""

from __future__ import annotations

import json

from tests.git_repository import CONTRACT, Repository
from tests.integration.backends.installations import Installation
from tests.integration.benchmark_service.conftest import serving
from tests.integration.faulty_service import FaultyService

VALUE = "planted-value-4711"
KEYED = ("--agent", "./keyed", "--benchmark", "./tasks", "--task-ids", "right")


def agents(installation: Installation) -> None:
    assert "No agents yet" in installation.valk("agent", "list").out
    assert installation.valk("agent", "push", "worker").code == 0
    assert installation.valk("agent", "push", "./worker", "--name", "other").code == 0
    assert installation.valk("agent", "list").code == 0
    listed = installation.ask("agent", "list", "--json").json["agents"]
    installation.note([(one["name"], one["bytes"], one["digest"], sorted(one)) for one in listed])
    for words in (
        ("push", "nowhere"),
        ("push", "tasks"),
        ("push", "worker", "--name", "oracle"),
        ("push", "worker", "--name", "no/name"),
        ("remove", "othr", "--yes"),
        ("remove", "no/name", "--yes"),
        ("download", "nope"),
        ("remove", "other"),
    ):
        said = installation.valk("agent", *words)
        assert said.code in (1, 2) and said.err.startswith("Error: ") and not said.out, words
    assert installation.valk("agent", "download", "other", "-o", "copies").code == 0
    assert installation.valk("agent", "download", "other", "-o", "copies").code == 1
    copied = (installation.folder / "copies" / "other" / "run.sh").read_text()
    assert copied == (installation.folder / "worker" / "run.sh").read_text()
    run_id = installation.finish("--agent", "other", "--benchmark", "./tasks", "--task-ids", "right")
    installation.note(installation.run(run_id)["agent"], installation.run(run_id)["score"]["final_score"])
    assert installation.valk("agent", "remove", "other", "--yes").code == 0
    assert installation.ask("run", "fetch", run_id).code == 0
    assert [one["name"] for one in installation.ask("agent", "list", "--json").json["agents"]] == ["worker"]
    assert installation.valk("agent", "remove", "worker", "--yes").code == 0


def installed_agents(installation: Installation) -> None:
    repository = Repository(installation.root / "served" / "from-git.git")
    run = (installation.folder / "worker" / "run.sh").read_text()
    files = {f"agents/one/{name}": text for name, text in (("contract.yaml", CONTRACT), ("run.sh", run))}
    first = repository.commit(files)
    url = f"{repository.url}/tree/main/agents/one"
    assert f"@{first}" in installation.valk("agent", "install", url, "-n", "fetched").out
    assert (
        "the commit that was installed before"
        in installation.valk("agent", "install", url, "-n", "fetched").out
    )
    second = repository.commit({**files, "agents/one/more": "x"})
    assert (
        f"{first[:12]} before, {second[:12]} now"
        in installation.valk("agent", "install", url, "-n", "fetched").out
    )
    assert installation.valk("agent", "install", f"{repository.url}/tree/main/nowhere").code in (1, 2)
    [listed] = installation.ask("agent", "list", "--json").json["agents"]
    assert second in json.dumps(listed), "pinned to what it came from"
    installation.note(listed["name"], listed["bytes"], listed["digest"])
    assert installation.valk("agent", "remove", "fetched", "--yes").code == 0


def secrets(installation: Installation) -> None:
    assert installation.valk("secret", "list").out == ""
    assert installation.valk("secret", "set", "team/other", "--stdin", stdin=f"{VALUE}\n").code == 0
    assert installation.valk("secret", "set", "no name", "--stdin", stdin="x").code == 2
    assert installation.valk("secret", "set", "team/other", "--stdin", stdin="").code == 2
    said = installation.ask("secret", "list")  # a tracker also says who set it
    assert "team/other" in said.out and VALUE not in said.out + said.err
    assert installation.ask("secret", "list", "--json").json["names"] == ["team/other"]
    assert installation.valk("secret", "remove", "team/other").code == 2
    refused = installation.ask("secret", "remove", "team/othr", "--yes")
    assert refused.code == 2 and "team/other" in refused.err
    assert installation.valk("secret", "remove", "team/other", "--yes").code == 0
    assert installation.valk("secret", "list").out == ""


def secrets_of_runs(installation: Installation) -> None:
    missing = installation.valk("run", "start", *KEYED)
    assert missing.code == 1 and "team/key" in missing.err
    assert installation.ask("secret", "set", "team/key", "--stdin", stdin=VALUE).code == 0
    run_id = installation.finish(*KEYED)
    log = installation.valk("run", "logs", run_id, "right")
    assert f"a key of {len(VALUE)} characters" in log.out
    assert installation.ask("secret", "remove", "team/key", "--yes").code == 0
    resumed = installation.ask("run", "retry", run_id)
    assert resumed.code == 1 and "team/key" in resumed.err
    env = {"API_KEY": VALUE}
    assert (
        f"a key of {len(VALUE)}"
        in installation.ask("run", "logs", installation.finish(*KEYED, env=env), "right").out
    )
    assert installation.finish(*KEYED, "-s", "API_KEY", "OTHER_KEY", env={"OTHER_KEY": VALUE})
    for name in installation.ask("secret", "list", "--json").json["names"]:
        assert installation.ask("secret", "remove", name, "--yes").code == 0


def benchmarks(installation: Installation) -> None:
    assert "quickstart" in installation.valk("benchmark", "list").out
    assert len(installation.valk("benchmark", "tasks", "quickstart").out.split()) == 12
    assert installation.valk("benchmark", "tasks", "./tasks").out.split() == ["broken", "right", "wrong"]
    assert installation.valk("benchmark", "tasks", "./tasks", "--dataset", "good", "--json").code == 0
    assert installation.valk("benchmark", "tasks", "./tasks", "--dataset", "nope").code == 2
    assert installation.valk("benchmark", "tasks", "quickstart", "--dataset", "nope").code == 2
    assert installation.valk("benchmark", "tasks", "./nowhere").code == 2
    assert installation.valk("benchmark", "tasks", "quickstart", "-H", "X-Team", "blue").code == 2
    assert installation.valk("config", "service", "set", "quiz", "http://127.0.0.1:9").code == 0
    assert "quiz" in installation.valk("benchmark", "list").out
    assert installation.valk("benchmark", "list", "--json").code == 0
    refused = installation.ask("benchmark", "tasks", "quiz")
    assert refused.code == 1 and "127.0.0.1:9" in refused.err
    assert installation.valk("config", "service", "remove", "quiz").code == 0


def services(installation: Installation) -> None:
    with serving(FaultyService(["ok-1", "ok-2"]).app()) as url:
        assert installation.valk("config", "service", "set", "quiz", url).code == 0
        assert installation.valk("benchmark", "tasks", "quiz").out.split() == ["ok-1", "ok-2"]
        assert installation.valk("benchmark", "tasks", url).out.split() == ["ok-1", "ok-2"]
        assert installation.ask("benchmark", "tasks", "quiz", "--ics").code == 2
        words = ("--agent", "nop", "--benchmark", "quiz", "--provider", "null", "-H", "X-Team", "blue")
        run_id = installation.finish(*words)
        assert installation.valk("run", "fetch", run_id).code == 0
        installation.note(installation.run(run_id)["score"], installation.run(run_id)["arguments"]["headers"])
        part = ("run", "results", run_id, "--path", "-", "--task-ids", "ok-1")
        assert (
            "-H X-Team VALUE"
            in installation.ask(*part).json["final_evaluation"]["properties"]["not_computed"]
        )
        scored = installation.ask(*part, "-H", "X-Team", "blue").json
        installation.note(scored["final_evaluation"], scored["score"], scored["subset"])
        assert scored["score"]["planned"] == 1 and scored["score"]["final_score"] is not None
        refused = installation.valk("run", "retry", run_id)
        assert refused.code == 1 and "-H X-Team VALUE" in refused.err and "blue" not in refused.err
        assert installation.ask("run", "retry", run_id, "-H", "X-Team", "blue").code == 0
        assert installation.valk("run", "wait", run_id, "--timeout", "60").code == 0
        assert installation.valk("config", "service", "remove", "quiz").code == 0


def the_machine(installation: Installation) -> None:
    disk = installation.ask("disk", "--json").json["disk"]
    installation.note(sorted(disk), [name for name, _ in disk["parts"]])
    assert disk["total_bytes"] > 0 and installation.ask("disk").code == 0


BELONGING_SCENES = [agents, installed_agents, secrets, secrets_of_runs, benchmarks, services, the_machine]
