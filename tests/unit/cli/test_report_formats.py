"""Values as people read them, and text laid out."""

from __future__ import annotations

import io
import time
from dataclasses import replace

import pytest

from benchmark_runner.terminal import Column, Region, Table, TerminalStyle, bar, cells, fit, pad, panel, safe
from tests.unit.cli.sample_views import FULL, HALFWAY, PROVISIONAL, make_run, make_trial
from valkyrie.report.formats import (
    counts_line,
    duration,
    moment,
    score_cell,
    score_rows,
    score_sentence,
    size,
)
from valkyrie.report.tables import (
    RunSnapshot,
    frame,
    list_notes,
    run_table,
    score_table,
    trial_notes,
    trial_table,
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [bold]not markup[/]", "plain [bold]not markup[/]"),
        ("a\x1b[31mred\x1b[0m", "ared"),
        ("a\x1b]8;;http://x\x1b\\link\x1b]8;;\x07b", "alinkb"),
        ("\x9b31mc1", "31mc1"),
        ("two\nlines\tand\r\nmore", "two lines and more"),
        ("right\u202eto left\u200b", "rightto left"),
        ("\x1b", ""),
        ("\x1bPq#0\x1b\\x", "x"),
    ],
)
def test_safe(text: str, shown: str) -> None:
    assert safe(text) == shown


def test_safe_can_keep_lines() -> None:
    assert safe("a\r\nb\x07\n\tc", keep_lines=True) == "a\nb\n    c"


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (None, "—"),
        (0.04, "0.0 s"),
        (9.96, "10 s"),
        (59.6, "1 min 00 s"),
        (3599.7, "1 h 00 min"),
        (4380, "1 h 13 min"),
        (183600, "2 d 3 h"),
    ],
)
def test_duration(seconds: float | None, said: str) -> None:
    assert duration(seconds) == said


def test_bar_is_full_only_at_the_end() -> None:
    assert bar(0, 0) == "░" * 30
    assert bar(999, 1000) == "█" * 29 + "░"
    assert bar(1000, 1000) == "█" * 30


def test_numbers_and_times() -> None:
    assert size(1023) == "1023 B" and size(1536) == "1.5 KiB"
    assert counts_line({"PENDING": 0, "ERROR": 1, "FINISHED": 8}) == "Error: 1 │ Finished: 8"
    assert moment(0).startswith(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(0)))


def test_score_sentences_name_their_numbers() -> None:
    assert score_sentence(FULL, ended=True) == (
        "final_score 100.0 % (95 % interval 75.7–100.0) · 12/12 graded · no errors"
    )
    assert score_sentence(HALFWAY, ended=False) == ("score_graded 80.0 % so far · 5/12 graded · no errors")
    assert score_sentence(PROVISIONAL, ended=True) == (
        "score_graded 90.0 % provisional (95 % interval 59.6–98.2) · final_score 75.0 % · 10/12 graded"
        " · 2 errors: infrastructure 2"
    )


def test_a_score_only_the_benchmark_can_compute_is_said_once_and_at_the_end() -> None:
    own = replace(FULL, final_score=4876.5, score_graded=4876.5, fraction=False, interval=None)
    assert score_sentence(own, ended=True) == "final_score 4876.5 · 12/12 graded · no errors"
    halfway = replace(own, graded=5, final_score=None, score_graded=None)
    assert score_sentence(halfway, ended=False) == "no score yet · 5/12 graded · no errors"


def test_cells_count_columns_not_characters() -> None:
    assert cells("añ漢字") == 6 and cells("\x1b[31mred\x1b[0m") == 3 and cells("e\u0301") == 1
    assert pad("漢", 4) == "漢  "


def test_fit_keeps_and_closes_ink() -> None:
    assert fit("\x1b[31mabcdef\x1b[0m", 4) == "\x1b[31mabc…\x1b[0m"
    assert fit("漢字漢字", 4) == "漢…" and fit("abc", 3) == "abc" and fit("abc", 1) == "…"


def test_table_whole_in_a_pipe_and_cut_on_a_terminal() -> None:
    table = Table([Column("Name", shrink=True), Column("N", "right"), Column("Note", optional=True)])
    table.rows = [["x" * 40, "1", "—"], ["y", "200", "—"]]
    assert table.lines()[2] == "x" * 40 + "    1  —"
    narrow = table.lines(width=20)
    assert max(cells(line) for line in narrow) <= 20
    assert "Note" not in narrow[0] and narrow[2].endswith("…    1")


def test_table_without_rows() -> None:
    assert Table([Column("A"), Column("B")]).lines()[0] == "A  B"


def test_panel_values_can_be_pasted() -> None:
    lines = list(panel("Run", [("A", "one"), ("Longer", "two")], TerminalStyle()))
    assert lines[0].startswith("┌─ Run ─") and lines[1] == "│ A       one" and lines[-1].startswith("└──")


def test_score_table() -> None:
    lines = score_table([make_run(), make_run(agent="nop", score=PROVISIONAL)]).lines()
    assert lines[0].split("  ")[0] == "Agent" and "95 % interval" in lines[0]
    assert lines[2].split() == [
        "oracle",
        "100.0",
        "%",
        "75.7–100.0",
        "12/12",
        "0",
        "12",
        "1",
        "min",
        "05",
        "s",
    ]
    assert "90.0 %*" in lines[3] and "9/12" in lines[3]


