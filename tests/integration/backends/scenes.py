"""What people do with runs, as command lines; each scene is played on every back end."""

from __future__ import annotations

import csv
import json
import re
import shutil
from pathlib import Path

from tests.integration.backends.installations import Installation
from tests.integration.conftest import until

WORKER = ("--agent", "./worker", "--benchmark", "./tasks")
NULL = ("--agent", "nop", "--benchmark", "./tasks", "--provider", "null", "--max-attempts", "1")
NOWHERE = "00000000"


def planning(installation: Installation) -> None:
    plan = installation.valk("run", "start", *WORKER, "--slice", ":2", "--dry-run")
    assert plan.code == 0 and "Everything is in order" in plan.out
    whole = installation.ask("run", "start", *WORKER, "--trials", "2", "--dry-run", "--json").json["plan"]
    installation.note(whole["trials"], whole["agent_digest"], whole["secrets"])
    assert len(whole["trials"]) == 6
    oracle = installation.valk("run", "start", "--agent", "oracle", "--benchmark", "quickstart", "--dry-run")
    assert oracle.code == 0 and "12 (12 tasks)" in oracle.out
    assert installation.ask("run", "list", "--json").json["total"] == 0


def mistakes(installation: Installation) -> None:
    for words in (
        ("--agent", "./nowhere", "--benchmark", "quickstart"),
        ("--agent", "./tasks", "--benchmark", "quickstart"),
        ("--agent", "oracle", "--benchmark", "./nowhere"),
        ("--agent", "oracle", "--benchmark", "./worker"),
        (*WORKER, "-k", "secondz", "1"),
        (*WORKER, "-k", "seconds", "soon"),
        (*WORKER, "--slice", "1:2:3:4"),
        (*WORKER, "--task-ids", "right,rihgt"),
        (*WORKER, "--dataset", "nope"),
        (*WORKER, "--provider", "nope"),
        (*WORKER, "-H", "X-Team", "blue"),
    ):
        said = installation.valk("run", "start", *words)
        assert said.code in (1, 2) and said.err.startswith("Error: ") and not said.out, words
    # What else could be named differs: a tracker has neither the caller's folders nor plugins.
    unknown = installation.ask("run", "start", "--agent", "oracle", "--benchmark", "quikstart")
    assert unknown.code == 2 and "unknown benchmark 'quikstart'" in unknown.err
    unknown = installation.ask("run", "start", "--agent", "orcale", "--benchmark", "quickstart")
    assert unknown.code == 2 and "no agent is called 'orcale'. Did you mean 'oracle'?" in unknown.err
    assert installation.ask("run", "list", "--json").json["total"] == 0


def one_run(installation: Installation) -> None:
    installation.finish(*NULL, "--slice", ":1")  # an executor is at work from now on
    assert (
        installation.valk(
            "run", "start", *WORKER, "--label", "first", "--model", "m1", "--concurrency", "3"
        ).code
        == 0
    )
    run_id = installation.ask("run", "list", "--label", "first", "--json").json["runs"][0]["id"]
    assert installation.valk("run", "wait", run_id, "--timeout", "60").code == 1
    fetched = installation.valk("run", "fetch", run_id[:8])
    assert "33.3 %" in fetched.out and "2/3 graded" in fetched.out
    assert installation.valk("run", "tasks", run_id, "--sort", "task_id", "--order-by", "DESC").code == 0
    assert installation.valk("run", "tasks", run_id, "--status", "ERROR", "--search", "rok").code == 0
    page = installation.ask("run", "tasks", run_id, "--limit", "2", "--offset", "1", "--json").json
    installation.note([trial["task_id"] for trial in page["trials"]], page["total"])
    assert "forgets its verdict" in installation.valk("run", "errors", run_id).out
    log = installation.valk("run", "logs", run_id, "right")
    assert "done with right" in log.out
    assert (
        "right │ thinking about right" in installation.valk("run", "logs", run_id, "--query", "thinking").out
    )
    assert installation.valk("run", "logs", run_id, "right", "--attempt", "9").code == 2
    assert installation.valk("run", "logs", run_id, "rihgt").code == 2
    assert installation.valk("run", "logs", run_id, "right", "--follow").out == log.out
    assert installation.valk("run", "fetch", run_id, "--connect").code == 0
    assert installation.valk("run", "debug", run_id, "right").code == 1


