"""Values as people read them, and text laid out."""

from __future__ import annotations

import io
import time
from dataclasses import replace

import pytest
from fake_tracker import FULL, HALFWAY, PROVISIONAL, make_run, make_trial

from valkyrie.report.formats import bar, counts_line, duration, moment, safe, score_sentence, size
from valkyrie.report.layout import Column, Ink, Table, cells, fit, pad, panel
from valkyrie.report.live import Region, Snapshot, frame
from valkyrie.report.tables import score_table


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
    assert score_sentence(HALFWAY, ended=False) == (
        "score_graded 80.0 % so far (95 % interval 37.6–96.4) · 5/12 graded · no errors"
    )
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
    lines = list(panel("Run", [("A", "one"), ("Longer", "two")], Ink()))
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
    lines = frame(Snapshot(make_run(), active, failed), now=1_700_000_010.0, height=20)
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
