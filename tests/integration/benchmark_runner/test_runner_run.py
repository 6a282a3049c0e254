"""`run` through the command line, against the live example service."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import click
import pytest

from benchmark_runner import make_cli
from tests.integration.benchmark_runner.quiz_runner import QuizRunner
from tests.integration.benchmark_runner.runner_project import (
    QUESTIONS,
    RunnerProject,
    sum_task,
    trivia_task,
    trivia_tasks,
)

SPIDER, PLANET, GOLD = list(QUESTIONS)[:3]


def test_a_clean_run_is_graded_and_scored(trivia: RunnerProject) -> None:
    trivia.write_tasks(trivia_tasks(wrong=4))
    said = trivia.run()
    assert said.splitlines() == [
        "Starting r1: 12 tasks",
        "Processing 12/12 tasks",
        "Done: 12/12 evaluated, 0 eval errors.",
        "Final score: 66.67",
        "  questions: 12",
        "  answered: 12",
        "  correct: 8",
        "Results: results/r1",
    ]
    score = trivia.read("final_score.json")
    assert (score["final_score"], score["complete"]) == (66.67, True)
    assert score["metadata"] == {"questions": 12, "answered": 12, "correct": 8}
    assert sorted(score["tasks_evaluated"]) == sorted(QUESTIONS)
    assert sorted(trivia.service.graded()) == sorted(trivia.journal()) == sorted(QUESTIONS)


def test_what_is_kept_of_a_task_and_of_the_run(
    trivia: RunnerProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUIZ_GENERATION_VERSION", "2026.1")
    trivia.write_tasks([trivia_task(SPIDER, does="keep_a_log")])
    trivia.run("--temperature", "0.5", "--prompt-style", "terse")
    kept = trivia.generation(SPIDER)
    logs = Path("results/r1") / SPIDER / "agent_logs"
    assert kept == {
        "task_id": SPIDER,
        "status": "success",
        "data": "8",
        "answer": "8",
        "question": "How many legs does a spider have?",
        "model": "m1",
        "total_turns": None,
        "error": None,
        "log_dir": str(logs),
        "generation_version": "2026.1",
    }
    assert json.loads((logs / "seen.json").read_text()) == {
        "model": "m1",
        "options": {"prompt_style": "terse", "judge_key": None},
        "temperature": 0.5,
    }
    assert trivia.evaluation(SPIDER) == {
        "task_id": SPIDER,
        "status": "evaluated",
        "result": {"correct": True, "answer": "8"},
        "error": None,
    }
    config = trivia.read("run_config.json")
    assert config.pop("started_at") and config.pop("tasks_digest") and config.pop("fields_digest")
    assert config.pop("framework_version")
    assert config == {
        "run_id": "r1",
        "model": "m1",
        "tasks": [SPIDER],
        "dataset_file": "tasks.json",
        "dataset_name": "default",
        "task_source": "file",
        "payload_schema": "quiz.text.v1",
        "payload_type": "text",
        "runner_version": "dev",
        "generation_version": "2026.1",
        "benchmark": "quiz",
        "settings": {
            "temperature": 0.5,
            "custom_endpoint": None,
            "native": True,
            "timeout": 1800.0,
            "options": {"prompt_style": "terse"},
        },
        "mixed": [],
        "service_url": trivia.service.url,
    }
    text = (trivia.results / "r1" / "run_config.json").read_text()
    assert text.startswith('{\n  "run_id"')


def test_only_the_named_tasks(trivia: RunnerProject) -> None:
    trivia.write_tasks(trivia_tasks())
    said = trivia.run(GOLD, SPIDER, GOLD)
    assert "Starting r1: 2 tasks" in said and "Done: 2/2 evaluated" in said
    assert trivia.read("run_config.json")["tasks"] == [GOLD, SPIDER]
    assert sorted(trivia.journal()) == [GOLD, SPIDER]


def test_unknown_ids_are_refused_and_leave_nothing(trivia: RunnerProject) -> None:
    trivia.write_tasks(trivia_tasks())
    said = trivia.run("legs-of-a-spide", SPIDER, "nonesuch", code=1)
    assert "Unknown task IDs: ['legs-of-a-spide', 'nonesuch']. Did you mean 'legs-of-a-spider'?" in said
    assert trivia.files() == ["tasks.json"]
    assert trivia.service.asked == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--dataset-name", "default", "--dataset-file", "tasks.json"], "mutually exclusive"),
        (["--dataset-name", "default", "--problem", "tasks.json", "a"], "mutually exclusive"),
        (["--problem", "tasks.json"], "--problem needs exactly one TASK_ID"),
        (["--problem", "tasks.json", "a", "b"], "--problem needs exactly one TASK_ID"),
        (["--disable-streaming"], "--disable-streaming needs --chat-completions"),
        (["--problem", "nonesuch.txt", "a"], "does not exist"),
        (["--dataset-file", "nonesuch.json"], "does not exist"),
        (["--parallelism", "0"], "--parallelism"),
        (["--eval-concurrency", "0"], "--eval-concurrency"),
        (["--timeout", "nan"], "--timeout"),
        (["--temperature", "-1"], "--temperature"),
        (["--temperature", "inf"], "--temperature"),
        (["--top-p", "1.5"], "--top-p"),
        (["--max-tokens", "0"], "--max-tokens"),
        (["--run-id", "../r1"], "run id"),
        (["--run-id", ""], "run id"),
        (["--service-url", "ftp://example.invalid"], "--service-url"),
        (["--custom-endpoint", "http://[m.test"], "--custom-endpoint"),
        (["--custom-endpoint", "m.test"], "--custom-endpoint"),
        (["--report-to", "tracker.test"], "--report-to"),
        (["--report-to", "https://ann:pass@tracker.test"], "set VALKYRIE_API_KEY instead"),
        (["--model", " "], "--model"),
    ],
)
def test_usage_errors_leave_nothing(trivia: RunnerProject, words: list[str], said: str) -> None:
    trivia.write_tasks(trivia_tasks())
    output = trivia.run(*words, code=2)
    assert said in output
    assert trivia.files() == ["tasks.json"]
    assert trivia.service.asked == []


@pytest.mark.parametrize("missing", ["--model", "--run-id"])
def test_model_and_run_id_are_needed(trivia: RunnerProject, missing: str) -> None:
    given = {"--model": "m1", "--run-id": "r1"}
    given.pop(missing)
    words = [word for pair in given.items() for word in pair]
    assert missing in trivia("run", *words, code=2).output


def test_without_a_service_it_says_how_to_name_one(trivia: RunnerProject) -> None:
    trivia.write_tasks(trivia_tasks())
    assert "--service-url (or SERVICE_URL)" in trivia.run(service=False, code=2)
    assert trivia.files() == ["tasks.json"]


def test_the_service_may_come_from_the_environment(
    trivia: RunnerProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_URL", f"{trivia.service.url}/")
    trivia.write_tasks(trivia_tasks(wrong=0))
    assert "Final score: 100" in trivia.run(service=False)


def test_generating_only(trivia: RunnerProject) -> None:
    trivia.write_tasks(trivia_tasks())
    said = trivia.run("--skip-eval", service=False)
    assert "Eval skipped (--skip-eval)" in said and "Done" not in said and "score" not in said.lower()
    assert trivia.generation(SPIDER)["data"] == "no idea"
    assert not (trivia.results / "r1" / SPIDER / "eval.json").exists()
    assert not (trivia.results / "r1" / "final_score.json").exists()
    assert trivia.service.asked == []


def test_generating_only_fails_for_generation_errors(trivia: RunnerProject) -> None:
    trivia.write_tasks([trivia_task(SPIDER), trivia_task(GOLD, "no luck", does="raise")])
    said = trivia.run("--skip-eval", service=False, code=1)
    assert said.splitlines()[-5:] == [
        "Eval skipped (--skip-eval)",
        "Generation failed for:",
        f"  {GOLD}: RuntimeError: no luck",
        "Give the same command again to try once more what failed.",
        "Results: results/r1",
    ]


def test_a_problem_file_is_the_question_of_one_task(trivia: RunnerProject) -> None:
    (trivia.root / "problem.txt").write_text("How many legs does a spider have?\n")
    trivia.run("--problem", "problem.txt", SPIDER)
    assert trivia.generation(SPIDER)["question"] == "How many legs does a spider have?\n"
    config = trivia.read("run_config.json")
    assert (config["task_source"], config["dataset_file"], config["tasks"]) == ("problem", None, [SPIDER])
    assert not [one for one in trivia.service.asked if one.path.startswith("/v1")]


def test_another_dataset_file_and_another_results_folder(trivia: RunnerProject) -> None:
    trivia.write_tasks([trivia_task(GOLD)], "other.json")
    trivia.run("--dataset-file", "other.json", "--results-dir", "deep/out")
    assert (trivia.root / "deep" / "out" / "r1" / GOLD / "eval.json").exists()


def test_exactly_the_tasks_that_raise_are_errors(sums: RunnerProject) -> None:
    sums.write_tasks([sum_task(n, "raise" if n % 10 == 3 else "") for n in range(100)])
    said = sums.run("--parallelism", "25", code=1)
    broken = [f"sum-{n:03}" for n in range(3, 100, 10)]
    assert "Done: 90/100 evaluated, 0 eval errors." in said
    assert "Evaluation failed for:" not in said
    lines = said[said.index("Generation failed for:") :].splitlines()[1:-2]
    assert {line.strip() for line in lines} == {
        f"sum-{n:03}: RuntimeError: {2 * n}" for n in range(3, 100, 10)
    }
    statuses = {f"sum-{n:03}": sums.generation(f"sum-{n:03}")["status"] for n in range(100)}
    assert [task_id for task_id, status in statuses.items() if status == "error"] == broken
    assert set(statuses.values()) == {"success", "error"}
    assert sorted(sums.service.graded()) == sorted(set(statuses) - set(broken))
    assert sums.evaluation("sum-003")["status"] == "generation_error"
    assert sums.evaluation("sum-003")["error"] == "RuntimeError: 6"
    trace = (sums.results / "r1" / "sum-003" / "agent_logs" / "exception.txt").read_text()
    assert "in _raise" in trace and "RuntimeError: 6" in trace
    assert not (sums.results / "r1" / "final_score.json").exists()


@pytest.mark.parametrize(
    ("does", "error"),
    [
        ("exit", "LeftError: SystemExit: 3"),
        ("cancelled", "LeftError: CancelledError"),
        ("cancel_itself", "LeftError: CancelledError"),
        ("own_timeout", "TimeoutError: the model took too long"),
        ("wrong_type", "TypeError: generate returned str, not a GenerationResult"),
        ("mute", "MuteError"),
        ("odd_path", "FileNotFoundError: [Errno 2] No such file: 'caf"),
        ("no_json", "ValueError: the answer is not JSON"),
        ("not_a_number", "ValueError: the answer is not JSON"),
        ("give_up", "8"),
    ],
)
def test_whatever_generate_does_the_others_go_on(trivia: RunnerProject, does: str, error: str) -> None:
    trivia.write_tasks([trivia_task(SPIDER, does=does), trivia_task(GOLD), trivia_task(PLANET)])
    said = trivia.run("--parallelism", "1", code=1)
    assert "Done: 2/3 evaluated, 0 eval errors." in said
    assert f"Generation failed for:\n  {SPIDER}: {error}" in said
    assert trivia.generation(SPIDER)["error"].startswith(error)
    assert sorted(trivia.service.graded()) == sorted([GOLD, PLANET])


def test_half_a_character_is_replaced(trivia: RunnerProject) -> None:
    trivia.write_tasks([trivia_task(SPIDER, does="half_a_character")])
    trivia.run()
    kept = trivia.generation(SPIDER)
    assert (kept["data"], kept["question"]) == ("8?", "??")
    assert trivia.service.bodies("/evaluate-response/")[0]["response"] == "8?"


def test_running_out_of_time_or_turns_is_no_failure(trivia: RunnerProject) -> None:
    trivia.write_tasks(
        [
            trivia_task(SPIDER, does="hang", timeout=0.05),
            trivia_task(PLANET, does="run_out_of_turns"),
            trivia_task(GOLD),
        ]
    )
    said = trivia.run()
    assert "Done: 1/3 evaluated, 0 eval errors. 2 ran out of time or turns." in said
    assert "Final score: 33.33" in said
    kept = trivia.generation(SPIDER)
    assert (kept["status"], kept["data"]) == ("max_time", "")
    assert kept["error"] == "generation timed out after 0.05 seconds"
    assert trivia.generation(PLANET)["total_turns"] == 30
    assert trivia.evaluation(SPIDER)["status"] == trivia.evaluation(PLANET)["status"] == "did_not_complete"
    assert trivia.service.graded() == [GOLD]


def test_the_time_limit_of_the_command_and_what_a_generator_makes_of_it(trivia: RunnerProject) -> None:
    trivia.write_tasks([trivia_task(SPIDER, does="hang"), trivia_task(GOLD, does="hang_and_complain")])
    trivia.run("--timeout", "0.05")
    for task_id in (SPIDER, GOLD):
        kept = trivia.generation(task_id)
        assert (kept["status"], kept["error"]) == ("max_time", "generation timed out after 0.05 seconds")


@pytest.mark.parametrize("limit", ["0", "-1"])
def test_no_time_limit(trivia: RunnerProject, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUIZ_PAUSE", "0.02")
    trivia.write_tasks([trivia_task(SPIDER, does="pause"), trivia_task(GOLD, does="pause", timeout=0)])
    assert "Done: 2/2 evaluated" in trivia.run("--timeout", limit)


def test_any_printable_id_is_kept_apart(trivia: RunnerProject) -> None:
    ids = ["a/b", "a%2Fb", "..", ".", "final_score.json", "ünï çødé", "x" * 300, "-v", "run_config.json"]
    trivia.write_tasks([{"id": one, "question": "?", "says": one} for one in ids])
    trivia.run("--skip-eval", service=False)
    root = trivia.results / "r1"
    kept = {json.loads(path.read_text())["data"] for path in root.glob("*/generation.json")}
    assert kept == set(ids)
    assert {path.parent for path in trivia.root.rglob("generation.json")} == {
        path for path in root.iterdir() if path.is_dir()
    }


def test_tasks_a_file_system_does_not_tell_apart(trivia: RunnerProject) -> None:
    folder = trivia.results / "r1"
    folder.mkdir(parents=True)
    # As such a file system answers.
    (folder / ".LOCK").symlink_to(".lock")
    trivia.write_tasks([{"id": "Sum", "question": "?"}, {"id": "sum", "question": "?"}])
    said = trivia.run("--skip-eval", code=1)
    assert "Tasks 'Sum' and 'sum' differ in case only" in said and "--results-dir" in said
    assert "Starting r2: 2 tasks" in trivia.run("--skip-eval", run_id="r2")


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ([{"id": "a\nb", "question": "?"}], "is no task id"),
        ([{"id": "", "question": "?"}], "is no task id"),
        ([{"id": "a", "question": "?"}] * 2, "two tasks with the id 'a'"),
        ([], "tasks.json has no tasks"),
        ([{"id": "a"}], "tasks.json cannot be loaded"),
    ],
)
def test_a_dataset_that_cannot_be_used(trivia: RunnerProject, tests: list[dict[str, str]], said: str) -> None:
    trivia.write_tasks(tests)
    assert said in trivia.run(code=1)
    assert trivia.files() == ["tasks.json"]


def test_no_dataset_at_all(trivia: RunnerProject) -> None:
    assert "There is no dataset file tasks.json" in trivia.run(code=1)
    bare = RunnerProject(trivia.root, trivia.service, make_cli(QuizRunner))
    assert "name a dataset with --dataset-file or --dataset-name" in bare.run(code=1)
    assert trivia.files() == []


def test_options_of_the_runners_own_reach_it(trivia: RunnerProject) -> None:
    trivia.write_tasks([trivia_task(SPIDER, does="keep_a_log")])
    trivia.run("--prompt-style", "terse", "--judge-key", "sk-judge-1234567")
    seen = trivia.read(SPIDER, "agent_logs", "seen.json")
    assert seen["options"] == {"prompt_style": "terse", "judge_key": "sk-judge-1234567"}
    assert trivia.read("run_config.json")["settings"]["options"] == {"prompt_style": "terse"}
    shown = trivia("run", "--help").output
    assert "--prompt-style" in shown and "A secret of the runner's own." in shown


def test_options_of_the_runners_own_must_not_clash() -> None:
    for clash in (click.option("--model"), click.Option(["--other", "timeout"])):
        with pytest.raises(ValueError, match=r"`run` has .* already"):
            make_cli(QuizRunner, extra_run_options=[clash])


def test_an_option_that_is_for_its_callback_alone(trivia: RunnerProject) -> None:
    seen: list[bool] = []

    def look(_context: click.Context, _parameter: click.Parameter, value: bool) -> None:
        seen.append(value)

    flag = click.option("--loud", is_flag=True, expose_value=False, callback=look)
    cli = make_cli(QuizRunner, default_dataset_file="tasks.json", extra_run_options=[flag])
    trivia.write_tasks([trivia_task(SPIDER)])
    RunnerProject(trivia.root, trivia.service, cli).run("--loud")
    assert seen == [True]


def test_a_dotenv_file_goes_before_the_environment(
    trivia: RunnerProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVICE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("BENCHMARK_API_KEY", "from-the-environment")
    (trivia.root / ".env").write_text(
        f"SERVICE_URL={trivia.service.url}\nBENCHMARK_API_KEY='from-the-file'\nnonsense\n"
    )
    trivia.write_tasks([trivia_task(SPIDER)])
    done = trivia("run", "--model", "m1", "--run-id", "r1")
    assert "Warning: .env, line 3" in done.stderr and "line 3" not in done.stdout
    sent = {one.headers.get("authorization") for one in trivia.service.asked}
    assert sent == {"Bearer from-the-file"}


def test_one_document_for_programs(trivia: RunnerProject) -> None:
    trivia.write_tasks([trivia_task(SPIDER, does="raise"), trivia_task(GOLD), trivia_task(PLANET, "Mars")])
    done = trivia(
        *("run", "--model", "m1", "--run-id", "r1", "--service-url", trivia.service.url, "--json"), code=1
    )
    document = json.loads(done.stdout)
    assert document == {
        "run_id": "r1",
        "exit_code": 1,
        "benchmark": "quiz",
        "model": "m1",
        "results": "results/r1",
        "tasks": 3,
        "generated": {"success": 2, "max_time": 0, "max_turns": 0, "error": 1},
        "evaluated": 2,
        "did_not_complete": 0,
        "not_generated": [],
        "not_evaluated": [],
        "generation_errors": {SPIDER: "RuntimeError: 8"},
        "eval_errors": {},
        "complete": False,
        "score": None,
    }
    assert "Starting r1: 3 tasks" in done.stderr
    done = trivia(
        *("run", "--model", "m1", "--run-id", "r2", "--service-url", trivia.service.url, "--json", GOLD)
    )
    document = json.loads(done.stdout)
    assert (document["exit_code"], document["complete"]) == (0, True)
    assert document["score"] == trivia.read("final_score.json", run_id="r2")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--run-id", "r1"), 2, "Missing option '--model'."),
        (("--model", "m1", "--run-id", "a/b"), 2, "no run id"),
        (("--model", "m1", "--run-id", "r1"), 2, "Who grades is not known"),
        (("--model", "m1", "--run-id", "r1", "--skip-eval", "nobody"), 1, "Unknown task IDs: ['nobody']"),
    ],
)
def test_a_refusal_is_a_document_too(
    trivia: RunnerProject, words: Sequence[str], code: int, said: str
) -> None:
    trivia.write_tasks([trivia_task(SPIDER)])
    done = trivia("run", "--json", *words, code=code)
    document = json.loads(done.stdout)
    assert document["exit_code"] == code and said in document["error"]
    assert document["error"] in done.stderr


def test_secrets_are_nowhere_after_errors_that_quote_them(
    trivia: RunnerProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    secrets = ["sk-openai-0123456789", "custom-key-9876543210", "bench-key-55555555"]
    monkeypatch.setenv("OPENAI_API_KEY", secrets[0])
    monkeypatch.setenv("BENCHMARK_API_KEY", secrets[2])
    monkeypatch.setenv("MAX_TOKENS", "4096")
    tasks = [
        trivia_task(SPIDER, does="quote_keys"),
        trivia_task(PLANET, f"bad key {secrets[0]}, 4096 tokens", does="give_up"),
        trivia_task(GOLD),
    ]
    trivia.write_tasks(tasks)
    trivia.service.refuse("/evaluate-response/", 500)
    said = trivia.run("--custom-api-key", secrets[1], "--custom-endpoint", "http://u:pw-1@m.test/v1", code=1)
    assert f"{SPIDER}: RuntimeError: 401: bad key ***, or ***" in said
    assert f"{PLANET}: bad key ***, 4096 tokens" in said
    kept = "".join(
        path.read_text() for path in trivia.results.rglob("*") if path.is_file() and path.suffix != ".lock"
    )
    assert "bad key ***" in kept and "http://m.test/v1" in kept
    for secret in (*secrets, "pw-1"):
        assert secret not in said and secret not in kept


def test_a_dataset_that_quotes_a_secret_does_not_tell_it(
    trivia: RunnerProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Quoting(QuizRunner):
        def load_tasks(self, dataset_file: Path) -> list:  # type: ignore[type-arg]
            raise RuntimeError(f"no access with {os.environ['OPENAI_API_KEY']}")

    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai-0123456789")
    trivia.write_tasks([])
    project = RunnerProject(trivia.root, trivia.service, make_cli(Quoting, default_dataset_file="tasks.json"))
    assert project.run(code=1) == "Error: tasks.json cannot be loaded: RuntimeError: no access with ***\n"


def test_a_key_no_header_can_carry(trivia: RunnerProject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VALS_AUTH_KEY", "schlüssel")
    trivia.write_tasks(trivia_tasks())
    assert trivia.run(code=1) == "Error: VALS_AUTH_KEY has characters no key has; copy it again.\n"
    assert trivia.files() == ["tasks.json"]


def test_what_cannot_be_written_ends_the_run_in_words(trivia: RunnerProject) -> None:
    trivia.write_tasks(trivia_tasks())
    trivia.run(SPIDER)
    (trivia.results / "r2").mkdir()
    (trivia.results / "r2" / SPIDER).write_text("in the way")
    said = trivia.run(SPIDER, run_id="r2", code=1)
    assert said.splitlines()[-1].startswith("Error: ") and SPIDER in said and "Not a directory" in said
