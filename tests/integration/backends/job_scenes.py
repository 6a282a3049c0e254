"""What people do with jobs, as command lines; each scene is played on every back end."""

from __future__ import annotations

import json
from typing import Any

from tests.integration.backends.belonging_scenes import VALUE
from tests.integration.backends.installations import Installation
from tests.integration.conftest import until

PAIR = ("--agent", "./worker", "--agent", "nop:m1")
TASKS = (*PAIR, "--benchmark", "./tasks")
NULL = ("--agent", "nop", "--benchmark", "./tasks", "--provider", "null", "--max-attempts", "1")
NOWHERE = "00000000"


def start(
    installation: Installation, *words: str, name: str, env: dict[str, str] | None = None
) -> dict[str, Any]:
    """Start a job that is not remembered; its document."""
    said = installation.ask("job", "run", *words, "-n", name, "--json", env=env)
    assert said.code == 0, said
    document: dict[str, Any] = said.json
    return document


def planned_jobs(installation: Installation) -> None:
    plan = installation.ask("job", "run", *TASKS, "--n-attempts", "2", "--dry-run", "--json").json
    installation.note([(one["agent"], one["trials"], one["agent_digest"]) for one in plan["plans"]])
    assert plan["would_start"] and [len(one["trials"]) for one in plan["plans"]] == [6, 6]
    for words in (
        ("--agent", "./nowhere", "--benchmark", "quickstart"),
        ("--agent", "oracle", "--benchmark", "./nowhere"),
        ("--agent", "nop", "--agent", "nop", "--benchmark", "./tasks"),
        (*PAIR, "--benchmark", "./tasks", "--scenarios", "right"),
        (*PAIR,),
        (*TASKS, "--n-attempts", "0"),
        (*TASKS, "--time-limit", "0"),
        (*TASKS, "-n", " "),
    ):
        said = installation.valk("job", "run", *words)
        assert said.code in (1, 2) and said.err.startswith("Error: ") and not said.out, words
    assert installation.ask("job", "list", "--all", "-o", "json").json["jobs"] == []


def one_job(installation: Installation) -> None:
    words = ("job", "run", *TASKS, "-n", "team/first", "--metadata", "team=blue", "--max-attempts", "1")
    started = installation.ask(*words)
    assert started.code == 0
    # Whether it runs by now is a matter of moments.
    installation.note(
        "\n".join(line for line in started.out.splitlines() if "State" not in line), started.err
    )
    assert installation.ask("job", "watch", "team/first").code in (0, 1)
    watched = installation.ask("job", "watch", "team/first", "--json")
    installation.note(watched.code, [json.loads(line)["event"] for line in watched.out.splitlines()])
    assert installation.valk("job", "summary", "team/first").code == 0
    assert installation.valk("job", "summary", "team/first", "-e").code == 0
    assert "team/first" in installation.valk("job", "list", "--all").out
    runs_by_their_job(installation)
    listed = installation.ask("job", "list", "--all", "--status", "running,queued", "-o", "json").json
    assert listed["jobs"] == []
    assert installation.ask("job", "logs", "team/first", "-o", "kept").code == 0
    kept = sorted(path.name for path in (installation.folder / "kept").rglob("*") if path.is_file())
    installation.note(kept)
    assert "notes.txt" in kept
    assert installation.valk("job", "delete", "team/first", "--yes").code == 0
    assert installation.valk("job", "delete", "team/first", "--yes").code == 2


def runs_by_their_job(installation: Installation) -> None:
    """Wherever a run's id is taken, its job and agent are."""
    runs = installation.ask("run", "list", "--job", "team/first", "--json").json["runs"]
    assert sorted(run["agent"] for run in runs) == ["nop", "worker"]
    for word in ("team/first/worker", "team/first/nop", "team/first/nop:m1", "latest/worker"):
        agent = word.split("/")[-1].split(":")[0]
        assert installation.ask("run", "fetch", word, "--json").json["run"]["agent"] == agent
        assert installation.valk("run", "tasks", word).code == 0
    assert installation.valk("run", "logs", "team/first/worker").code == 0
    failed = installation.ask("run", "tasks", "team/first/nop", "--failed", "--sort", "score", "--json").json[
        "trials"
    ]
    assert failed and not any(trial["passed"] for trial in failed)
    shown = installation.ask("run", "show", "team/first/worker", "right", "--json").json
    assert shown["accounts"][0]["instruction"] and shown["trial"]["task_id"] == "right"
    assert (
        installation.valk("export", "team/first", "--exporter", "jsonl", "--output-dir", "exported").code == 0
    )
    records = (installation.folder / "exported" / "results.jsonl").read_text().splitlines()
    assert all((installation.folder / "exported" / json.loads(one)["log"]).is_file() for one in records)
    assert installation.valk("export", "team/first", "--exporter", "markdown").code == 0
    for word in ("team/first", "latest", "team/first/wroker"):
        said = installation.valk("run", "fetch", word)
        assert said.code == 2 and "team/first/worker" in said.err, said
    both = [installation.valk("compare", word) for word in ("latest", "team/first")]
    assert both[0] == both[1] and both[0].out, both