def test_frame_fits_the_height() -> None:
    active = [make_trial(f"task-{n}", state="BUILDING", finished_at=None) for n in range(100)]
    failed = [make_trial("bad", state="ERROR", category="agent", cause="c", message="m")]
    lines = frame(RunSnapshot(make_run(), active, failed), now=1_700_000_010.0, height=20)
    assert len(lines) <= 20 and "  … and 89 more" in lines and lines[-1] == "  bad  agent/c (counted as 0): m"


def test_region_goes_back_over_lines_a_narrower_terminal_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    region = Region(stream)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    region.draw(["x" * 60, "y"])
    monkeypatch.setenv("COLUMNS", "40")
    stream.truncate(0)
    region.draw(["z" * 60])
    assert stream.getvalue().lstrip("\0").startswith("\x1b[3A\r\x1b[J")
    assert "z" * 38 + "…" in stream.getvalue()


UNGRADED = replace(
    FULL, final_score=0.25, score_graded=1.0, graded=3, passed=3, coverage=0.25, errors={"infrastructure": 9},
    provisional=True, ungraded=9, score_low=0.25, score_high=1.0, interval=None,
)  # fmt: skip
DOUBTFUL = replace(FULL, score_confirmed=0.75, confirmed=9, unconfirmed=3, open_to_tampering=2)


def test_a_score_that_depends_on_what_is_missing_is_a_range() -> None:
    assert score_rows(UNGRADED, ended=True)[:3] == [
        ("score", "25.0 % to 100.0 %, depending on 9 ungraded trials"),
        ("score_graded", "100.0 % provisional"),
        ("final_score", "25.0 %"),
    ]
    assert score_cell(UNGRADED) == "25.0 to 100.0 %"
    assert score_sentence(UNGRADED, ended=True).startswith("score 25.0 % to 100.0 %, depending on 9")
    notes = list_notes([make_run(score=UNGRADED)])
    assert notes == ["a to b: the score if all ungraded trials had failed, and if all had passed"]


def test_what_the_agent_brought_about_is_covered_and_counted() -> None:
    picky = replace(
        FULL, final_score=0.25, score_graded=0.25, graded=3, passed=3, coverage=1.0, errors={"agent": 9}
    )
    assert score_rows(picky, ended=True) == [
        ("final_score", "25.0 % (95 % interval 75.7–100.0)"),
        ("coverage", "3/12 graded, 9 counted as 0 (100.0 %), 9 errors: agent 9"),
    ]
    assert score_cell(picky) == "25.0 %"


def test_confirmed_is_shown_only_where_something_is_not() -> None:
    assert "score_confirmed" not in dict(score_rows(FULL, ended=True))
    unknown = dict(score_rows(replace(FULL, unconfirmed=None, score_confirmed=None), ended=True))
    assert unknown["score_confirmed"] == "not known: no fresh sandbox was asked"
    rows = dict(score_rows(DOUBTFUL, ended=True))
    assert rows["score_confirmed"] == "75.0 %: 9 of 12 passes were seen in a fresh sandbox"
    assert rows["verified"] == ("2 of 12 trials are graded in the sandbox the agent left: open to tampering")
    assert score_sentence(DOUBTFUL, ended=True).endswith("no errors · 2 open to tampering")
    assert [column.title for column in run_table([make_run()]).columns].count("Confirmed") == 0
    shown = run_table([make_run(score=DOUBTFUL), make_run()])
    assert [row[5:7] for row in shown.rows] == [["100.0 %†", "75.0 %"], ["100.0 %", "100.0 %"]]
    assert list_notes([make_run(score=DOUBTFUL)]) == [
        "† some tasks are graded in the sandbox the agent left: open to tampering"
    ]


def test_trials_that_need_a_second_look_are_marked() -> None:
    evidence = {
        "mode": "shared",
        "open_to_tampering": True,
        "system": {"added": 1, "changed": 0, "removed": 0},
    }
    trials = [
        make_trial("a", confirmed=True, score_confirmed=1.0),
        make_trial("b", confirmed=False, score_confirmed=0.0, evidence=evidence),
        make_trial(
            "c", score=0.0, passed=False, category="agent", cause="sandbox_killed_by_agent", message="m"
        ),
    ]
    rows = trial_table(trials).rows
    assert [row[2:4] for row in rows] == [["100.0 %", "100.0 %"], ["100.0 %†", "0.0 %"], ["0.0 %", "—"]]
    assert rows[2][-1] == "agent/sandbox_killed_by_agent (counted as 0): m"
    assert trial_notes(trials) == [
        "† 1 of 3 tasks is graded in the sandbox the agent left: open to tampering",
        "1 pass was only seen in the sandbox the agent left: unconfirmed",
        "agents changed system files in 1 trial; valk run show lists them",
    ]
    assert trial_notes(trials[:1]) == [] and len(trial_table(trials[:1]).columns) == 7