def taking(installation: Installation) -> None:
    run_id = installation.finish(*WORKER, "--trials", "2", "--dataset", "good")
    assert installation.valk("run", "results", run_id).code == 0
    assert installation.valk("run", "results", run_id).code == 1
    assert installation.valk("run", "results", run_id, "--force").code == 0
    whole = json.loads((installation.folder / "tasks.json").read_text())
    part = installation.ask("run", "results", run_id, "--path", "-", "--task-ids", "right").json
    assert whole["score"]["final_score"] == 0.5 and whole["score"]["planned"] == 4 and "subset" not in whole
    assert part["final_evaluation"]["final_score"] == part["score"]["final_score"] == 1.0
    assert (part["subset"], part["score"]["planned"], part["score"]["passed"]) == (["right"], 2, 2)
    for document in (whole, part):
        for result in document["evaluation_results"].values():
            del result["task_breakdown"]
            result.pop("evidence", None)  # how large an archive is, and when its files were written
        installation.note(sorted(document), document["final_evaluation"], document["evaluation_results"])
    assert installation.valk("run", "results", run_id, "--path", "other.json", "--task-ids", "nope").code == 2
    assert installation.valk("run", "results", run_id, "--s3").code == 1
    assert installation.valk("run", "outputs", run_id, "-o", "outputs").code == 0
    assert installation.valk("agent", "outputs", run_id, "-o", "some", "--task-ids", "right").code == 0
    assert installation.valk("run", "outputs", run_id, "-o", "none", "--task-ids", "nope").code == 2
    for folder in ("outputs", "some"):
        files = sorted(path for path in (installation.folder / folder).rglob("*") if path.is_file())
        installation.note([(str(path.relative_to(installation.folder)), _content(path)) for path in files])
    assert (installation.folder / "outputs" / "wrong" / "1" / "agent_output" / "notes.txt").is_file()
    assert not (installation.folder / "none").exists()
    installation.lose(run_id)
    for words in (("logs", run_id), ("logs", run_id, "right"), ("outputs", run_id, "-o", "lost")):
        said = installation.valk("run", *words)
        assert said.code == 0 and "VALKYRIE_ARTIFACTS_FOLDER" in said.out + said.err, said


def _content(path: Path) -> str:
    """What a file holds; the record of carried work has digests of when its files were written."""
    return "" if path.name == "work.json" else path.read_text()


def steering(installation: Installation) -> None:
    words = (*WORKER, "--dataset", "good", "--trials", "4", "-k", "seconds", "1", "--concurrency", "1")
    run_id = installation.start(*words, "--label", "steered")
    until(lambda: installation.run(run_id)["counts"]["IN_PROGRESS"] == 1)
    assert installation.valk("run", "delete", run_id, "--yes").code == 1
    assert installation.ask("run", "stop", run_id).code == 0
    # How many trials had begun by then, and so are finished, is a matter of moments.
    assert installation.ask("run", "wait", run_id, "--timeout", "60").code == 1
    counts = installation.run(run_id)["counts"]
    assert counts["STOPPED"] > 0 and counts["FINISHED"] + counts["STOPPED"] == 8
    assert installation.valk("run", "stop", run_id).code == 1
    assert installation.valk("run", "update", run_id, "--label", "other", "--priority", "1").code == 0
    assert installation.valk("run", "update", run_id).code == 2
    resumed = installation.ask("run", "resume", run_id, "--concurrency", "4", "--task-ids", "right")
    assert resumed.code == 0 and "Run goes on" in resumed.out
    assert installation.ask("run", "wait", run_id, "--timeout", "60").code == 1
    trials = installation.ask("run", "tasks", run_id, "--search", "right", "--json").json["trials"]
    installation.note([(trial["task_id"], trial["state"], trial["attempts"]) for trial in trials])
    assert installation.ask("run", "resume", run_id).code == 0
    assert installation.valk("run", "wait", run_id, "--timeout", "60").code == 0
    installation.note(
        {name: installation.run(run_id)[name] for name in ("counts", "concurrency", "label", "priority")}
    )
    assert "nothing is left to run" in installation.valk("run", "resume", run_id).err
    assert installation.valk("run", "delete", run_id).code == 2
    assert installation.valk("run", "delete", run_id, "--yes").code == 0
    assert installation.valk("run", "fetch", run_id).code == 2


def forcing(installation: Installation) -> None:
    run_id = installation.start(*WORKER, "-k", "seconds", "60", "--concurrency", "2")
    until(lambda: installation.run(run_id)["counts"]["IN_PROGRESS"] == 2)
    assert installation.valk("run", "stop", run_id, "--force").code == 2
    queue = installation.ask("queue", "status", "--json").json["queue"]
    installation.note([(entry["agent"], entry["pending"], entry["active"]) for entry in queue["entries"]])
    assert len(queue["executors"]) == 1 and installation.ask("queue", "status").code == 0
    assert installation.ask("run", "wait", run_id, "--timeout", "0.1").code == 124
    assert installation.ask("run", "stop", run_id, "--force", "--yes").code == 0
    assert installation.valk("run", "wait", run_id, "--timeout", "60").code == 1
    installation.note(installation.run(run_id)["counts"])


