"""`compare` of two result folders: matching, numbers, the A/B judge, records and exit codes."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.integration.evals.commands import Said, Valk, valk
from tests.integration.evals.judge_thread import served
from valkyrie.evals.records import dump_line, to_line
from valkyrie.evals.results import TrialFault, TrialResult
from valkyrie.testing import Fault, Say, Script, ToolRequest
from valkyrie.trajectory.records import to_record
from valkyrie.trajectory.transcript import Event, Measures, Transcript

Json = dict[str, Any]


__all__ = ["valk"]


@pytest.fixture(autouse=True)
def no_judge_around(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VALKYRIE_JUDGE_URL", "VALKYRIE_JUDGE_API_KEY", "OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def trial(stimulus: str, index: int = 0, *, passed: bool | None = True, **changed: Any) -> TrialResult:
    """One trial as an eval leaves it; `tokens`, `output` and `score` may be said."""
    tokens, output = changed.pop("tokens", 100), changed.pop("output", f"answer to {stimulus}")
    score = changed.pop("score", None if passed is None else float(passed))
    measures = Measures(total_tokens=tokens, input_tokens=tokens, turn_count=2, wall_time_ms=tokens * 10.0)
    transcript = Transcript(output, [Event("assistant_message", {"content": output})], measures)
    fields = {
        "eval_name": "greetings",
        "executor": "mock",
        "transcript": to_record(
            transcript,
            id=f"{stimulus}#{index}",
            stimulus={"name": stimulus, "prompt": "Do it."},
            work_dir="/w",
        ),
        **changed,
    }
    return TrialResult(stimulus=stimulus, index=index, passed=passed, score=score, **fields)


def broken(stimulus: str, index: int = 0, kind: Any = "execution") -> TrialResult:
    return trial(stimulus, index, passed=None, fault=TrialFault(kind, "it broke"))


def folder(path: Path, trials: Iterable[TrialResult]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "results.jsonl").write_text("".join(dump_line(to_line(one)) + "\n" for one in trials))
    return path


def two(tmp_path: Path, before: Iterable[TrialResult], after: Iterable[TrialResult]) -> tuple[Path, Path]:
    return folder(tmp_path / "before", before), folder(tmp_path / "after", after)


def record(said: Said) -> Json:
    found: Json = json.loads(said.out)
    return found


def many(passes: int, of: int, **changed: Any) -> list[TrialResult]:
    return [trial(f"s{number:02d}", passed=number < passes, **changed) for number in range(of)]


def test_verdicts_are_compared_with_interval_and_test(valk: Valk, tmp_path: Path) -> None:
    before, after = two(tmp_path, many(2, 12), many(11, 12, tokens=150))
    said = valk("compare", before, after)
    assert said.code == 0
    assert "after beats before by 75.0 points" in said.out
    assert "p = 0.002, 12 tasks in common" in said.out
    assert "9 only after passed, 0 only before, 3 alike; mid-p McNemar p = 0.00195" in said.out
    assert "Tokens" in said.out and "+50.0" in said.out


def test_the_record_has_the_shape_everyone_reads(valk: Valk, tmp_path: Path) -> None:
    before, after = two(
        tmp_path,
        [*many(2, 4), broken("s90"), trial("only-before")],
        [*many(3, 4, tokens=130), trial("s90"), trial("only-after", 1)],
    )
    said = valk("compare", before, after, "--output", "-")
    assert said.code == 0
    found = record(said)
    assert set(found) == {
        "type",
        "experimentName",
        "baseline",
        "treatment",
        "summary",
        "stimuli",
        "unmatchedBaseline",
        "unmatchedTreatment",
    }
    assert (found["type"], found["experimentName"]) == ("comparison", "greetings")
    assert (found["baseline"], found["treatment"]) == ("before", "after")
    summary = found["summary"]
    assert set(summary) == {
        "trialCount",
        "erroredCount",
        "meanScore",
        "ciLow",
        "ciHigh",
        "wins",
        "ties",
        "losses",
        "winRate",
        "mcnemar",
        "metricDeltas",
    }
    assert (summary["trialCount"], summary["erroredCount"]) == (4, 1)
    assert (summary["wins"], summary["ties"], summary["losses"], summary["winRate"]) == (1, 3, 0, 0.25)
    assert summary["meanScore"] == 0.25
    assert summary["ciLow"] < 0.25 < summary["ciHigh"]
    assert summary["mcnemar"] == {
        "baselineOnly": 0,
        "treatmentOnly": 1,
        "concordant": 3,
        "pValue": 0.5,
        "exact": False,
    }
    tokens = next(delta for delta in summary["metricDeltas"] if delta["metric"] == "totalTokens")
    assert set(tokens) == {"metric", "mean", "ciLow", "ciHigh", "stdDev", "highVariance"}
    assert (tokens["mean"], tokens["stdDev"], tokens["highVariance"]) == (30, 0, False)
    assert {"turnCount", "wallTimeMs"} <= {delta["metric"] for delta in summary["metricDeltas"]}
    third = found["stimuli"][2]
    assert third["stimulusName"] == "s02" and third["meanScore"] == 1.0
    assert third["trials"] == [
        {
            "trialIndex": 0,
            "winner": "treatment",
            "magnitude": "much-better",
            "score": 1.0,
            "evidence": "by verdict: failed (0.00), then passed (1.00)",
            "baselinePassed": False,
            "treatmentPassed": True,
        }
    ]
    errored = found["stimuli"][4]
    assert errored["meanScore"] is None and errored["trials"][0]["errored"] is True
    assert found["unmatchedBaseline"] == ["only-before#0"]
    assert found["unmatchedTreatment"] == ["only-after#1"]


def test_an_error_that_is_no_agents_doing_counts_in_no_number(valk: Valk, tmp_path: Path) -> None:
    """Half a pair would be unfair: the sound trial of a broken pair is not compared."""
    sound = two(tmp_path / "sound", many(3, 8), many(5, 8, tokens=120))
    noisy = two(
        tmp_path / "noisy",
        [*many(3, 8), broken("s50"), trial("s51", tokens=9), broken("s52", kind="grader")],
        [*many(5, 8, tokens=120), trial("s50", tokens=9_999), broken("s51"), trial("s52", passed=False)],
    )
    first, second = (record(valk("compare", *pair, "--json")) for pair in (sound, noisy))
    assert second["summary"] == {**first["summary"], "erroredCount": 3}
    difference = [found["paired"]["comparisons"][0]["difference"] for found in (first, second)]
    assert difference[0] == difference[1] == -0.25
    compared = second["paired"]["comparisons"][0]
    assert compared["excluded"] == {"infrastructure": ["s50", "s51", "s52"]}
    assert (compared["a_lacks"], compared["b_lacks"]) == (2, 1)
    assert compared["lowest"]["difference"] < -0.25 < compared["highest"]["difference"]


def test_an_end_by_the_agents_doing_is_the_worst_score_of_its_side(valk: Valk, tmp_path: Path) -> None:
    late = [
        trial(f"s{number:02d}", passed=False, fault=TrialFault("execution", "late", "agent", "agent_timeout"))
        for number in range(6)
    ]
    before, after = two(tmp_path, many(12, 12), [*late, *many(12, 12)[6:]])
    said = valk("compare", before, after, "--fail-if-worse", "--json")
    found = record(said)
    assert said.code == 1 and "after is worse than before by 50.0 points" in found["gate"]["failures"][0]
    assert (found["summary"]["trialCount"], found["summary"]["losses"]) == (12, 6)
    assert found["paired"]["comparisons"][0]["tasks"] == 12
    scores = [one["scores"]["infrastructure_excluded"]["mean"] for one in found["paired"]["agents"]]
    assert scores == [1.0, 0.5]
    assert [one["errors"] for one in found["paired"]["agents"]] == [{}, {"agent": 6}]


def test_no_answer_is_worse_than_any_answer_to_a_judge(valk: Valk, tmp_path: Path) -> None:
    fault = TrialFault("execution", "late", "agent", "agent_timeout")
    before = [trial(f"s{number}", passed=None, output="bad") for number in range(20)]
    after = [trial(f"s{number}", passed=None, fault=fault) for number in range(20)]
    folders = two(tmp_path, before, after)
    with served(by_order("A", "B")) as server:
        said = valk("compare", *folders, "--judge-model", "judge", "--judge-url", server.url, "--json")
        asked = len(server.requests)
    assert asked == 0
    assert record(said)["summary"]["losses"] == 20


def test_twenty_losses_and_no_win_is_a_clear_loss(valk: Valk, tmp_path: Path) -> None:
    before, after = good_and_bad(tmp_path, pairs=20)
    with served(by_order("A", "B")) as server:
        judge = ("--judge-model", "judge", "--judge-url", server.url)
        said = valk("compare", after, before, *judge, "--fail-if-worse")
        kept = valk("compare", after, before, *judge, "--no-worse-than", "5%", "--json")
    assert said.code == 1
    assert "The judge prefers after to before by 1.00 (of 1), 95 % interval" in " ".join(said.out.split())
    assert "0 wins, 0 ties, 20 losses of before in 20 pairs." in " ".join(said.out.split())
    assert "Gate: the judge prefers after to before by 100.0 points of 100" in said.out
    assert kept.code == 1 and "the judge prefers" in record(kept)["gate"]["failures"][-1]
    judge = record(kept)["judge"]
    assert (judge["prefers"], judge["meanScore"]) == ("baseline", -1.0) and judge["pValue"] < 0.001


def test_partial_credit_is_slight(valk: Valk, tmp_path: Path) -> None:
    before, after = two(
        tmp_path, [trial("a", score=0.6), trial("b")], [trial("a", score=0.8), trial("b", score=0.9)]
    )
    found = record(valk("compare", before, after, "--json"))
    assert [one["trials"][0]["score"] for one in found["stimuli"]] == [0.4, -0.4]
    assert [one["trials"][0]["magnitude"] for one in found["stimuli"]] == ["slightly-better"] * 2


def test_trials_are_matched_by_number_and_by_eval_and_model_where_these_tell_apart(
    valk: Valk, tmp_path: Path
) -> None:
    before, after = two(
        tmp_path,
        [
            trial("a", index, model=model, eval_name=name, passed=model == "x")
            for index in (0, 1)
            for model in "xy"
            for name in ("e1", "e2")
        ],
        [trial("a", index, model="x", eval_name=name) for index in (1, 0) for name in ("e2", "e1")],
    )
    found = record(valk("compare", before, after, "--json"))
    assert [one["stimulusName"] for one in found["stimuli"]] == ["e1/a [x]", "e2/a [x]"]
    assert found["summary"]["ties"] == 4
    assert len(found["unmatchedBaseline"]) == 4


def test_two_models_one_on_each_side_are_what_is_compared(valk: Valk, tmp_path: Path) -> None:
    before, after = two(tmp_path, [trial("a", model="old")], [trial("a", model="new")])
    assert record(valk("compare", before, after, "--json"))["summary"]["trialCount"] == 1
    folder(before, [trial("a", model="old"), trial("a", model="older")])
    said = valk("compare", before, after)
    assert said.code == 2 and "no model in common" in said.err


def test_words_of_other_times(valk: Valk, tmp_path: Path) -> None:
    before, after = two(tmp_path, many(1, 3), many(2, 3))
    plain = record(valk("compare", before, after, "--output", "-"))
    for words in (
        ("--baseline", before, "--treatment", after),
        ("--run-a", before / "results.jsonl", "--run-b", after / "results.jsonl"),
    ):
        assert record(valk("compare", *words, "--output", "-")) == plain


def test_the_newest_of_an_output_folder_is_taken(valk: Valk, tmp_path: Path) -> None:
    folder(tmp_path / "out" / "2025-01-15T10-30-00-005Z", many(0, 2))
    folder(tmp_path / "out" / "2025-01-16T10-30-00-005Z", many(2, 2))
    other = folder(tmp_path / "other", many(2, 2))
    found = record(valk("compare", tmp_path / "out", other, "--json"))
    assert (found["baseline"], found["summary"]["ties"]) == ("out", 2), "called as it was named"


def test_variants_are_called_by_their_names(valk: Valk, tmp_path: Path) -> None:
    about = {"name": "prompts", "variant": "x"}
    before = folder(tmp_path / "1", [trial("a", variant="short", experiment=about)])
    after = folder(tmp_path / "2", [trial("a", variant="long", experiment=about)])
    found = record(valk("compare", before, after, "--json"))
    assert (found["experimentName"], found["baseline"], found["treatment"]) == ("prompts", "short", "long")


def test_the_record_goes_to_a_file_as_well(valk: Valk, tmp_path: Path) -> None:
    before, after = two(tmp_path, many(1, 3), many(2, 3))
    said = valk("compare", before, after, "--output", tmp_path / "kept" / "comparison.jsonl")
    assert said.code == 0 and "tasks in common" in said.out
    lines = (tmp_path / "kept" / "comparison.jsonl").read_text().splitlines()
    assert [json.loads(line)["type"] for line in lines] == ["comparison"]


@pytest.mark.parametrize(
    ("words", "code", "reason"),
    [
        (("before",), 2, "Two result folders"),
        (("before", "after", "before"), 2, "Two result folders"),
        (("before", "before"), 2, "the same results"),
        (("before", "./nowhere"), 2, "There is no nowhere"),
        (("before", "no-such-run"), 2, "is a result folder and"),
        (("before", "./empty"), 2, "There is no results.jsonl in"),
        (("before", "broken/results.jsonl"), 1, "Line 1 is not JSON"),
        (("before", "nothing/results.jsonl"), 1, "holds no trial results"),
        (("before", "after", "--judge-url", "http://127.0.0.1:9"), 2, "A judge needs a model"),
        (("before", "after", "--baseline", "x"), 2, "go together"),
        (("x", "--baseline", "before", "--treatment", "after"), 2, "one too many"),
        (("before", "after", "-e", "missing.yaml"), 2, "missing.yaml"),
        (("before", "after", "--judge-model", "m"), 1, "VALKYRIE_JUDGE_URL"),
        (("before", "stranger"), 1, "no stimulus and trial number is in both"),
        (("before", "errors"), 1, "every pair is an error"),
        (("before", "after", "--fail-if-worse"), 1, "Gate"),
        (("after", "before", "--fail-if-worse"), 0, ""),
    ],
)
def test_exit_codes(valk: Valk, tmp_path: Path, words: tuple[str, ...], code: int, reason: str) -> None:
    two(tmp_path, many(10, 10), many(1, 10))
    folder(tmp_path / "stranger", [trial("other")])
    folder(tmp_path / "errors", [broken(f"s{number:02d}") for number in range(10)])
    (tmp_path / "empty").mkdir()
    for name, text in (("broken", "{\n"), ("nothing", "\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.jsonl").write_text(text)
    said = valk("compare", *words)
    assert said.code == code, said
    assert reason in said.out + said.err


def prefers(winner: str, magnitude: str = "much-better", why: str = "Clearer.") -> ToolRequest:
    return ToolRequest(
        "submit_comparison",
        {"winner": winner, "magnitude": "equal" if winner == "tie" else magnitude, "reasoning": why},
    )


def by_order(a: str, b: str, magnitude: str = "much-better", other: str | None = None) -> Script:
    """Says `a` where the good answer is shown first, else `b`."""
    shown_first = "response A, final answer>>>\\ngood"
    return Script(
        {"first": [prefers(a, magnitude)], "default": [prefers(b, other or magnitude)]},
        {shown_first: "first"},
    )


def good_and_bad(tmp_path: Path, pairs: int = 3) -> tuple[Path, Path]:
    return two(
        tmp_path,
        [trial(f"s{number}", passed=None, output="bad") for number in range(pairs)],
        [trial(f"s{number}", passed=None, output="good") for number in range(pairs)],
    )


@pytest.mark.parametrize(
    ("script", "score", "magnitude", "winner", "marked"),
    [
        (by_order("A", "B"), 1.0, "much-better", "treatment", False),
        (by_order("B", "A"), -1.0, "much-better", "baseline", False),
        (by_order("A", "B", "slightly-better"), 0.4, "slightly-better", "treatment", False),
        (by_order("A", "B", "much-better", "slightly-better"), 0.7, "much-better", "treatment", False),
        (by_order("tie", "tie"), 0.0, "equal", "tie", False),
        (by_order("A", "A"), 0.0, "equal", "tie", True),  # always the first: no preference at all
        (by_order("B", "B"), 0.0, "equal", "tie", True),
        (by_order("A", "tie"), 0.5, "slightly-better", "treatment", True),
    ],
)
def test_a_judge_is_asked_in_both_orders(
    valk: Valk, tmp_path: Path, script: Script, score: float, magnitude: str, winner: str, marked: bool
) -> None:
    before, after = good_and_bad(tmp_path)
    with served(script) as server:
        said = valk(
            "compare", before, after, "--judge-model", "judge", "--judge-url", server.url, "--output", "-"
        )
        assert len(server.requests) == 6
    assert said.code == 0
    for stimulus in record(said)["stimuli"]:
        (one,) = stimulus["trials"]
        assert one["score"] == pytest.approx(score)
        assert (one["magnitude"], one["winner"]) == (magnitude, winner)
        assert one.get("orderDisagreement", False) is marked
        assert ("disagree" in one["evidence"]) is marked
        assert one["baselinePassed"] is None


def test_what_the_judge_prefers_is_said(valk: Valk, tmp_path: Path) -> None:
    before, after = two(
        tmp_path,
        [trial(f"s{number}", output="bad") for number in range(8)],
        [trial(f"s{number}", output="good" if number else "bad") for number in range(8)],
    )
    with served(by_order("A", "B", "slightly-better")) as server:
        words = ("compare", before, after, "--judge-model", "judge", "--judge-url", server.url)
        said = valk(*words, "--verbose")
        gate = valk("compare", after, before, *words[3:], "--fail-if-worse=10")
    assert said.code == 0
    assert "The judge prefers after to before by" in said.out
    assert "7 wins, 1 tie, 0 losses of after in 8 pairs; the two orders disagreed on 1." in said.out
    assert "s1 #0: treatment slightly-better (+0.40)" in said.out
    assert "Judge: " in said.out and "16 requests" in said.out
    assert gate.code == 1 and "Gate: the judge prefers after to before" in gate.out


SPEC = """
name: greetings
defaults: {{judge_model: spec-judge}}
stimuli:
  - name: s0
    prompt: Say hello to the queen.
    rubric: [It bows.]
    graders:
      - type: {type}
        config: {{prompt: Prefer the shorter one.}}
  - name: s1
    prompt: Say anything.
    graders: [{{type: output-contains, config: {{value: x}}}}]
