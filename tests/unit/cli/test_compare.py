"""`compare`: what it takes, what it says, and when it fails a build."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import yaml

from tests.unit.cli.command_result import CommandResult
from tests.unit.cli.filled_store import FilledStore, Trial, graded, lost, passed
from tests.unit.cli.recorded_tracker import RecordedTracker

Valk = Callable[..., CommandResult]
FEW, ALL = [0.0] * 9 + [1.0] * 3, [1.0] * 12


def trials(scores: Sequence[float], repeated: int = 1) -> list[Trial]:
    return [graded(score, f"t{number}", k=k) for k in range(repeated) for number, score in enumerate(scores)]


@pytest.fixture(autouse=True)
def two_runs(filled: FilledStore) -> None:
    """Runs aa11 (codex, all right) and bb22 (nop, a quarter)."""
    filled.add_run("aa11", trials(ALL), agent="codex", model="gpt")
    filled.add_run("bb22", trials(FEW), agent="nop")


def test_two_runs(valk: Valk) -> None:
    said = valk("compare", "aa", "bb22")
    assert said.code == 0
    assert "codex:gpt  100.0 %     73.5–100.0   12/12   12/12       0" in said.out
    assert (
        "codex:gpt beats nop by 75.0 points, 95 % interval 31.0 to 93.0, p = 0.002, 12 tasks in common."
        in said.out
    )
    assert "p-values by mid-p McNemar, intervals by Gaffke over tasks" in said.out


def test_json_and_yaml_say_the_same(valk: Valk) -> None:
    plain = valk("compare", "aa", "bb", "--json").json
    assert plain == yaml.safe_load(valk("compare", "aa", "bb", "-o", "yaml").out)
    assert plain == valk("compare", "aa", "bb", "-o", "json").json
    assert (plain["kind"], plain["comparisons"][0]["verdict"]) == ("comparison", "better")
    assert "tasks" not in plain["agents"][0]
    whole = valk("compare", "aa", "bb", "--json", "--tasks").json
    assert whole["agents"][1]["tasks"]["t11"] == {"mean": 1.0, "trials": 1, "passed": 1, "why": None}


def test_every_page_is_read(valk: Valk, tracker: RecordedTracker, filled: FilledStore) -> None:
    filled.add_run("aa11", trials([1.0] * 2500))
    filled.add_run("bb22", trials([1.0, 0.0] * 1250))
    found = valk("compare", "aa", "bb", "--json").json
    assert found["comparisons"][0]["tasks"] == 2500
    assert len({(ref, query.offset, query.after) for ref, query in tracker.asked("trials")}) > 2


def test_a_job_compares_all_its_agents(valk: Valk, filled: FilledStore) -> None:
    third = filled.add_run("cc33", trials(ALL, repeated=2))
    filled.add_job("3333", ["aa11", "bb22", third], name="three")
    said = valk("compare", "three")
    assert said.out.count("after Holm's correction for 3 comparisons") == 3
    assert "pass@1" in said.out and "pass^2" in said.out, "one of them has two trials per task"
    assert "Can't tell codex:gpt and oracle apart: the same result on every task" in said.out


def test_two_jobs_compare_agents_of_the_same_name(valk: Valk, filled: FilledStore) -> None:
    later = [
        filled.add_run("dd44", trials(ALL), agent="nop"),
        filled.add_run("ee55", trials(FEW), agent="codex", model="gpt"),
        filled.add_run("ff66", trials(FEW), agent="new"),
    ]
    filled.add_job("0001", ["aa11", "bb22"], name="old")
    filled.add_job("0002", later, name="now")
    found = valk("compare", "old", "now", "--json").json
    assert [(one["a"], one["b"]) for one in found["comparisons"]] == [
        ("codex:gpt in old", "codex:gpt in now"),
        ("nop in old", "nop in now"),
    ]
    assert [one["verdict"] for one in found["comparisons"]] == ["better", "worse"]
    assert valk("compare", "old", "now", "--fail-if-worse").code == 1
    filled.add_job("0003", [*later[2:], filled.add_run("fa77", trials(ALL), agent="newer")], name="others")
    refused = valk("compare", "old", "others")
    assert refused.code == 2 and "no agent of the same name" in refused.err


def test_two_jobs_of_one_run_each(valk: Valk, filled: FilledStore) -> None:
    filled.add_job("0001", ["aa11"], name="one")
    filled.add_job("0002", ["bb22"], name="other")
    assert "codex:gpt in one beats nop in other by 75.0 points" in valk("compare", "one", "other").out


def test_other_tasks_are_refused(valk: Valk, filled: FilledStore) -> None:
    filled.change_run("bb22", benchmark="elsewhere", dataset="hard")
    said = valk("compare", "aa", "bb")
    assert said.code == 2
    assert "Run aa11 is on quickstart and run bb22 on elsewhere (hard)" in said.err
    filled.add_job("0001", ["aa11", "bb22"], name="mixed")
    assert "nothing to compare" in valk("compare", "mixed").err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "Missing argument"),
        (("aa",), "name another run or job"),
        (("aa", "aa11"), "both stand for run aa11"),
        (("aa", "zz"), "No run or job 'zz'"),
        (("aa", "bb", "--metric", "luck"), "'luck' is not one of"),
        (("--fail-if-worse", "aa", "bb"), "Put it last"),
        (("aa", "bb", "--fail-if-worse=nan"), "is not a number"),
        (("aa", "bb", "--json", "-o", "yaml"), "exclude each other"),
    ],
)
def test_wrong_words(valk: Valk, words: tuple[str, ...], reason: str) -> None:
    said = valk("compare", *words)
    assert (said.code, said.out) == (2, "")
    assert reason in said.err


def test_ambiguous_ids(valk: Valk, filled: FilledStore) -> None:
    filled.add_run("aa99")
    said = valk("compare", "aa", "bb").err
    assert "beginning of several run ids" in said and "aa11" in said and "aa99" in said
    filled.add_job("bbff", name="weekly")
    both = valk("compare", "aa11", "bb")
    assert both.code == 2 and "is the beginning of run bb22 and of job bbff" in both.err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("aa", "bb", "--fail-if-worse"), 1),
        (("aa", "bb", "--fail-if-worse", "75"), 1),
        (("aa", "bb", "--fail-if-worse=75.1"), 0),
        (("bb", "aa", "--fail-if-worse"), 0),
    ],
)
def test_the_gate_shuts_when_the_later_is_surely_worse(valk: Valk, words: tuple[str, ...], code: int) -> None:
    said = valk("compare", *words, "--json")
    assert said.code == code
    assert len(said.json["gate"]["failures"]) == code


def test_the_gate_stays_open_for_what_may_be_chance_and_shut_where_nothing_is_known(
    valk: Valk, filled: FilledStore
) -> None:
    filled.add_run("bb22", trials([0.0] * 3 + [1.0] * 9))
    assert valk("compare", "aa", "bb", "--fail-if-worse").code == 0, "3 of 12 lost may be chance"
    filled.add_run("bb22", trials([0.0] * 4 + [1.0] * 8))
    shut = valk("compare", "aa", "bb", "--fail-if-worse")
    assert shut.code == 1 and "Can't tell" in shut.out and "one-sided p = 0.0" in shut.out
    filled.add_run("bb22", [lost("t0")])
    unknown = valk("compare", "aa", "bb", "--fail-if-worse")
    assert unknown.code == 1 and "Gate: codex:gpt and nop cannot be compared" in unknown.out
    filled.add_run("bb22", trials(ALL))
    filled.change_run("bb22", state="IN_PROGRESS")
    going = valk("compare", "aa", "bb", "--fail-if-worse")
    assert going.code == 1 and "have not both ended" in going.out and "nop goes on" in going.out


def no_worse(valk: Valk, *words: str) -> tuple[int, Any]:
    said = valk("compare", *words, "--json")
    return said.code, said.json["gate"]


@pytest.mark.parametrize("margin", ["2", "2%", "2 points", "0.02", "2.0pp", ".02"])
def test_a_margin_is_written_as_people_write_it(valk: Valk, margin: str) -> None:
    code, gate = no_worse(valk, "bb", "aa", "--no-worse-than", margin)
    assert (code, gate["kind"], gate["points"]) == (0, "no-worse-than", 2.0)
    assert (gate["outcome"], gate["failures"]) == ("no worse", [])


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--no-worse-than", "much"), "is no margin; write 2 or 2%"),
        (("--no-worse-than", "-2"), "is no margin"),
        (("--no-worse-than", "101%"), "more than all there is"),
        (("--no-worse-than", "0.5"), "could be 0.5 points or 50: write 0.5% or 50%"),
        (("--no-worse-than", "2", "--fail-if-worse"), "two gates"),
    ],
)
def test_margins_nobody_can_read_are_refused(valk: Valk, words: tuple[str, ...], reason: str) -> None:
    said = valk("compare", "aa", "bb", *words)
    assert said.code == 2 and reason in " ".join(said.err.split())


def test_no_worse_has_three_outcomes(valk: Valk, filled: FilledStore) -> None:
    code, gate = no_worse(valk, "aa", "bb", "--no-worse-than", "2%")
    assert (code, gate["outcome"]) == (1, "worse")
    assert gate["comparisons"][0]["worse_at_least"] > 0.02
    assert "nop is worse than codex:gpt by more than 2.0 points: by at least" in gate["failures"][0]
    filled.add_run("bb22", trials([0.0] + [1.0] * 11))
    code, gate = no_worse(valk, "aa", "bb", "--no-worse-than", "2%")
    assert (code, gate["outcome"]) == (1, "can't tell")
    assert "Can't tell whether nop is worse than codex:gpt by more than 2.0 points" in gate["failures"][0]
    code, gate = no_worse(valk, "aa", "bb", "--no-worse-than", "60")
    assert (code, gate["outcome"], gate["failures"]) == (0, "no worse", [])
    said = valk("compare", "aa", "bb", "--no-worse-than", "60")
    assert (
        "Gate: nop is no worse than codex:gpt by more than 60.0 points: nop is worse by at most" in said.out
    )


def test_two_equal_tasks_show_nothing(valk: Valk, filled: FilledStore) -> None:
    filled.add_run("aa11", trials([1.0, 1.0]))
    filled.add_run("bb22", trials([1.0, 1.0]))
    assert no_worse(valk, "aa", "bb", "--no-worse-than", "5%")[1]["outcome"] == "can't tell"


def test_no_worse_holds_for_every_way_lacking_trials_could_have_ended(
    valk: Valk, filled: FilledStore
) -> None:
    extra = [f"x{number}" for number in range(12)]
    filled.add_run("aa11", [*trials(ALL), *(passed(task) for task in extra)])
    filled.add_run("bb22", [*trials(ALL), *(lost(task) for task in extra)])
    code, gate = no_worse(valk, "aa", "bb", "--no-worse-than", "40")
    assert (code, gate["outcome"]) == (1, "can't tell")
    filled.change_run("bb22", state="IN_PROGRESS")
    filled.add_run("aa11", trials(ALL))
    filled.add_run("bb22", trials(ALL), state="IN_PROGRESS")
    code, gate = no_worse(valk, "aa", "bb", "--no-worse-than", "60")
    assert (code, gate["outcome"]) == (1, "can't tell") and "have not both ended" in gate["failures"][0]


def test_who_did_better_where(valk: Valk, filled: FilledStore) -> None:
    filled.add_run("aa11", trials([1.0, 0.0, 0.5]))
    filled.add_run("bb22", [*trials([0.0, 1.0, 0.5]), lost("t3")])
    rows = [line.split("  ") for line in valk("compare", "aa", "bb", "--tasks").out.splitlines()]
    found = {row[0]: row[-1] for row in rows if row[0] in ("t0", "t1", "t2", "t3")}
    assert found == {"t0": "codex:gpt", "t1": "nop", "t2": "—", "t3": "—"}
    assert list(found) == ["t0", "t2", "t3", "t1"], "what the first won comes first, what it lost last"


def test_denominators_are_shown_where_they_differ(valk: Valk, filled: FilledStore) -> None:
    filled.add_run("bb22", [*trials(FEW), lost("t12"), lost("t13", category="agent", cause="agent_failed")])
    said = valk("compare", "aa", "bb")
    row = next(line for line in said.out.splitlines() if line.startswith("nop") and "trials" in line)
    assert [part.strip() for part in row.split("  ") if "trials" in part] == [
        "21.4 % of 14 trials", "25.0 % of 12 trials", "23.1 % of 13 trials"
    ]  # fmt: skip
    assert "nop: 2 errors: agent 1, infrastructure 1." in said.out


def test_metric_pass_forgets_partial_credit(valk: Valk, filled: FilledStore) -> None:
    filled.add_run("aa11", trials([0.9] * 12))
    filled.add_run("bb22", trials([0.1] * 12))
    assert "codex:gpt beats nop by 80.0 points, 95 % interval 40.2 to 84.4" in valk("compare", "aa", "bb").out
    said = valk("compare", "aa", "bb", "--metric", "pass")
    assert "Pass rate" in said.out and "the same result on every task" in said.out


def test_names_cannot_write_on_the_terminal(valk: Valk, filled: FilledStore) -> None:
    filled.add_run("bb22", [*trials(FEW), passed("t\x1b[31m99")], agent="no\x1b]0;owned\x07p\u202e")
    said = valk("compare", "aa", "bb", "--tasks")
    assert "codex:gpt beats nop" in said.out and "\x1b" not in said.out and "\u202e" not in said.out


def lacking(passes: int, errors: int) -> list[Trial]:
    return [*trials([1.0] * passes), *(lost(f"t{passes + number}") for number in range(errors))]


def test_what_one_side_lacks_is_a_range_and_no_verdict(valk: Valk, filled: FilledStore) -> None:
    filled.add_run("bb22", lacking(3, 9))
    said = valk("compare", "aa", "bb")
    assert "No difference seen" not in said.out
    assert "because of 9 trials that nop lacks" in " ".join(said.out.split())
    assert "25.0 to 100.0 %" in said.out
    assert "nop: 25.0 % to 100.0 %, depending on 9 ungraded trials" in " ".join(said.out.split())
    found = valk("compare", "aa", "bb", "--json").json
    assert [agent["rank"] for agent in found["agents"]] == [1, 2]
    nop = found["agents"][1]
    assert (nop["score_low"], nop["score_high"], nop["ungraded"]) == (0.25, 1.0, 9)
    (one,) = found["comparisons"]
    assert (one["verdict"], one["seen"], one["undecided"], one["b_lacks"]) == ("unclear", "unclear", True, 9)
    assert (one["lowest"]["difference"], one["highest"]["difference"]) == (0.0, 0.75)


def test_the_gate_is_shut_when_what_is_missing_could_make_it_worse(valk: Valk, filled: FilledStore) -> None:
    filled.add_run("bb22", lacking(3, 9))
    shut = valk("compare", "aa", "bb", "--fail-if-worse")
    assert shut.code == 1 and "nop could be worse than codex:gpt, depending on trials" in shut.out
    filled.add_run("bb22", lacking(11, 1))
    assert valk("compare", "aa", "bb", "--fail-if-worse").code == 0, "one lost trial is no evidence"


def test_a_stated_margin_is_what_alike_is_held_against(valk: Valk, filled: FilledStore) -> None:
    filled.add_run("aa11", trials([1.0] * 60))
    filled.add_run("bb22", trials([1.0] * 60))
    assert "Can't tell" in valk("compare", "aa", "bb").out
    said = valk("compare", "aa", "bb", "--no-worse-than", "10%")
    assert said.code == 0 and "what there may be is within 10 points" in " ".join(said.out.split())
