"""The report for people, and what hostile text cannot do to it."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.evals.made import BROKEN, UNSURE, an_eval, grader, invoked, stimulus, trial
from valkyrie.evals.markdown import MOST_BYTES, escaped, fenced, markdown
from valkyrie.evals.results import StimulusResult


def outside_fences(text: str) -> list[str]:
    """Lines of a document that are not inside a fenced block, as CommonMark reads it."""
    kept, fence = [], ""
    for line in text.split("\n"):
        opened = re.match(r"(`{3,})", line)
        if fence:
            closing = re.fullmatch(r" {0,3}(`{3,})\s*", line)
            fence = "" if closing and len(closing[1]) >= len(fence) else fence
        elif opened:
            fence = opened[1]
        else:
            kept.append(line)
    assert not fence, "a block was left open"
    return kept


def test_it_has_the_tables_the_failures_the_errors_and_the_command() -> None:
    text = markdown(
        invoked(
            an_eval(
                stimulus([True, True, False, True, True], "flaky one"),
                stimulus([True, UNSURE, BROKEN], "with errors", planned=4),
            ),
            an_eval(stimulus([True], "fine"), model="m|2"),
            notices=["half the <b>workers</b> were busy"],
        )
    )
    lines = text.split("\n")
    assert (
        lines[2]
        == "**Not passed** · 6 passed, 1 failed, 1 grader error, 1 execution error, 1 not run (trials)"
    )
    row = next(line for line in lines if line.startswith("| my-eval | gpt-5.5"))
    assert "✘ grader(s) failed; 1 grader error; 1 execution error; 1 not run | 0/2 | 52.5% to 90.0%" in row
    assert "| my-eval | m\\|2 | ✔ all graders passed | 1/1 | 100.0% | 2.5%–100.0% | 100.0% | 0 | 0 |" in lines
    assert "| flaky one | ✘ failed | 80.0% | 4/5 | 41.5s | 100.0% (k=5) | 0.0% (k=5) | ⚠ 40.0% |" in lines
    assert "> half the &lt;b&gt;workers&lt;/b&gt; were busy" in lines
    wrong, errors = lines.index("## Failed graders"), lines.index("## Errors")
    assert wrong < lines.index("### my-eval \\[gpt-5.5\\] › flaky one › trial 3") < errors
    assert lines.index("execution error (sandbox_failed): The sandbox could not be started.") > errors
    assert "valk eval -e eval.yaml --model 'gpt-5.5,m|2'" in lines
    assert "valk eval --resume job-1" in lines


def test_the_curve_is_shown_where_trials_repeat() -> None:
    lines = markdown(invoked(an_eval(stimulus([True, True, False, True, True])))).split("\n")
    assert "| 2 | 100.0% (2.5%–100.0%) | 60.0% (1.5%–99.0%) |" in lines
    assert "| 5 | 100.0% (2.5%–100.0%) | 0.0% (0.0%–97.5%) |" in lines
    assert not any("pass@k" in line for line in markdown(invoked(an_eval(stimulus([True])))).split("\n"))


def test_skipped_and_ungraded_evals_say_so() -> None:
    text = markdown(
        invoked(
            an_eval(skipped="runs: 0", name="lint"),
            an_eval(stimulus([None]), graded=False),
            command=["valk", "a b"],
        )
    )
    assert "| lint | gpt-5.5 | – Skipped (runs: 0) | 0/0 |" in text
    assert "| – not graded | 0/1 |" in text and "**Passed**" in text
    assert "valk 'a b'" in text


@given(st.text(alphabet="`~#\n |<a\x1b\u202e", max_size=80))
def test_nothing_ends_a_fence_but_its_end(text: str) -> None:
    assert outside_fences("\n".join(["before", *fenced(text), "after"])) == ["before", "after"]


def test_agents_cannot_write_into_the_report() -> None:
    evil = "```\n\n# All passed\n\n````\n<script>alert(1)</script>\n| a | b |\n\x1b[2J`````"
    name = "x|y\n# h <img src=x> [l](u) `c`"
    failed = StimulusResult(name, "", [trial(False, stimulus=name, graders=(grader(False, name, evil),))], 1)
    outside = outside_fences(markdown(invoked(an_eval(failed, name=name))))
    assert not any("All passed" in line or "<script" in line or "<img" in line for line in outside)
    assert sum(line.startswith("# ") for line in outside) == 1
    tables = [line for line in outside if line.startswith("| x")]
    assert len(tables) == 2 and all("x\\|y # h" not in line for line in tables)
    assert escaped("x|y\n# <b>") == "x\\|y \\# &lt;b&gt;"


def test_it_fits_a_job_summary_and_says_what_is_missing() -> None:
    loud = (grader(False, "loud", "y" * 5_000),)
    many = [
        StimulusResult(f"s{n}", "", [trial(False, stimulus=f"s{n}", graders=loud)], 1) for n in range(1200)
    ]
    text = markdown(invoked(an_eval(*many)))
    assert len(text.encode()) < MOST_BYTES
    assert re.search(r"… and \d+ more blocks: results.jsonl has all of it", text)
    assert "… and 200 more in results.jsonl." in text
    assert text.rstrip().endswith("```") and "## Run it again" in text