"""


@pytest.mark.parametrize("type", ["prompt", "pairwise"])
def test_a_specs_graders_judge(valk: Valk, tmp_path: Path, type: str) -> None:
    before, after = two(tmp_path, many(1, 0), [])
    folder(before, [trial("s0", output="bad"), trial("s1", output="bad")])
    folder(after, [trial("s0", output="good"), trial("s1", output="good", passed=False)])
    (tmp_path / "eval.yaml").write_text(SPEC.format(type=type))
    with served(by_order("A", "B")) as server:
        said = valk("compare", before, after, "-e", "eval.yaml", "--judge-url", server.url, "--output", "-")
        bodies = [request.body for request in server.requests]
    assert said.code == 0, said.err
    first, second = (stimulus["trials"][0] for stimulus in record(said)["stimuli"])
    assert (first["score"], second["score"]) == (1.0, -1.0)
    assert second["evidence"].startswith("by verdict")
    assert len(bodies) == 2
    asked = bodies[0]["messages"][-1]["content"]
    for part in ("Say hello to the queen.", "Prefer the shorter one.", "It bows."):
        assert part in asked
    assert bodies[0]["model"] == "spec-judge"


def test_the_command_line_names_another_judge(valk: Valk, tmp_path: Path) -> None:
    before, after = good_and_bad(tmp_path, 2)
    (tmp_path / "eval.yaml").write_text(SPEC.format(type="prompt"))
    with served(by_order("A", "B")) as server:
        words = ("--judge-model", "mine", "--judge-url", server.url, "--judge-reasoning-effort", "high")
        valk("compare", before, after, "-e", "eval.yaml", *words)
        bodies = [request.body for request in server.requests]
    assert len(bodies) == 4
    assert {(body["model"], body["reasoning_effort"]) for body in bodies} == {("mine", "high")}


def test_a_judge_that_does_not_answer_costs_its_pair_only(valk: Valk, tmp_path: Path) -> None:
    before, after = two(
        tmp_path,
        [trial("s0", output="bad"), trial("s1", output="bad silence")],
        [trial("s0", output="good"), trial("s1", output="good")],
    )
    script = Script(
        {"quiet": [Say("no")] * 9, "first": [prefers("A")], "default": [prefers("B")]},
        {"bad silence": "quiet", "response A, final answer>>>\\ngood": "first"},
    )
    with served(script) as server:
        said = valk(
            "compare", before, after, "--judge-model", "j", "--judge-url", server.url, "--output", "-"
        )
    assert said.code == 0
    found = record(said)
    assert (found["summary"]["trialCount"], found["summary"]["erroredCount"]) == (1, 1)
    assert found["summary"]["meanScore"] == 1.0
    assert "no verdict" in found["stimuli"][1]["trials"][0]["evidence"]


def test_no_judge_at_all_is_an_error(valk: Valk, tmp_path: Path) -> None:
    before, after = good_and_bad(tmp_path, 2)
    with served(Script.of(*[Say("no")] * 9)) as server:
        said = valk("compare", before, after, "--judge-model", "j", "--judge-url", server.url)
    assert said.code == 1
    assert "every pair is an error" in said.err


def test_a_judge_that_refuses_ends_it_at_once(valk: Valk, tmp_path: Path) -> None:
    before, after = good_and_bad(tmp_path, 3)
    with served(Script.of(Fault("unauthorized"))) as server:
        said = valk("compare", before, after, "--judge-model", "j", "--judge-url", server.url)
    assert said.code == 1
    assert "refused (401)" in said.err and "Traceback" not in said.err


PLUGIN = """
class Longer:
    type = "longer"
    def __init__(self, spec): pass
    def grade(self, given): return True
    def compare(self, baseline, treatment):
        return 1 if len(treatment.transcript.output) > len(baseline.transcript.output) else -1
