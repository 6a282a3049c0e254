"""What an eval prints."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest

from benchmark_runner.terminal import TerminalStyle
from tests.unit.evals.made import BROKEN, UNSURE, an_eval, grader, invoked, stimulus, trial
from valkyrie.cli.eval_session import EvalWatch
from valkyrie.cli.output import Output
from valkyrie.evals.console import Printer, ReportStream
from valkyrie.evals.result_folder import write_all
from valkyrie.evals.results import SpecResult, StimulusResult


def printed(*evals: SpecResult, finish: bool = True, verbose: bool = False, **more: Any) -> str:
    stream = io.StringIO()
    printer = Printer(ReportStream.of(stream), verbose=verbose)
    for result in evals:
        for one in result.stimuli:
            printer.stimulus_done(one, result)
    if finish:
        printer.finish(invoked(*evals, **more))
    return stream.getvalue()


def timed(outcomes: list[bool], seconds: list[float]) -> StimulusResult:
    made = stimulus(
        outcomes, "basic-test-generation", prompt="\nWrite unit tests for this function: " + "add " * 30
    )
    trials = [replace(one, duration_ms=took * 1000) for one, took in zip(made.trials, seconds, strict=True)]
    return replace(made, trials=trials)


def test_an_installation_is_told_in_a_pipe() -> None:
    stream = io.StringIO()
    printer = Printer(ReportStream.of(stream))
    EvalWatch(Output(), printer, verbose=False).installing("Installing tool 1.0 for x86_64 glibc")
    assert stream.getvalue() == "Installing tool 1.0 for x86_64 glibc\n"


def test_several_trials_look_as_published() -> None:
    five = timed([True, True, False, True, True], [8.3, 7.1, 9.2, 6.8, 8.0])
    assert printed(an_eval(five), finish=False) == (
        "\nmy-eval [gpt-5.5]\n"
        "\n━━━ basic-test-generation (5 trials) ━━━\n"
        "  Write unit tests for this function: add add add add add add add add add add…\n"
        "\n"
        "  Trial 1 ✔ 8.3s\n"
        "  Trial 2 ✔ 7.1s\n"
        "  Trial 3 ✘ 9.2s  says-foo: looked for foo\n"
        "  Trial 4 ✔ 6.8s\n"
        "  Trial 5 ✔ 8.0s\n"
        "\n"
        "  pass@5: 100.0%  pass^5: 0.0%  pass rate: 4/5 (80.0%)  ⚠ flaky (two trials disagree: 40.0%)\n"
    )


def test_errors_are_told_apart_and_not_counted() -> None:
    text = printed(an_eval(stimulus([True, BROKEN, UNSURE], planned=4)))
    assert "  Trial 2 ! 8.3s  execution error (sandbox_failed): The sandbox could not be started.\n" in text
    assert "  Trial 3 ! 8.3s  grader error (judge_failed): The judge did not answer.\n" in text
    assert "pass@1: 100.0%  pass^1: 100.0%  pass rate: 1/1 (100.0%)  2 errors not counted  1 not run" in text
    assert "! my-eval [gpt-5.5] all graders passed; 1 grader error; 1 execution error; 1 not run\n" in text
    assert "Trials: 1 passed, 0 failed, 1 grader error, 1 execution error, 1 not run\n" in text
    assert "Go on with what is missing: valk eval --resume job-1\n" in text
    assert "no trial was graded" in printed(an_eval(stimulus([BROKEN, BROKEN])))


def test_a_single_run_has_one_line_per_stimulus_and_why_below() -> None:
    graders = (grader(True, "one"), grader(False, "two", "wanted foo\ngot bar"))
    half = StimulusResult(
        "half", "", [trial(False, stimulus="half", graders=graders, score=0.5, attempts=2)], 1
    )
    text = printed(
        an_eval(stimulus([True], "good"), half, stimulus([BROKEN], "down"), stimulus([], "late", planned=1))
    )
    assert text.startswith(
        "\nmy-eval [gpt-5.5]\n"
        "✔ good 8.3s\n"
        "✘ half 8.3s (attempt 2)  score 50.0%\n"
        "    ✘ two: wanted foo\n"
        "        got bar\n"
        "! down 8.3s\n"
        "    execution error (sandbox_failed): The sandbox could not be started.\n"
        "! late  not run\n"
    )


@pytest.mark.parametrize(
    ("result", "line"),
    [
        (an_eval(stimulus([True])), "✔ my-eval [gpt-5.5] all graders passed"),
        (an_eval(stimulus([False]), model="x"), "✘ my-eval [x] grader(s) failed"),
        (an_eval(stimulus([False]), model=None), "✘ my-eval grader(s) failed"),
        (an_eval(skipped="runs: 0"), "– my-eval [gpt-5.5] Skipped (runs: 0)"),
        (an_eval(stimulus([None]), graded=False), "– my-eval [gpt-5.5] not graded"),
        (an_eval(stimulus([BROKEN])), "! my-eval [gpt-5.5] 1 execution error"),
        (an_eval(stimulus([], planned=2)), "! my-eval [gpt-5.5] 2 not run"),
        (
            an_eval(stimulus([True, False], threshold=0.9), threshold=0.9),
            "✘ my-eval [gpt-5.5] the eval's score 50.0% is below its threshold 0.9",
        ),
        (
            an_eval(stimulus([True, False], threshold=0.5), threshold=0.5),
            "✔ my-eval [gpt-5.5] the eval's score 50.0% reaches its threshold 0.5",
        ),
        (
            an_eval(stimulus([False], threshold=0.0), threshold=0.0),
            "✔ my-eval [gpt-5.5] the eval's score 0.0% reaches its threshold 0",
        ),
        (
            an_eval(stimulus([True]), variant="treatment"),
            "✔ my-eval (treatment) [gpt-5.5] all graders passed",
        ),
    ],
)
def test_each_eval_ends_with_its_verdict(result: SpecResult, line: str) -> None:
    assert line in printed(result).split("\n")


def test_the_summary_has_score_interval_use_and_files(tmp_path: Any) -> None:
    story = {"metrics": {"tokenUsage": {"inputTokens": 1200, "outputTokens": 34}, "cost": 0.5}}
    spent = StimulusResult("spent", "", [trial(True, stimulus="spent", transcript=story)], 1)
    invocation = invoked(an_eval(spent, stimulus([False])), folder=tmp_path, notices=["odd"])
    stream = io.StringIO()
    Printer(ReportStream.of(stream)).finish(invocation, write_all(invocation, junit=True))
    lines = stream.getvalue().split("\n")
    assert "  score 50.0% (95% interval 1.3%–98.7%, Gaffke over stimuli)" in lines
    assert "Used: 1,200 tokens in, 34 out; $0.5000" in lines and "Note: odd" in lines
    assert f"Results: {tmp_path / 'results.jsonl'}" in lines
    assert f"JUnit: {tmp_path / 'eval-results.junit.xml'}" in lines
    assert not any("--resume" in line for line in lines)


def test_verbose_shows_every_grader_the_output_and_the_curves() -> None:
    graders = (
        grader(True, "one"),
        grader(False, "two", status="error"),
        grader(False, "three", status="skipped"),
    )
    full = trial(True, graders=graders, transcript={"output": "first\nsecond"})
    text = printed(an_eval(StimulusResult("s", "", [full, trial(False, 1)], 2)), verbose=True)
    below = (
        "  Trial 1 ✔ 8.3s\n"
        "      ✔ one: looked for foo\n"
        "      ! two: looked for foo\n"
        "      – three: looked for foo\n"
        "      agent output:\n"
        "        first\n"
        "        second\n"
    )
    assert below in text
    assert "  pass@k: k=1 50.0%  k=2 100.0%\n  pass^k: k=1 50.0%  k=2 0.0%\n" in text
    assert "  k=2  pass@k 100.0% (2.5%–100.0%)  pass^k 0.0% (0.0%–97.5%)\n" in text


def test_hostile_text_cannot_move_the_cursor_or_make_lines_of_its_own() -> None:
    evil = "\x1b[2J\x1b]0;title\x07\r✔ all graders passed\u202e"
    graders = (grader(False, evil, evil + "\n" * 50 + "x" * 9999),)
    failed = StimulusResult(evil, evil, [trial(False, stimulus=evil, graders=graders)], 1)
    text = printed(an_eval(failed, stimulus([True, False], evil + "\nfake")))
    assert not set("\x1b\x07\r\u202e") & set(text)
    assert not any(line.startswith(("✔ all", "fake")) for line in text.split("\n"))
    assert len(text) < 4_000


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_and_the_live_line_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    now = [0.0]
    stream = Terminal()
    with Printer(ReportStream.of(stream), clock=lambda: now[0]) as printer:
        now[0] = 31.0
        printer.progress(12, 40, retries=1, running=3)
        assert "12/40 trials, 3 running, 1 retry; 00:31" in stream.getvalue()
        printer.progress(13, 40, retries=2)
        assert "13/40 trials, 2 retries; 00:31" in stream.getvalue()
        before = len(stream.getvalue())
        printer.stimulus_done(stimulus([True]), an_eval())
        since = stream.getvalue()[before:]
        cleared, shown, drawn = (since.index(part) for part in ("\x1b[J", "greet", "13/40"))
        assert cleared < shown < drawn and "\x1b[32m✔" in since
    assert stream.getvalue().endswith("\r\x1b[J")
    printer.interrupted()
    assert "Interrupted" in stream.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    assert ReportStream.of(Terminal()).ink == TerminalStyle(False)
    monkeypatch.setenv("TERM", "dumb")
    assert not ReportStream.of(Terminal()).redraws


def test_a_pipe_gets_no_control_codes() -> None:
    stream = io.StringIO()
    with Printer(ReportStream.of(stream)) as printer:
        printer.progress(1, 2)
        printer.stimulus_done(stimulus([True]), an_eval())
    assert "\x1b" not in stream.getvalue() and "1/2" not in stream.getvalue()


def test_ascii_streams_get_words_for_signs() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    printer = Printer(ReportStream.of(stream))
    result = an_eval(stimulus([True, False], prompt="größe " * 30), stimulus([True], "ünicode"))
    for one in result.stimuli:
        printer.stimulus_done(one, result)
    printer.finish(invoked(result))
    text = raw.getvalue().decode("ascii")
    assert "=== greet (2 trials) ===" in text and "Trial 1 ok 8.3s" in text and "Trial 2 FAIL 8.3s" in text
    assert "ok ?nicode 8.3s" in text and "FAIL my-eval [gpt-5.5] grader(s) failed" in text


def test_json_lines_and_words_never_mix() -> None:
    people, machines = io.StringIO(), io.StringIO()
    printer = Printer(ReportStream.of(people), records=machines)
    result = an_eval(stimulus([True, BROKEN], threshold=0.5))
    printer.stimulus_done(result.stimuli[0], result)
    printer.finish(invoked(result))
    records = [json.loads(line) for line in machines.getvalue().splitlines()]
    assert [(one["trialIndex"], one["status"]) for one in records] == [(0, "success"), (1, "error")]
    assert records[0]["gradeResult"]["threshold"] == 0.5
    assert "trial-result" not in people.getvalue() and "Trial 1 ✔" in people.getvalue()


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("x\n::error::y", "| ::error::y"),
        ("x\n  ::add-mask::y", "| ::add-mask::y"),
        ("x ##[error]y", "x # #[error]y"),
        ("x ##vso[task.complete]", "x # #vso[task.complete]"),
        ("a::b ## [c] #[d]", "a::b ## [c] #[d]"),
    ],
)
def test_no_line_is_a_command_to_the_ci_system(said: str, line: str) -> None:
    told = trial(False, graders=(grader(False, evidence=said),))
    assert f" {line}\n" in printed(an_eval(StimulusResult("greet", "", [told], 1)))