def retrying(installation: Installation) -> None:
    run_id = installation.finish(*WORKER, "--task-ids", "broken,right")
    assert installation.valk("run", "retry", run_id, "--category", "infrastructure").code == 0
    assert installation.ask("run", "wait", run_id, "--timeout", "60").code == 1
    assert installation.ask("run", "retry", run_id, "--category", "benchmark", "--from-scratch").code == 0
    assert installation.valk("run", "wait", run_id, "--timeout", "60").code == 1
    assert installation.valk("run", "errors", run_id).code == 0
    trials = installation.ask("run", "tasks", run_id, "--json").json["trials"]
    installation.note([(trial["task_id"], trial["state"], trial["attempts"]) for trial in trials])
    assert installation.valk("run", "logs", run_id, "broken", "--attempt", "1").code == 0
    assert installation.valk("run", "retry", run_id, "--task-ids", "nope").code == 2


def listing(installation: Installation) -> None:
    for number in range(3):
        installation.finish(*NULL, "--label", "page", "--model", f"m{number}", "--slice", ":1")
    assert "2 of 3 runs" in installation.valk("run", "list", "--label", "page", "--limit", "2").err
    assert installation.valk("run", "list", "--label", "page", "--all", "--order-by", "ASC").code == 0
    for words in (
        ("--model", "m1"),
        ("--agent-name", "nop", "--benchmark-name", "tasks"),
        ("--dataset", "default", "--status", "FINISHED"),
        ("--status", "IN_PROGRESS"),
        ("--started-by", "nobody,noone"),
    ):
        found = installation.ask("run", "list", "--label", "page", *words, "--json").json
        installation.note(words, found["total"], [run["model"] for run in found["runs"]])
    for label in ("no such", "it's & other=1"):
        assert installation.valk("run", "list", "--label", label).out == "No run matches.\n"
    assert installation.valk("run", "list", "--label", "page", "--label", "no such").code == 2
    page = installation.ask("run", "list", "--label", "page", "--limit", "2", "--json").json
    assert [run["model"] for run in page["runs"]] == ["m2", "m1"] and page["cursor"]
    mine = installation.ask(
        "run", "list", "--label", "page", "--started-by", page["runs"][0]["started_by"], "--json"
    )
    assert mine.json["total"] == 3


def repeating(installation: Installation) -> None:
    words = (*NULL, "--slice", ":1", "--label", "twice", "--count", "2", "--max-cost", "1.5")
    assert installation.valk("run", "start", *words).code == 0
    found = installation.ask("run", "list", "--label", "twice", "--json").json["runs"]
    assert len({run["id"] for run in found}) == 2
    for run in found:
        assert installation.ask("run", "wait", run["id"], "--timeout", "60").code in (0, 1)
        installation.note(installation.run(run["id"])["cost"], installation.run(run["id"])["state"])


def grading_again(installation: Installation) -> None:
    run_id = installation.finish(*WORKER)
    assert installation.run(run_id)["score"]["passed"] == 1
    fixed = installation.folder / "fixed"
    shutil.rmtree(fixed, ignore_errors=True)
    shutil.copytree(installation.folder / "tasks", fixed)
    for task, number in (("right", 41), ("wrong", 42), ("broken", 42)):
        test = (fixed / "wrong" / "tests" / "test.sh").read_text()
        (fixed / task / "tests" / "test.sh").write_text(re.sub(r"= 4\d", f"= {number}", test))
    plan = installation.valk("run", "regrade", run_id, "--tests", "./fixed", "--dry-run")
    assert plan.code == 0 and "3 trials would be graded again" in plan.out
    assert installation.valk("run", "regrade", run_id, "--tests", "./fixed").code == 0
    assert installation.ask("run", "wait", run_id, "--timeout", "60").code == 0
    assert installation.run(run_id)["score"]["passed"] == 2
    assert "1 (in use)" in installation.valk("run", "regrade", run_id, "--list").out
    changed = installation.valk("run", "regrade", run_id, "--diff", "0", "1").out
    for row in (
        "right now fails 100.0 % 0.0 %",
        "wrong now passes 0.0 % 100.0 %",
        "broken now graded — 100.0 %",
    ):
        assert row in re.sub(r"\s+", " ", changed)
    assert installation.valk("compare", f"{run_id}@0", f"{run_id}@1").out == changed
    assert installation.valk("run", "regrade", run_id, "--use", "0").code == 0
    assert "33.3 %" in installation.valk("run", "fetch", run_id).out
    for words in (
        ("--use", "7"),
        ("--diff", "0", "7"),
        ("--tests", "./worker"),
        ("--tests", "quickstart"),
        ("--judge", "m"),
        ("--task", "rihgt"),
        ("--list", "--use", "0"),
    ):
        said = installation.valk("run", "regrade", run_id, *words)
        assert said.code in (1, 2) and said.err.startswith("Error: "), said
    nothing = installation.valk("run", "regrade", installation.finish(*NULL))
    assert nothing.code == 1 and "no work was kept of it" in nothing.err