"""


def test_a_plugin_may_compare(valk: Valk, tmp_path: Path) -> None:
    before, after = good_and_bad(tmp_path, 1)
    (tmp_path / "longer.py").write_text(PLUGIN)
    spec = "name: g\nstimuli: [{name: s0, prompt: x, graders: [{type: longer}]}]\n"
    (tmp_path / "eval.yaml").write_text(spec)
    said = valk("compare", before, after, "-e", "eval.yaml", "--grader-plugin", "longer.py", "--output", "-")
    assert said.code == 0, said.err
    assert record(said)["summary"]["wins"] == 1


def test_a_hostile_answer_reaches_the_terminal_without_its_escapes(valk: Valk, tmp_path: Path) -> None:
    before, after = two(tmp_path, [trial("s\x1b[2J")], [trial("s\x1b[2J", passed=False)])
    said = valk("compare", before, after, "--verbose", "--tasks")
    assert said.code == 0
    assert "\x1b" not in said.out


def test_patches_are_read_from_inside_the_folder_only(valk: Valk, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("host secret")
    patches = {"before": "../secret", "after": "p/workspace.patch"}
    for name, path in patches.items():
        place = folder(tmp_path / name, [trial("s0", output=name, patch=Path(path))])
        (place / "p").mkdir()
        (place / "p" / "workspace.patch").write_text("+changed line")
    with served(Script.of(prefers("A"))) as server:
        valk("compare", "./before", "./after", "--judge-model", "j", "--judge-url", server.url)
        asked = server.requests[0].body["messages"][-1]["content"]
    assert "+changed line" in asked and "host secret" not in asked
