"""Values, panels and tables as text for a terminal or a pipe."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmark_runner.terminal import bar, safe

if TYPE_CHECKING:
    from valkyrie.views import GradingChange, LogLine, RunView, ScoreView, TrialLeftOut, TrialView


# Values as people read them: numbers, times, and the named numbers of a score.

_CODES = 3
_MOSTLY, _HARDLY = 0.75, 0.25
NONE = "—"
DAGGER = "†"
OPEN = "open to tampering"
INGESTED_NOTE = "ingested: the trials ran elsewhere, and the scores are what a file said"
UNKNOWN = "not known: no fresh sandbox was asked"

_STATE_WORDS = {
    "PENDING": "Pending",
    "BUILDING": "Building",
    "IN_PROGRESS": "In Progress",
    "EVALUATING": "Evaluating",
    "ERROR": "Error",
    "STOPPED": "Stopped",
    "SKIPPED": "Skipped",
    "FINISHED": "Finished",
    "STOPPING": "Stopping",
}
COUNTED_STATES = (
    "PENDING",
    "BUILDING",
    "IN_PROGRESS",
    "EVALUATING",
    "ERROR",
    "STOPPED",
    "SKIPPED",
    "FINISHED",
)


def run_mark(run: RunView) -> str:
    """Return what stands behind the name of a run whose trials ran elsewhere."""
    return " (ingested)" if run.ingested else ""


def short_id(run_id: str) -> str:
    """The first eight characters of a long id: enough to name a run by."""
    return run_id if len(run_id) <= 16 else run_id[:8]


def state_word(state: str) -> str:
    """`IN_PROGRESS` as `In Progress`."""
    return _STATE_WORDS.get(state, safe(state))


def duration(seconds: float | None) -> str:
    """Return seconds as a person says them: `3.2 s`, `42 s`, `4 min 05 s`, `1 h 12 min`, `2 d 3 h`."""
    if seconds is None:
        return NONE
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def moment(epoch: float | None) -> str:
    """A point in time, whole, in the local zone: `2026-03-01 14:03:22 CET`."""
    return NONE if epoch is None else time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(epoch)).rstrip()


def moment_short(epoch: float | None) -> str:
    """A point in time for a table, in the local zone: `2026-03-01 14:03`."""
    return NONE if epoch is None else time.strftime("%Y-%m-%d %H:%M", time.localtime(epoch))


def moment_brief(epoch: float, now: float) -> str:
    """The same where room is short: `03-01 14:03` this year, else the date alone, as `ls` does."""
    then = time.localtime(epoch)
    return time.strftime("%m-%d %H:%M" if then.tm_year == time.localtime(now).tm_year else "%Y-%m-%d", then)


def clock(epoch: float) -> str:
    """Time of day in the local zone."""
    return time.strftime("%H:%M:%S", time.localtime(epoch))


def size(count: int) -> str:
    """Return bytes as people say them, in powers of 1024."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    raise AssertionError


def dollars(amount: float) -> str:
    """US dollars: `$1,234.50`; a fraction of one with what makes it up, `$0.0042`."""
    return f"${amount:,.2f}" if amount == 0 or amount >= 1 else f"${amount:.4f}"


def number(value: float | None, *, fraction: bool) -> str:
    """A score: per cent if it is a fraction, else on the benchmark's own scale."""
    if value is None:
        return NONE
    return f"{value * 100:.1f} %" if fraction else f"{value:g}"


def interval(score: ScoreView) -> str:
    """`55.2–95.3`, in the unit of the score, or a dash."""
    return NONE if score.interval is None else ends_text(score.interval, fraction=score.fraction)


def ends_text(ends: tuple[float, float], *, fraction: bool) -> str:
    """The ends of an interval: `55.2–95.3`."""
    low, high = ends
    return f"{low * 100:.1f}–{high * 100:.1f}" if fraction else f"{low:g}–{high:g}"


def plural(count: int, word: str, many: str | None = None) -> str:
    """`1 error`, `3 errors`."""
    return f"{count} {word}" if count == 1 else f"{count} {many or f'{word}s'}"


def counts_line(counts: Mapping[str, int]) -> str:
    """`Pending: 3 │ Error: 1 │ Finished: 8`, zeros hidden."""
    said = [f"{state_word(state)}: {counts[state]}" for state in COUNTED_STATES if counts.get(state)]
    return " │ ".join(said) or "nothing yet"


def errors_text(errors: Mapping[str, int]) -> str:
    """`no errors`, or `3 errors: infrastructure 2, agent 1`."""
    total = sum(errors.values())
    if not total:
        return "no errors"
    parts = ", ".join(f"{safe(category)} {count}" for category, count in errors.items() if count)
    return f"{plural(total, 'error')}: {parts}"