def unknown(installation: Installation) -> None:
    for words in (
        ("fetch", NOWHERE),
        ("fetch", "not an id"),
        ("fetch", "a/../b"),
        ("fetch", NOWHERE, "--connect"),
        ("wait", NOWHERE),
        ("stop", NOWHERE),
        ("resume", NOWHERE),
        ("retry", NOWHERE),
        ("update", NOWHERE, "--label", "x"),
        ("delete", NOWHERE, "--yes"),
        ("results", NOWHERE),
        ("outputs", NOWHERE),
        ("errors", NOWHERE),
        ("tasks", NOWHERE),
        ("logs", NOWHERE),
        ("logs", NOWHERE, "right"),
        ("debug", NOWHERE, "right"),
    ):
        said = installation.valk("run", *words)
        assert said.code == 2 and said.err.startswith("Error: ") and not said.out, words


def ambiguous(installation: Installation) -> None:
    ids = [run["id"] for run in installation.ask("run", "list", "--all", "--json").json["runs"]]
    while len({run_id[0] for run_id in ids}) == len(ids):
        ids.append(installation.start(*NULL, "--label", "ambiguous", "--slice", ":1"))
    firsts = [run_id[0] for run_id in ids]
    twice = next(first for first in firsts if firsts.count(first) > 1)
    for words in (("fetch", twice), ("logs", twice, "right"), ("delete", twice, "--yes")):
        said = installation.ask("run", *words)
        assert said.code == 2 and "is the beginning of several run ids" in said.err, words
        assert all(run_id in said.err for run_id in ids if run_id[0] == twice)


def verdicts(installation: Installation) -> None:
    """What the agent brought about counts 0; what is missing for other reasons makes a range."""
    contract = installation.folder / "quitter" / "contract.yaml"
    contract.parent.mkdir(exist_ok=True)
    contract.write_text("name: quitter\ninstall_cmd: 'true'\nrun_cmd: cat {problem_statement_path}; exit 3\n")
    quitter = installation.finish(
        "--agent", "./quitter", "--benchmark", "./tasks", "--on-agent-failure", "error", "--max-attempts", "1"
    )
    score = installation.run(quitter)["score"]
    assert (score["errors"], score["ungraded"], score["coverage"]) == ({"agent": 3}, 0, 1.0)
    assert (score["final_score"], score["score_graded"], score["score_confirmed"]) == (0.0, 0.0, 0.0)
    assert "counted as 0" in installation.valk("run", "errors", quitter).out
    worker = installation.finish(*WORKER)
    score = installation.run(worker)["score"]
    third = round(1 / 3, 6)
    assert (round(score["score_low"], 6), round(score["score_high"], 6)) == (third, 1 - third)
    assert score["ungraded"] == 1
    assert "33.3 % to 66.7 %, depending on 1 ungraded trial" in installation.valk("run", "fetch", worker).out
    assert "33.3 to 66.7 %" in installation.ask("run", "list").out
    both = installation.valk("compare", worker, quitter).out
    assert "33.3 to 66.7 %" in both and "No difference seen" not in both
    shown = installation.ask("run", "show", worker, "right", "--json").json
    assert (shown["trial"]["passed"], len(shown["attempts"])) == (True, 1)
    assert installation.ask("run", "show", worker, "right").code == 0
    assert installation.valk("run", "show", worker, "rihgt").code == 2
    assert installation.valk("export", quitter, "--exporter", "csv", "--output-dir", "zeros").code == 0
    with (installation.folder / "zeros" / "results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    installation.note([(row["outcome"], row["score"], row["counted_as_zero"]) for row in rows])
    assert [row["score"] for row in rows] == ["0.0"] * 3
    document = installation.ask("run", "results", worker, "--path", "-").json
    assert round(document["final_evaluation"]["score_high"], 6) == 1 - third
    part = installation.ask("run", "results", worker, "--path", "-", "--task-ids", "right,wrong").json
    assert (part["score"]["score_low"], part["score"]["score_high"]) == (0.5, 0.5)


RUN_SCENES = [
    planning,
    mistakes,
    one_run,
    verdicts,
    taking,
    steering,
    forcing,
    retrying,
    listing,
    repeating,
    grading_again,
    unknown,
    ambiguous,
]
