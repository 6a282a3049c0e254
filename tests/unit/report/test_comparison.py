"""Runs compared: the numbers of each agent, which tasks count, the verdict and its sentence."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from valkyrie.compare.pairs import ScoredTrials, compared
from valkyrie.compare.summary import check_alike, sentence, side, summarise, to_json
from valkyrie.compare.tables import notes, score_table
from valkyrie.compare.words import points, probability
from valkyrie.errors import UsageError
from valkyrie.views import RunView, ScoreView, TrialView

STATES = ("PENDING", "BUILDING", "IN_PROGRESS", "EVALUATING", "FINISHED", "ERROR", "STOPPED")
OPEN = {"mode": "shared", "open_to_tampering": True}
NO_SCORE = ScoreView(None, None, 0, 0, 0.0, {}, False, True, 0)


def a_run(run_id: str, **changed: Any) -> RunView:
    run = RunView(
        id=run_id, benchmark="b", dataset="default", agent=run_id, model=None, label=None, provider="local",
        state="FINISHED", counts=dict.fromkeys(STATES, 0), total=0, concurrency=5, created_at=0.0,
        started_at=0.0, finished_at=1.0, started_by=None, score=NO_SCORE, error=None, note=None,
        executor="none", folder="", arguments={}, enforcement={}, version=1,
    )  # fmt: skip
    return replace(run, **changed)


def a_trial(task: str, score: float | None, k: int = 0, **changed: Any) -> TrialView:
    trial = TrialView(
        task_id=task, k=k, state="FINISHED", attempts=1, score=score,
        passed=None if score is None else score >= 1, category=None, cause=None, message=None, exit_code=0,
        exit_reason=None, retry_at=None, started_at=0.0, finished_at=1.0, timing={}, digest=f"{task}{k}",
    )  # fmt: skip
    return replace(trial, **changed)


def an_error(task: str, category: str = "infrastructure", k: int = 0) -> TrialView:
    return a_trial(task, None, k, state="ERROR", category=category, cause="x", message="y")


def scored(*scores: Sequence[float] | float) -> list[TrialView]:
    """Task t0, t1, … with one score or several."""
    lists = [one if isinstance(one, Sequence) else [one] for one in scores]
    return [a_trial(f"t{n}", score, k) for n, own in enumerate(lists) for k, score in enumerate(own)]


def two(a: list[TrialView], b: list[TrialView], **options: Any) -> Any:
    return summarise([(a_run("A"), a), (a_run("B"), b)], **options)


def test_oracle_and_nop_four_times_each() -> None:
    """The case everybody knows the answer of: 12 tasks, 4 trials, all or nothing."""
    summary = two(scored(*[[1.0] * 4] * 12), scored(*[[0.0] * 4] * 12))
    oracle, nop = summary.agents
    assert (oracle.planned, oracle.graded, oracle.passed) == (48, 48, 48)
    leading = oracle.scores.infrastructure_excluded
    assert (leading.mean, leading.tasks, leading.trials, leading.method) == (1.0, 12, 48, "Gaffke over tasks")
    assert leading.interval == pytest.approx((0.7354, 1.0), abs=1e-4)
    assert nop.scores.infrastructure_excluded.interval == pytest.approx((0.0, 0.2646), abs=1e-4)
    assert (oracle.repeats.pass_at, oracle.repeats.pass_all) == ([1.0] * 4, [1.0] * 4)
    assert (oracle.repeats.flaky, oracle.repeats.flaky_of, oracle.repeats.flakiness) == ([], 12, 0.0)
    assert sentence(summary.comparisons[0]) == (
        "A beats B by 100.0 points, 95 % interval 55.8 to 100.0, p < 0.001, 12 tasks in common."
    )


def test_who_beats_whom_by_how_much_and_how_sure() -> None:
    """20 tasks only A passed, 6 only B, 92 alike, 4 lost to the machine."""
    a = scored(*[1.0] * 20, *[0.0] * 6, *[1.0] * 60, *[0.0] * 32) + [a_trial(f"x{n}", 1.0) for n in range(4)]
    b = scored(*[0.0] * 20, *[1.0] * 6, *[1.0] * 60, *[0.0] * 32) + [an_error(f"x{n}") for n in range(4)]
    (found,) = two(a, b).comparisons
    assert (found.verdict, found.tasks, found.test) == ("better", 118, "mid-p McNemar")
    assert (len(found.won), len(found.lost)) == (20, 6)
    assert sentence(found) == (
        "A beats B by 11.9 points, 95 % interval 3.5 to 20.4, p = 0.006, 118 tasks in common; "
        "4 excluded as infrastructure errors."
    )
    (other,) = two(b, a).comparisons
    assert (other.verdict, other.difference) == ("worse", pytest.approx(-14 / 118))
    assert sentence(other) == sentence(found).replace("A beats B", "B beats A")


def test_cannot_tell_says_what_would_be_needed() -> None:
    (found,) = two(
        scored(*[1.0] * 5, *[0.0] * 15), scored(*[0.0] * 2, *[1.0] * 3, 1.0, *[0.0] * 14)
    ).comparisons
    assert found.verdict == "unclear" and found.needed
    assert sentence(found) == (
        "Can't tell A and B apart: A is ahead by 5.0 points, 95 % interval −15.8 to 25.9, p = 0.63, "
        "20 tasks in common; if the true gap is 5.0 points, about 470 tasks in all show it 4 times in 5; "
        "it may be 0.0 to 25.9."
    )
    assert (found.needed.tasks, found.needed.more_tasks) == (470, 450)


def test_trials_per_task_are_offered_where_they_would_help() -> None:
    rng = random.Random(4)
    chances = [rng.random() * 0.8 for _ in range(40)]
    a = scored(*[[float(rng.random() < p + 0.06) for _ in range(3)] for p in chances])
    b = scored(*[[float(rng.random() < p) for _ in range(3)] for p in chances])
    (found,) = two(a, b).comparisons
    assert found.verdict == "unclear" and found.needed and found.needed.trials
    assert f"(or {found.needed.trials} trials of each of these)" in sentence(found)
    assert found.test == "sign flip"


def test_no_difference_is_said_only_of_what_is_alike_or_surely_small() -> None:
    few = [1.0, 0.0]
    (unsure,) = two(scored(*few), scored(*few)).comparisons
    assert unsure.verdict == "unclear"
    assert sentence(unsure).startswith(
        "Can't tell A and B apart: the same result on every task, but 2 tasks cannot exclude a difference on "
        "up to 84.2 % of tasks, 95 % interval "
    )
    assert two(scored(*few * 91), scored(*few * 91)).comparisons[0].verdict == "unclear", "182 tasks"
    (same,) = two(scored(*few * 92), scored(*few * 92)).comparisons
    assert same.verdict == "same"
    assert sentence(same).startswith(
        "No difference seen between A and B: the same result on every task, and what there may be is within "
        "2 points, 95 %"
    )
    rng = random.Random(1)
    scores = [rng.random() for _ in range(400)]
    (near,) = two(scored(*scores), scored(*[x + rng.gauss(0, 0.01) for x in scores])).comparisons
    assert near.verdict == "same" and "within 2 points" in sentence(near)
    (level,) = two(scored(1.0, 0.0), scored(0.0, 1.0)).comparisons
    assert level.verdict == "unclear" and "they are level" in sentence(level)


def test_families_are_what_is_counted() -> None:
    """20 tasks of 4 families: what looks like 20 wins is 4 families, which say little."""
    families = {f"t{n}": f"f{n % 4}" for n in range(20)}
    a, b = (
        side(a_run(name), scored(*[score] * 20), "score", name, families=families)
        for name, score in (("A", 1.0), ("B", 0.0))
    )
    found = compared(a, b)
    assert (found.verdict, found.tasks, found.families, found.needed) == ("unclear", 20, 4, None)
    assert sentence(found).endswith(
        "20 tasks of 4 families in common; fewer than 5 families say little about others."
    )
    method = "Gaffke over 4 families; fewer than 5 families say little about others"
    assert (a.summary.families, a.summary.scores.graded_only.method) == (4, method)
    assert two(scored(*[1.0] * 20), scored(*[0.0] * 20)).comparisons[0].verdict == "better"


def test_one_task_and_none() -> None:
    (one,) = two(scored(1.0), scored(0.0)).comparisons
    assert one.verdict == "unclear" and sentence(one).endswith("; one task says nothing about others.")
    (none,) = two([an_error("t0")], scored(1.0)).comparisons
    assert (none.verdict, none.tasks, none.difference, none.p_value) == ("nothing", 0, None, None)
    assert sentence(none) == (
        "A and B cannot be compared: no task has a result of both; 1 excluded as infrastructure error."
    )
    (empty,) = two([], []).comparisons
    assert empty.verdict == "nothing"
    assert two([], []).agents[0].scores.graded_only.method == "nothing was graded"


def test_what_is_not_the_agents_fault_is_left_out_and_what_is_counts_zero() -> None:
    trials = [
        a_trial("a", 1.0),
        a_trial("b", 0.0),
        an_error("c", "agent"),
        an_error("d"),
        an_error("e", "benchmark"),
    ]
    trials.append(a_trial("f", None, state="STOPPED"))
    summary = two(trials, scored(1.0))
    agent = summary.agents[0]
    scores = agent.scores
    found = [
        (e.mean, e.trials) for e in (scores.all_trials, scores.graded_only, scores.infrastructure_excluded)
    ]
    assert found == [(pytest.approx(1 / 6), 6), (0.5, 2), (pytest.approx(1 / 3), 3)]
    assert (agent.planned, agent.graded, agent.not_run) == (6, 2, 1)
    assert agent.errors == {"agent": 1, "benchmark": 1, "infrastructure": 1}
    (compared,) = two(trials, [a_trial(task, 1.0) for task in "abcdeg"]).comparisons
    assert compared.tasks == 3 and compared.lost == ["b", "c"]
    assert compared.excluded == {
        "infrastructure": ["d"], "benchmark": ["e"], "only A": ["f"], "only B": ["g"]
    }  # fmt: skip
    assert sentence(compared).count("excluded as") == 2 and "1 task only B has" in sentence(compared)


def test_flaky_tasks_and_unequal_trials() -> None:
    trials = [*scored([1.0, 0.0, 1.0], [1.0, 1.0, 1.0], [0.0, 0.0]), an_error("t2", k=2), an_error("gone")]
    repeats = two(trials, []).agents[0].repeats
    assert repeats.flaky == ["t0"] and repeats.flaky_of == 3
    assert repeats.pass_at == pytest.approx([5 / 9, 2 / 3]), "k ends at the fewest trials"
    assert repeats.pass_all == pytest.approx([5 / 9, (1 / 3 + 1) / 3])
    assert repeats.fewest == ["t2"] and repeats.excluded == ["gone"]


def test_metric_pass_looks_at_passing_only() -> None:
    a, b = scored(0.9, 0.9, 1.0), scored(0.1, 0.1, 1.0)
    assert two(a, b).comparisons[0].difference == pytest.approx(1.6 / 3)
    assert two(a, b, metric="pass").comparisons[0].difference == 0.0
    assert two(a, b, metric="pass").agents[0].scores.graded_only.method == "Gaffke over tasks"


def test_a_scale_of_its_own_has_no_points_and_its_own_worst() -> None:
    own = replace(NO_SCORE, fraction=False)
    runs = [
        (a_run("A", score=own), scored(*[30.0, 50.0, 20.0] * 4)),
        (a_run("B", score=own), scored(*[10.0] * 12)),
    ]
    runs[1][1].append(an_error("t99", "agent"))
    summary = summarise(runs)
    assert sentence(summary.comparisons[0]).startswith("A beats B by 23.3333, 95 % interval ")
    # An end of its own doing is the worst there is.
    assert summary.agents[1].scores.infrastructure_excluded.trials == 13
    silent = [(run, [replace(trial, passed=None) for trial in trials]) for run, trials in runs]
    mute = summarise(silent).agents[0]
    assert mute.passed is None and mute.repeats.pass_at == [], "nobody said what passing is"
    (odd,) = summarise(
        [(a_run("A"), [a_trial("t0", float("nan"))]), (a_run("B"), [a_trial("t0", None)])]
    ).comparisons
    assert odd.excluded == {"no number": ["t0"]}


def test_three_agents_are_corrected_for_being_three() -> None:
    sides = [scored(*[1.0] * 5, *[0.0] * 5), scored(*[0.0] * 10), scored(*[0.0] * 10)]
    summary = summarise([(a_run(name), trials) for name, trials in zip("ABC", sides, strict=True)])
    first, second, third = summary.comparisons
    assert (first.p_value, first.p_adjusted, first.comparisons) == (
        pytest.approx(2 / 64 + 2**-10), pytest.approx(6 / 64 + 3 * 2**-10), 3
    )  # fmt: skip
    assert [one.verdict for one in summary.comparisons] == ["unclear"] * 3
    assert "95 % interval of this pair alone " in sentence(first)
    assert "p = 0.097 after Holm's correction for 3 comparisons" in sentence(first)
    assert (second.a, second.b, third.a) == ("A", "C", "B")
    assert two(*sides[:2]).comparisons[0].verdict == "better", "alone it would have been"


def test_names_tell_runs_apart() -> None:
    runs = [a_run("1", agent="x", model="m"), a_run("2", agent="x", model="m"), a_run("3", agent="y")]
    assert [one.name for one in summarise([(run, []) for run in runs]).agents] == ["x:m (1)", "x:m (2)", "y"]
    placed = [replace(runs[0], benchmark="other"), runs[1]]
    summary = summarise([(run, scored(1.0)) for run in placed])
    assert [one.name for one in summary.agents] == ["x:m on other", "x:m on b"]
    assert not summary.comparisons, "other tasks"
    with pytest.raises(UsageError, match="only runs on the same benchmark and dataset can be compared"):
        check_alike(*placed)
    evil = summarise([(a_run("1", agent="x\x1b[31m\ny"), [])]).agents[0]
    assert evil.name == "x y"


def test_a_task_that_was_changed_is_not_the_same_task() -> None:
    same = {"agent_digest": "d", "settings": {"provider": "local"}}
    a, b = (
        scored(1.0, 1.0),
        [replace(trial, digest=trial.digest + "!"[:n]) for n, trial in enumerate(scored(0.0, 0.0))],
    )
    (found,) = summarise([(a_run("A", arguments=same), a), (a_run("B", arguments=same), b)]).comparisons
    assert found.excluded == {"content": ["t1"]} and found.tasks == 1
    other = {**same, "agent_digest": "e"}
    (unknown,) = summarise([(a_run("A", arguments=same), a), (a_run("B", arguments=other), b)]).comparisons
    assert unknown.tasks == 2, "another agent's digests say nothing about the task"


def test_so_far_while_a_run_goes_on() -> None:
    runs = [(a_run("A", state="IN_PROGRESS"), scored(1.0, 0.0)), (a_run("B"), scored(1.0, 1.0))]
    assert sentence(summarise(runs).comparisons[0]) == (
        "So far B is ahead of A by 50.0 points on 2 tasks in common; "
        "not decided: trials are still open, and quick tasks end first."
    )


def test_json_is_plain_and_has_the_sentences() -> None:
    summary = two(scored([1.0, 0.0], 1.0), scored([0.0, 0.0], 1.0))
    data = json.loads(json.dumps(to_json(summary)))
    assert data["comparisons"][0]["sentence"] == sentence(summary.comparisons[0])
    assert data["agents"][0]["repeats"]["flaky_share"] == 1.0 and "tasks" not in data["agents"][0]
    assert data["agents"][0]["scores"]["graded_only"]["trials"] == 3
    assert to_json(summary, tasks=True)["agents"][0]["tasks"]["t0"]["mean"] == 0.5


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.sampled_from([0.0, 1.0])), max_size=25),
    st.randoms(use_true_random=False),
)
def test_verdict_interval_and_p_agree_in_any_order(
    pairs: list[tuple[float, float]], rng: random.Random
) -> None:
    a, b = scored(*(x for x, _ in pairs)), scored(*(y for _, y in pairs))
    (found,) = two(a, b).comparisons
    if found.verdict in ("better", "worse"):
        assert found.p_adjusted is not None and found.p_adjusted < 0.05
        assert found.interval is None or found.interval[0] > 0 or found.interval[1] < 0
        assert (found.difference or 0) > 0 or found.verdict == "worse"
    else:
        assert " beats " not in sentence(found)
    (shuffled,) = two(rng.sample(a, len(a)), rng.sample(b, len(b))).comparisons
    assert (shuffled.verdict, shuffled.p_value, shuffled.interval) == (
        found.verdict, found.p_value, found.interval
    )  # fmt: skip
    assert sentence(shuffled) == sentence(found)
    (turned,) = two(b, a).comparisons
    if found.difference:
        assert re.sub("[AB]", "", sentence(turned)) == re.sub("[AB]", "", sentence(found))


@pytest.mark.parametrize(
    ("p", "said"),
    [
        (0.0161, "p = 0.016"),
        (0.0496, "p = 0.0496"),
        (0.049999, "p < 0.05"),
        (0.05, "p = 0.050"),
        (0.0002, "p < 0.001"),
        (0.414, "p = 0.41"),
    ],
)
def test_p_values_as_people_read_them(p: float, said: str) -> None:
    assert probability(p) == said


def test_points_never_read_zero_when_they_are_not() -> None:
    assert (points(0.0613, fraction=True), points(-0.0004, fraction=True)) == ("6.1", "−0.04")
    assert (points(-0.0, fraction=True), points(-2.5, fraction=False)) == ("0.0", "−2.5")


def some(passed: int, failed: int, lost: int, category: str = "infrastructure") -> list[TrialView]:
    """Tasks t0, t1, …: the first passed, the next failed, the last ended with an error."""
    errors = [an_error(f"t{passed + failed + n}", category) for n in range(lost)]
    return [*scored(*[1.0] * passed, *[0.0] * failed), *errors]


def test_what_the_agent_broke_counts_and_what_others_broke_is_a_range() -> None:
    picky, broken = two(some(3, 0, 9, "agent"), some(3, 0, 9)).agents
    assert (picky.scores.infrastructure_excluded.mean, picky.ungraded) == (0.25, 0)
    assert (picky.score_low, picky.score_high, picky.has_range) == (0.25, 0.25, False)
    assert broken.scores.infrastructure_excluded.mean == 1.0
    assert (broken.score_low, broken.score_high, broken.ungraded) == (0.25, 1.0, 9)
    assert broken.has_range


def test_ranks_go_by_the_lower_end() -> None:
    summary = two(some(3, 0, 9), some(6, 6, 0))
    assert [agent.rank for agent in summary.agents] == [2, 1]
    assert [row[0] for row in score_table(summary).rows] == ["B", "A"]
    assert score_table(summary).rows[1][1] == "25.0 to 100.0 %"
    assert "A: 25.0 % to 100.0 %, depending on 9 ungraded trials; it is ranked by the lower end." in list(
        notes(summary)
    )


def test_no_difference_is_not_said_over_trials_that_one_side_lacks() -> None:
    (found,) = two(some(12, 0, 0), some(3, 0, 9)).comparisons
    assert (found.seen, found.verdict, found.undecided) == ("unclear", "unclear", True)
    assert (found.a_lacks, found.b_lacks) == (0, 9)
    assert sentence(found).startswith(
        "Can't tell A and B apart because of 9 trials that B lacks, which make the difference anything from "
        "0.0 to 75.0 points; on what both have, the same result on every task, but 3 tasks cannot exclude "
    )
    assert sentence(found).endswith("3 tasks in common; 9 excluded as infrastructure errors.")


def test_a_lead_is_said_only_if_it_holds_however_missing_trials_had_ended() -> None:
    (sure,) = two(some(12, 0, 0), some(0, 11, 1)).comparisons
    assert (sure.verdict, sure.undecided) == ("better", False)
    assert sure.lowest and sure.lowest.verdict == "better" and sure.lowest.tasks == 12
    (unsure,) = two(some(6, 6, 0), some(0, 6, 6)).comparisons
    assert (unsure.seen, unsure.verdict) == ("better", "unclear")
    (turned,) = two(some(0, 6, 6), some(6, 6, 0)).comparisons
    assert (turned.seen, turned.verdict, turned.a_lacks) == ("worse", "unclear", 6)


def test_what_both_lack_or_was_never_planned_keeps_nothing_open() -> None:
    both = two(some(3, 0, 9), some(3, 0, 9)).comparisons[0]
    assert (both.verdict, both.a_lacks, both.b_lacks) == ("unclear", 0, 0)
    planned = two(some(12, 0, 0), some(3, 0, 0)).comparisons[0]
    assert (planned.verdict, planned.undecided, planned.b_lacks) == ("unclear", False, 0)


def test_one_lost_trial_of_many_keeps_a_task_and_its_doubt() -> None:
    a = scored(*[[1.0] * 4] * 12)
    b = [replace(one, state="STOPPED", score=None, passed=None) if one.k == 3 else one for one in a]
    (found,) = two(a, b).comparisons
    assert (found.seen, found.b_lacks, found.verdict) == ("unclear", 12, "unclear")
    assert found.highest and found.highest.difference == pytest.approx(0.25)


def test_a_scale_of_its_own_cannot_be_bounded() -> None:
    own = replace(NO_SCORE, fraction=False)
    trials = scored(*[10.0] * 12)
    (found,) = summarise(
        [(a_run("A", score=own), scored(*[30.0, 50.0, 20.0] * 4)),
         (a_run("B", score=own), [*trials[:-1], an_error("t11")])]
    ).comparisons  # fmt: skip
    assert (found.seen, found.verdict, found.lowest) == ("better", "unclear", None)
    assert sentence(found).startswith("Can't tell A and B apart because of 1 trial that B lacks; on what")


def test_below_zero_the_worst_seen_counts_for_what_the_agent_broke() -> None:
    own = replace(NO_SCORE, fraction=False)
    a = (a_run("A", score=own), scored(-5.0, -1.0))
    b = (a_run("B", score=own), [a_trial("t0", -2.0), an_error("t1", "agent")])
    assert summarise([a, b]).agents[1].tasks["t1"].mean == -5.0


def test_confirmed_and_unconfirmed_passes_are_told_apart() -> None:
    sure = [replace(one, confirmed=True, score_confirmed=one.score) for one in scored(1.0, 1.0, 0.0, 0.5)]
    doubtful = [replace(sure[0], confirmed=False, score_confirmed=0.0, evidence=OPEN), *sure[1:]]
    unknown = [*sure[:3], a_trial("t3", 0.5)]
    runs = [(a_run(name), own) for name, own in (("A", sure), ("B", doubtful), ("C", unknown))]
    a, b, c = summarise(runs, pairs=[]).agents
    assert (a.score_confirmed, a.confirmed, a.unconfirmed) == (0.625, 2, 0)
    assert (b.score_confirmed, b.confirmed, b.unconfirmed, b.open_to_tampering) == (0.375, 1, 1, 1)
    assert (c.score_confirmed, c.confirmed, c.unconfirmed) == (None, 2, 0)
    assert summarise(runs, metric="pass", pairs=[]).agents[1].score_confirmed == 0.25
    shown = two(sure, doubtful)
    assert [row[2] for row in score_table(shown).rows] == ["62.5 %", "37.5 %"]
    assert score_table(shown).rows[1][1] == "62.5 %†"
    said = list(notes(shown))
    assert "B: 1 pass only seen in the sandbox the agent left (unconfirmed)." in said
    assert "† B: 1 of 4 tasks is graded in the sandbox the agent left: open to tampering." in said
    assert len(score_table(two(sure, sure)).columns) == 6


def test_trials_of_a_large_run_are_read_once_and_kept_small() -> None:
    import tracemalloc

    def each(shift: int) -> Iterator[TrialView]:
        for number in range(20_000):
            score = float((number + shift) % 3 > 0)
            yield a_trial(f"task-{number}", score, digest=f"sha256:{number:064}")

    tracemalloc.start()
    try:
        summary = summarise([(a_run("A"), each(0)), (a_run("B"), each(1))])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert summary.comparisons[0].tasks == 20_000
    assert peak < 40_000 * 600  # a view alone takes more than that


def test_what_a_task_is_made_of_is_known_whatever_the_order_of_its_trials() -> None:
    forth, back = scored([1.0, 0.0], [0.0, 0.0]), scored([1.0, 0.0], [0.0, 0.0])[::-1]
    found, other = ScoredTrials(iter(forth)), ScoredTrials(iter(back))
    assert found.contents == other.contents == {"t0": hash("t00"), "t1": hash("t10")}
    assert sorted(found.by_task["t0"]) == sorted(other.by_task["t0"])
    skipped = [*forth, a_trial("t2", None, state="SKIPPED"), a_trial("t1", None, 2, state="SKIPPED")]
    planned = ScoredTrials(skipped)
    assert list(planned.without_skipped()) == list(found)
    assert planned.without_skipped().contents == found.contents
    assert found.without_skipped() is found
    assert [row.task_id for row in planned.rows()] == ["t0", "t0", "t1", "t1", "t1", "t2"]


def told(summary: Any) -> str:
    return next(note for note in notes(summary) if note.startswith("Intervals"))


def test_all_intervals_of_a_table_come_from_one_method() -> None:
    """A family only one side knows of counts for both; a run that ended early decides for all."""
    plain = scored(1, 0, 1, 1)
    family = [replace(trial, family="f") for trial in plain]
    summary = two(family, plain)
    methods = {agent.scores.infrastructure_excluded.method for agent in summary.agents}
    assert len(methods) == 1 and "family" in methods.pop()
    assert told(summary).startswith("Intervals: Gaffke over 1 family")
    early = a_run("A", arguments={"stop_rule": {"error": 0.05}})
    summary = summarise([(early, plain), (a_run("B"), scored(0, 0, 1, 0))])
    assert told(summary) == "Intervals: betting confidence sequence over tasks."
    intervals = [agent.scores.infrastructure_excluded.interval for agent in summary.agents]
    assert all(intervals)
    assert told(two(plain, plain)) == "Intervals: Gaffke over tasks."


def test_rows_without_an_interval_are_named_apart() -> None:
    summary = two(scored(1, 0), [an_error("t0"), an_error("t1")])
    assert told(summary) == "Intervals: Gaffke over tasks (A); none, nothing was graded (B)."