def has_range(score: ScoreView) -> bool:
    """Return whether an ended run's score depends on trials that were not graded."""
    return score.final_score is not None and score.ungraded > 0 and score.score_low is not None


def range_text(low: float | None, high: float | None, ungraded: int) -> str:
    """`25.0 % to 100.0 %, depending on 9 ungraded trials`: the score if they had failed, and had passed."""
    ends = f"{number(low, fraction=True)} to {number(high, fraction=True)}"
    return f"{ends}, depending on {plural(ungraded, 'ungraded trial')}"


def range_cell(low: float | None, high: float | None) -> str:
    """The same for a table: `25.0 to 100.0 %`."""
    return f"{100 * (low or 0.0):.1f} to {number(high, fraction=True)}"


def leads_with_graded(score: ScoreView) -> bool:
    """Return whether `score_graded` is the number to look at.

    It is while the run goes on, and where no range can be given: while an infrastructure error is open, and
    when trials were stopped. A task nobody tried is not a task failed.
    """
    if has_range(score):
        return False
    stopped = score.planned - score.graded - sum(score.errors.values())
    return score.provisional or score.final_score is None or stopped > 0


def score_cell(score: ScoreView) -> str:
    """The leading number for a table; a star when it is `score_graded`, a dagger when open to tampering."""
    mark = DAGGER if score.open_to_tampering else ""
    if has_range(score):
        return range_cell(score.score_low, score.score_high) + mark
    if leads_with_graded(score):
        text = number(score.score_graded, fraction=score.fraction)
        return text if text == NONE else f"{text}*{mark}"
    return number(score.final_score, fraction=score.fraction) + mark


def coverage_text(score: ScoreView) -> str:
    """`10/12 graded, 1 counted as 0 (91.7 %), 2 errors: infrastructure 1, agent 1`."""
    share = f"{score.coverage * 100:.1f} %"
    zeroed = score.errors.get("agent", 0)
    counted = f", {zeroed} counted as 0" if zeroed else ""
    return f"{score.graded}/{score.planned} graded{counted} ({share}), {errors_text(score.errors)}"


def confirmed_text(score: ScoreView, remark: str = "") -> str:
    """`75.0 %: 9 of 12 passes were seen in a fresh sandbox`."""
    seen = f"{score.confirmed} of {plural(score.confirmed + (score.unconfirmed or 0), 'pass', 'passes')}"
    said = number(score.score_confirmed, fraction=score.fraction) + remark
    return f"{said}: {seen} {'was' if score.confirmed == 1 else 'were'} seen in a fresh sandbox"


def second_tries_text(count: int) -> str:
    """`4 second tries after ends by the agent's own doing: not one try each`."""
    return (
        f"{plural(count, 'second try', 'second tries')} after ends by the agent's own doing: not one try each"
    )


def tampering_text(count: int, total: int, *, tasks: bool = True) -> str:
    """`2 of 12 tasks are graded in the sandbox the agent left: open to tampering`."""
    what = plural(total, "task" if tasks else "trial")
    return f"{count} of {what} {'is' if count == 1 else 'are'} graded in the sandbox the agent left: {OPEN}"


def spread_text(found: Mapping[str, Any]) -> str:
    """`83 % between tasks, 17 % between trials: more tasks help, more trials do not`."""
    share = float(found["between_tasks_share"])
    if share >= _MOSTLY:
        advice = "more tasks help, more trials do not"
    elif share <= _HARDLY:
        advice = "more trials help nearly as much as more tasks"
    else:
        advice = "more tasks help most, more trials help too"
    tasks = round(100 * share)
    return f"{tasks} % between tasks, {100 - tasks} % between trials: {advice}"


def _graded_value(score: ScoreView, remark: str = "") -> str:
    text = number(score.score_graded, fraction=score.fraction) + remark
    return text if score.interval is None else f"{text} (95 % interval {interval(score)})"


def _final_value(score: ScoreView) -> str:
    text = number(score.final_score, fraction=score.fraction)
    if score.final_interval is None:
        return text
    return f"{text} (95 % interval {ends_text(score.final_interval, fraction=score.fraction)})"