def grown_job(installation: Installation) -> None:
    start(installation, *NULL, "--task-ids", "right", name="grown")
    assert installation.ask("job", "watch", "grown").code in (0, 1)
    ended = [run["id"] for run in installation.ask("run", "list", "--all", "--json").json["runs"]][:1]
    more = ("--agent", "./worker", "--scenarios", "wrong", "--n-attempts", "2", "--n-concurrent-trials", "3")
    assert installation.ask("job", "resume", "grown", *more).code == 0
    assert installation.ask("job", "watch", "grown").code in (0, 1)
    assert installation.valk("job", "summary", "grown", "-e").code == 0
    first = installation.ask("run", "tasks", ended[0], "--json").json["trials"]
    installation.note(sorted((trial["task_id"], trial["k"], trial["attempts"]) for trial in first))
    assert installation.valk("job", "resume", "grown", "--n-attempts", "1").code == 2
    assert installation.ask("job", "delete", "grown", "--yes").code == 0


def steered_job(installation: Installation) -> None:
    two = ("--agent", "./worker:m1", "--agent", "./worker:m2")
    start(
        installation,
        *two,
        "--scenarios",
        "./tasks/right",
        "./tasks/wrong",
        "-k",
        "seconds",
        "60",
        name="steered",
    )
    until(lambda: "steered" in installation.ask("job", "list", "--all", "--status", "running").out)
    assert installation.valk("job", "delete", "steered", "--yes").code == 1
    assert installation.ask("job", "cancel", "steered", "--force", "--yes").code == 0
    assert installation.ask("job", "watch", "steered").code == 1
    assert installation.valk("job", "cancel", "steered").code == 1
    assert installation.valk("job", "list", "--all", "--status", "cancelled").code == 0
    assert installation.ask("job", "delete", "steered", "--yes").code == 0


def secrets_of_jobs(installation: Installation) -> None:
    keyed = ("--agent", "./keyed", "--agent", "nop", "--benchmark", "./tasks", "--task-ids", "right")
    missing = installation.valk("job", "run", *keyed)
    assert missing.code == 1 and "team/key" in missing.err
    said = installation.ask("job", "run", *keyed, "-n", "keyed", env={"API_KEY": VALUE})
    assert said.code == 0 and VALUE not in said.out + said.err
    assert installation.ask("job", "watch", "keyed").code in (0, 1)
    run_id = installation.ask("run", "list", "--agent-name", "keyed", "--json").json["runs"][0]["id"]
    assert f"a key of {len(VALUE)} characters" in installation.ask("run", "logs", run_id, "right").out
    assert installation.ask("job", "delete", "keyed", "--yes").code == 0
    for name in installation.ask("secret", "list", "--json").json["names"]:
        assert installation.ask("secret", "remove", name, "--yes").code == 0


def unknown_jobs(installation: Installation) -> None:
    start(installation, *NULL, "--slice", ":1", name="nightly")
    assert "nightly" in installation.valk("job", "summary", "nihgtly").err
    assert (
        installation.valk("job", "summary", "..").code
        == installation.valk("job", "summary", "not a name").code
        == 2
    )
    for ref in (NOWHERE, "a/../b"):
        for words in (
            ("watch", ref),
            ("summary", ref),
            ("cancel", ref),
            ("resume", ref),
            ("retry", ref),
            ("logs", ref),
            ("delete", ref, "--yes"),
        ):
            said = installation.valk("job", *words)
            assert said.code == 2 and said.err.startswith("Error: ") and not said.out, words


JOB_SCENES = [planned_jobs, one_job, steered_job]
SLOW_JOB_SCENES = [grown_job, secrets_of_jobs, unknown_jobs]
