"""What people do with jobs, as command lines; each scene is played on every back end."""

from __future__ import annotations

import json
from typing import Any

from tests.integration.backends.belonging_scenes import VALUE
from tests.integration.backends.worlds import World
from tests.integration.conftest import until

PAIR = ("--agent", "./worker", "--agent", "nop:m1")
TASKS = (*PAIR, "--benchmark", "./tasks")
NULL = ("--agent", "nop", "--benchmark", "./tasks", "--provider", "null", "--max-attempts", "1")
NOWHERE = "00000000"


def start(world: World, *words: str, name: str, env: dict[str, str] | None = None) -> dict[str, Any]:
    """Start a job that is not remembered; its document."""
    said = world.ask("job", "run", *words, "-n", name, "--json", env=env)
    assert said.code == 0, said
    document: dict[str, Any] = said.json
    return document


def planned_jobs(world: World) -> None:
    plan = world.ask("job", "run", *TASKS, "--n-attempts", "2", "--dry-run", "--json").json
    world.note([(one["agent"], one["trials"], one["agent_digest"]) for one in plan["plans"]])
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
        said = world.valk("job", "run", *words)
        assert said.code in (1, 2) and said.err.startswith("Error: ") and not said.out, words
    assert world.ask("job", "list", "--all", "-o", "json").json["jobs"] == []


def one_job(world: World) -> None:
    words = ("job", "run", *TASKS, "-n", "team/first", "--metadata", "team=blue", "--max-attempts", "1")
    started = world.ask(*words)
    assert started.code == 0
    # Whether it runs by now is a matter of moments.
    world.note("\n".join(line for line in started.out.splitlines() if "State" not in line), started.err)
    assert world.ask("job", "watch", "team/first").code in (0, 1)
    watched = world.ask("job", "watch", "team/first", "--json")
    world.note(watched.code, [json.loads(line)["event"] for line in watched.out.splitlines()])
    assert world.valk("job", "summary", "team/first").code == 0
    assert world.valk("job", "summary", "team/first", "-e").code == 0
    assert "team/first" in world.valk("job", "list", "--all").out
    runs_by_their_job(world)
    listed = world.ask("job", "list", "--all", "--status", "running,queued", "-o", "json").json
    assert listed["jobs"] == []
    assert world.ask("job", "logs", "team/first", "-o", "kept").code == 0
    kept = sorted(path.name for path in (world.folder / "kept").rglob("*") if path.is_file())
    world.note(kept)
    assert "notes.txt" in kept
    assert world.valk("job", "delete", "team/first", "--yes").code == 0
    assert world.valk("job", "delete", "team/first", "--yes").code == 2


def runs_by_their_job(world: World) -> None:
    """Wherever a run's id is taken, its job and agent are."""
    runs = world.ask("run", "list", "--job", "team/first", "--json").json["runs"]
    assert sorted(run["agent"] for run in runs) == ["nop", "worker"]
    for word in ("team/first/worker", "team/first/nop", "team/first/nop:m1", "latest/worker"):
        agent = word.split("/")[-1].split(":")[0]
        assert world.ask("run", "fetch", word, "--json").json["run"]["agent"] == agent
        assert world.valk("run", "tasks", word).code == 0
    assert world.valk("run", "logs", "team/first/worker").code == 0
    failed = world.ask("run", "tasks", "team/first/nop", "--failed", "--sort", "score", "--json").json[
        "trials"
    ]
    assert failed and not any(trial["passed"] for trial in failed)
    shown = world.ask("run", "show", "team/first/worker", "right", "--json").json
    assert shown["accounts"][0]["instruction"] and shown["trial"]["task_id"] == "right"
    assert world.valk("export", "team/first", "--exporter", "jsonl", "--output-dir", "exported").code == 0
    records = (world.folder / "exported" / "results.jsonl").read_text().splitlines()
    assert all((world.folder / "exported" / json.loads(one)["log"]).is_file() for one in records)
    assert world.valk("export", "team/first", "--exporter", "markdown").code == 0
    for word in ("team/first", "latest", "team/first/wroker"):
        said = world.valk("run", "fetch", word)
        assert said.code == 2 and "team/first/worker" in said.err, said
    both = [world.valk("compare", word) for word in ("latest", "team/first")]
    assert both[0] == both[1] and both[0].out, both


def grown_job(world: World) -> None:
    start(world, *NULL, "--task-ids", "right", name="grown")
    assert world.ask("job", "watch", "grown").code in (0, 1)
    ended = [run["id"] for run in world.ask("run", "list", "--all", "--json").json["runs"]][:1]
    more = ("--agent", "./worker", "--scenarios", "wrong", "--n-attempts", "2", "--n-concurrent-trials", "3")
    assert world.ask("job", "resume", "grown", *more).code == 0
    assert world.ask("job", "watch", "grown").code in (0, 1)
    assert world.valk("job", "summary", "grown", "-e").code == 0
    first = world.ask("run", "tasks", ended[0], "--json").json["trials"]
    world.note(sorted((trial["task_id"], trial["k"], trial["attempts"]) for trial in first))
    assert world.valk("job", "resume", "grown", "--n-attempts", "1").code == 2
    assert world.ask("job", "delete", "grown", "--yes").code == 0


def steered_job(world: World) -> None:
    two = ("--agent", "./worker:m1", "--agent", "./worker:m2")
    start(world, *two, "--scenarios", "./tasks/right", "./tasks/wrong", "-k", "seconds", "60", name="steered")
    until(lambda: "steered" in world.ask("job", "list", "--all", "--status", "running").out)
    assert world.valk("job", "delete", "steered", "--yes").code == 1
    assert world.ask("job", "cancel", "steered", "--force", "--yes").code == 0
    assert world.ask("job", "watch", "steered").code == 1
    assert world.valk("job", "cancel", "steered").code == 1
    assert world.valk("job", "list", "--all", "--status", "cancelled").code == 0
    assert world.ask("job", "delete", "steered", "--yes").code == 0


def secrets_of_jobs(world: World) -> None:
    keyed = ("--agent", "./keyed", "--agent", "nop", "--benchmark", "./tasks", "--task-ids", "right")
    missing = world.valk("job", "run", *keyed)
    assert missing.code == 1 and "team/key" in missing.err
    said = world.ask("job", "run", *keyed, "-n", "keyed", env={"API_KEY": VALUE})
    assert said.code == 0 and VALUE not in said.out + said.err
    assert world.ask("job", "watch", "keyed").code in (0, 1)
    run_id = world.ask("run", "list", "--agent-name", "keyed", "--json").json["runs"][0]["id"]
    assert f"a key of {len(VALUE)} characters" in world.ask("run", "logs", run_id, "right").out
    assert world.ask("job", "delete", "keyed", "--yes").code == 0
    for name in world.ask("secret", "list", "--json").json["names"]:
        assert world.ask("secret", "remove", name, "--yes").code == 0


def unknown_jobs(world: World) -> None:
    start(world, *NULL, "--slice", ":1", name="nightly")
    assert "nightly" in world.valk("job", "summary", "nihgtly").err
    assert world.valk("job", "summary", "..").code == world.valk("job", "summary", "not a name").code == 2
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
            said = world.valk("job", *words)
            assert said.code == 2 and said.err.startswith("Error: ") and not said.out, words


JOB_SCENES = [planned_jobs, one_job, steered_job]
SLOW_JOB_SCENES = [grown_job, secrets_of_jobs, unknown_jobs]