def score_rows(score: ScoreView, *, ended: bool) -> list[tuple[str, str]]:
    """The named numbers, the leading one first; what is confirmed only where something is not."""
    remark = " so far" if not ended else " provisional" if score.provisional else ""
    # Quick tasks end first: an interval of what has ended would be one of quick tasks.
    known = number(score.score_graded, fraction=score.fraction) + remark
    graded = ("score_graded", _graded_value(score, remark) if ended else known)
    final = ("final_score", _final_value(score))
    rest = []
    if score.unconfirmed:
        rest.append(("score_confirmed", confirmed_text(score, remark)))
    elif score.unconfirmed is None and score.passed and ended:
        rest.append(("score_confirmed", UNKNOWN))
    rest.append(("coverage", coverage_text(score)))
    if score.spread is not None:
        rest.append(("spread", spread_text(score.spread)))
    if score.second_tries:
        rest.append(("tries", second_tries_text(score.second_tries)))
    if score.open_to_tampering:
        rest.append(("verified", tampering_text(score.open_to_tampering, score.graded, tasks=False)))
    if not ended:
        return [graded, *rest] if score.graded and score.fraction else rest
    if not _is_counted(score):
        return [("score", "none: no trial was graded"), *rest]
    if score.final_interval is None and score.interval is None and not score.fraction and score.graded:
        rest.append(("interval", "none: only the benchmark itself can compute this number"))
    if has_range(score):
        return [
            ("score", range_text(score.score_low, score.score_high, score.ungraded)),
            graded,
            final,
            *rest,
        ]
    if leads_with_graded(score):
        return [graded, final, *rest]
    if _is_whole(score) and score.final_score == score.score_graded:
        return [("final_score", graded[1]), *rest]
    return [final, graded, *rest]


def _is_counted(score: ScoreView) -> bool:
    """Return whether anything is known of the agent: a grade, or an end of its own doing."""
    return bool(score.graded or score.errors.get("agent"))


def _is_whole(score: ScoreView) -> bool:
    return score.graded + score.errors.get("agent", 0) == score.planned


def score_sentence(score: ScoreView, *, ended: bool) -> str:
    """The named numbers on one line."""
    names = ("score", "score_graded", "final_score", "score_confirmed")
    numbers = [row for row in score_rows(score, ended=ended) if row[0] in names]
    said = " · ".join(f"{name} {value}" for name, value in numbers if value != UNKNOWN)
    if not _is_counted(score) or not said:
        said = "no score" if ended else "no score yet"
    mark = f" · {score.open_to_tampering} {OPEN}" if score.open_to_tampering else ""
    return f"{said} · {score.graded}/{score.planned} graded · {errors_text(score.errors)}{mark}"


def progress(run: RunView) -> str:
    """`[████░░] 8/12 (67%) • In Progress`."""
    share = int(100 * run.done / run.total) if run.total else 0
    return f"[{bar(run.done, run.total)}] {run.done}/{run.total} ({share}%) • {state_word(run.state)}"


def elapsed(run: RunView, now: float) -> float | None:
    """Seconds it worked, up to its end or now: pauses between its passes do not count."""
    if run.started_at is None:
        return None
    if run.worked_s is None:  # a file said when it began and ended
        return (run.finished_at or now) - run.started_at
    return run.worked_s + (max(0.0, now - run.working_since) if run.working_since else 0.0)


def exits_text(codes: Mapping[str, int], ended: int) -> str:
    """`3 of 3 agents ended with exit code 127`, or which codes they ended with; empty if all ended with 0."""
    if not codes:
        return ""
    total = sum(codes.values())
    said = f"{total} of {plural(max(total, ended), 'agent')} ended with exit code"
    if len(codes) == 1:
        return f"{said} {next(iter(codes))}"
    most = sorted(codes.items(), key=lambda item: (-item[1], item[0]))
    named = ", ".join(f"{code}: {count}" for code, count in most[:_CODES])
    return f"{said}s other than 0 ({named}{', …' if len(codes) > _CODES else ''})"


def run_exits_text(run: RunView) -> str:
    """The same of a run, with the command that shows what they printed."""
    said = exits_text(run.exit_codes, run.counts.get("FINISHED", 0) + run.counts.get("ERROR", 0))
    return f"{said}; `valk run logs {short_id(run.id)}`" if said else ""


def agent_name(agent: str, model: str | None) -> str:
    """`agent:model`, as `--agent` takes it, harmless on a terminal."""
    return safe(agent) + (f":{safe(model)}" if model else "")


def trial_name(trial: TrialView | LogLine | GradingChange | TrialLeftOut) -> str:
    """`task`, and `task#k` for further repetitions: as results files and `--scenario` name a trial."""
    return safe(trial.task_id) + (f"#{trial.k}" if trial.k else "")


def ids_preview(ids: Sequence[str], total: int) -> str:
    """`a, b, c and 4 more`."""
    said = ", ".join(safe(task_id) for task_id in ids)
    return f"{said} and {total - len(ids)} more" if total > len(ids) else said
