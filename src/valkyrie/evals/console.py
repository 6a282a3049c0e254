"""Print what an eval does while it runs and when it ended, on a terminal or into a pipe."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self, TextIO

from benchmark_runner.terminal import PLAIN, Region, TerminalStyle, fit, printable, safe, start_deaf
from valkyrie.evals.figures import EvalOutcome, curve, figures, repeats_of, stimulus_outcome, trial_outcome
from valkyrie.evals.phrases import (
    clipped,
    constraints_text,
    counts_text,
    failed_graders,
    fault_text,
    flaky_text,
    full_name,
    percent,
    repeats_parts,
    resume_command,
    score_parts,
    seconds,
    used_text,
    verdict_text,
    with_interval,
)
from valkyrie.evals.records import dump_line, to_line
from valkyrie.evals.result_folder import WrittenResults
from valkyrie.evals.results import Invocation, SpecResult, StimulusResult, TrialResult
from valkyrie.grade.protocol import GraderResult
from valkyrie.report.formats import plural


@dataclass(frozen=True, slots=True)
class Signs:
    """The few characters that are not ASCII."""

    passed: str = "✔"
    failed: str = "✘"
    error: str = "!"
    aside: str = "–"
    rule: str = "━━━"
    warning: str = "⚠ "


ASCII = Signs("ok", "FAIL", "!", "-", "===", "")
_SPELT_OUT = str.maketrans({"…": "...", "–": "-", "—": "-"})


@dataclass(frozen=True, slots=True)
class ReportStream:
    """What people read: standard output, or standard error where JSON lines go to standard output."""

    stream: TextIO
    ink: TerminalStyle = PLAIN
    redraws: bool = False
    """A terminal whose last line can be rewritten."""
    width: int | None = None
    """Columns of a terminal; None in a pipe, where nothing is cut."""
    signs: Signs = Signs()

    @classmethod
    def of(cls, stream: TextIO, *, no_color: bool = False) -> ReportStream:
        """As the stream is: colour and a live line on a terminal only, ASCII where it can do no better."""
        terminal = stream.isatty()
        dumb = os.environ.get("TERM", "dumb") == "dumb"
        return cls(
            stream,
            ink=TerminalStyle(terminal and not (no_color or dumb or os.environ.get("NO_COLOR"))),
            redraws=terminal and not dumb,
            width=shutil.get_terminal_size().columns if terminal else None,
            signs=Signs() if _writes(stream, "✔✘━⚠…–") else ASCII,
        )

    def write(self, lines: Iterable[str]) -> None:
        """Lines, at once."""
        text = "".join(f"{printable(line, colors=self.ink.enabled)}\n" for line in lines)
        if self.signs is ASCII:
            encoding = self.stream.encoding or "ascii"
            text = text.translate(_SPELT_OUT).encode(encoding, "replace").decode(encoding)
        write_kept(self.stream, text)

    def region(self) -> Region | None:
        """The line below everything printed so far, where the stream has one."""
        return Region(self.stream) if self.redraws else None


def write_kept(stream: TextIO, text: str) -> None:
    """Write and flush; a reader that has left (`| head`) loses the rest, and the eval goes on."""
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _writes(stream: TextIO, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class LiveLine:
    """One line below what is printed, with a clock; silent where there is no region."""

    def __init__(self, region: Region | None, ink: TerminalStyle, clock: Callable[[], float]) -> None:
        self._region, self._ink, self._clock = region, ink, clock
        self._began = clock()
        self._said = self._drawn = ""
        self._lock = threading.RLock()
        self._left = threading.Event()
        self._ticker: threading.Thread | None = None

    def start(self) -> None:
        """Keep the clock going."""
        if self._region is not None:
            self._ticker = threading.Thread(target=self._tick, daemon=True)
            start_deaf(self._ticker)

    def stop(self) -> None:
        """Take the line away for good."""
        self._left.set()
        if self._ticker is not None:
            self._ticker.join()
            self._ticker = None
        with self._lock:
            self._said = ""
            self._clear()

    def say(self, text: str) -> None:
        """Set what stands before the clock from now on."""
        with self._lock:
            self._said = text
            self._draw()

    @contextmanager
    def away(self) -> Iterator[None]:
        """Cleared while others print, then drawn again."""
        with self._lock:
            self._clear()
            yield
            self._draw()

    def _tick(self) -> None:
        while not self._left.wait(1.0):
            with self._lock:
                self._draw()

    def _draw(self) -> None:
        minutes, rest = divmod(int(self._clock() - self._began), 60)
        line = f"{self._said}; {minutes:02d}:{rest:02d}"
        if self._region is not None and self._said and line != self._drawn:
            self._region.draw([self._ink.paint(line, "dim")])
            self._drawn = line

    def _clear(self) -> None:
        if self._region is not None and self._drawn:
            self._region.clear()
            self._drawn = ""


# What an eval prints while it runs and when it ended.

_STYLES = {
    EvalOutcome.PASSED: "green",
    EvalOutcome.FAILED: "red",
    EvalOutcome.NOT_GRADED: "dim",
    EvalOutcome.SKIPPED: "dim",
}
_PROMPT_COLUMNS = 76


class Printer:
    """Prints stimuli as they end, in the order it is told of them, and the summary.

    Entered, it keeps the clock of the live line going.
    """

    def __init__(
        self,
        paper: ReportStream,
        *,
        verbose: bool = False,
        records: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._text = _Text(paper, verbose)
        self._paper = paper
        self._records = records
        """Where trial results go as JSON lines (`--output jsonl`)."""
        self._heading: str | None = None
        self._line = LiveLine(paper.region(), paper.ink, clock)

    def __enter__(self) -> Self:
        self._line.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.stop()

    def progress(self, done: int, total: int, retries: int = 0, running: int | None = None) -> None:
        """Trials so far; shown on the line at the bottom, where there is one."""
        again = f", {retries} {'retry' if retries == 1 else 'retries'}" if retries else ""
        going = "" if running is None else f", {running} running"
        self._line.say(f"{done}/{total} trials{going}{again}")

    def stimulus_done(self, stimulus: StimulusResult, of: SpecResult) -> None:
        """All trials of a stimulus ended; `of` is its eval, as far as it is known."""
        heading = safe(full_name(of))
        lines = [] if heading == self._heading else ["", self._paper.ink.paint(heading, "bold")]
        self._heading = heading
        several = stimulus.planned > 1 or len(stimulus.trials) > 1
        lines += self._text.several(stimulus) if several else self._text.single(stimulus)
        self._print(lines)
        for trial in stimulus.trials:
            self._record(replace(trial, threshold=stimulus.threshold) if trial.threshold is None else trial)

    def note(self, line: str) -> None:
        """A remark while it runs."""
        self._print([self._paper.ink.paint(safe(line), "dim")])

    def interrupted(self) -> None:
        """Someone wants it to end; what runs is being stopped."""
        said = "Interrupted: stopping what runs (Ctrl+C again: at once). Everything that ended is kept."
        self._print(["", self._paper.ink.paint(said, "yellow")])

    def finish(self, invocation: Invocation, written: WrittenResults | None = None) -> None:
        """The verdicts, the counts, where the files are, and how to go on."""
        self._line.stop()
        self._print(self._text.summary(invocation, written))

    def _print(self, lines: list[str]) -> None:
        with self._line.away():
            self._paper.write(lines)

    def _record(self, trial: TrialResult) -> None:
        if self._records is not None:
            write_kept(self._records, dump_line(to_line(trial)) + "\n")


class _Text:
    """Results as lines."""

    def __init__(self, paper: ReportStream, verbose: bool) -> None:
        self._ink, self._signs = paper.ink, paper.signs
        self._verbose = verbose

    def single(self, stimulus: StimulusResult) -> list[str]:
        """One line, and below it what went wrong."""
        outcome = stimulus_outcome(stimulus)
        line = f"{self._mark(outcome)} {safe(stimulus.name)}"
        if not stimulus.trials:
            return [f"{line}  {'Skipped' if outcome is EvalOutcome.SKIPPED else outcome.value}"]
        trial = stimulus.trials[0]
        return [f"{line} {self._took(trial)}{self._score(trial)}", *self._below(trial, "    ")]

    def several(self, stimulus: StimulusResult) -> list[str]:
        """A heading, one line per trial, and what they say together."""
        count = plural(stimulus.planned or len(stimulus.trials), "trial")
        rule = self._ink.paint(self._signs.rule, "dim")
        lines = ["", f"{rule} {self._ink.paint(safe(stimulus.name), 'bold')} ({count}) {rule}"]
        if prompt := _first_line(stimulus.prompt):
            lines.append(f"  {self._ink.paint(fit(prompt, _PROMPT_COLUMNS), 'dim')}")
        lines.append("")
        for trial in stimulus.trials:
            lines += self._trial(trial)
        return [*lines, "", f"  {self._together(stimulus)}", *self._curve(stimulus)]

    def _trial(self, trial: TrialResult) -> Iterator[str]:
        outcome = trial_outcome(trial)
        why = "; ".join(f"{one.name}: {_first_line(one.evidence)}" for one in failed_graders(trial))
        reason = "" if self._verbose else _one_line(why if trial.fault is None else fault_text(trial))
        told = f"  {self._ink.paint(reason, 'dim')}" if reason else ""
        yield f"  Trial {trial.index + 1} {self._mark(outcome)} {self._took(trial)}{told}"
        if self._verbose:
            yield from self._below(trial, "      ")

    def _together(self, stimulus: StimulusResult) -> str:
        parts = repeats_parts(stimulus) or ["no trial was graded"]
        if flaky := flaky_text(stimulus):
            parts.append(self._ink.paint(f"{self._signs.warning}{flaky}", "yellow"))
        if uncounted := [trial for trial in stimulus.faults if trial.passed is None]:
            parts.append(f"{plural(len(uncounted), 'error')} not counted")
        if stimulus.planned > len(stimulus.trials):
            parts.append(f"{stimulus.planned - len(stimulus.trials)} not run")
        return "  ".join(parts)

    def _curve(self, stimulus: StimulusResult) -> Iterator[str]:
        found = repeats_of(stimulus)
        if not self._verbose or found is None or found.trials < 2:
            return
        ks = range(1, found.trials + 1)
        rows = {
            "pass@k": [found.pass_at(k) for k in ks],
            "pass^k": [found.pass_all(k) for k in ks],
        }
        for name, values in rows.items():
            said = "  ".join(f"k={k} {percent(value)}" for k, value in zip(ks, values, strict=True))
            yield f"  {self._ink.paint(f'{name}: {said}', 'dim')}"

    def _below(self, trial: TrialResult, indent: str) -> Iterator[str]:
        """Yield why a trial failed; with --verbose all its graders and what the agent said."""
        if trial.fault is not None:
            yield from _indented(fault_text(trial), indent)
        graders = trial.graders if self._verbose else failed_graders(trial)
        for grader in graders:
            yield from self._grader(grader, indent)
        if trial.constraints and (self._verbose or not all(one.held for one in trial.constraints)):
            yield f"{indent}{self._ink.paint(constraints_text([trial]), 'dim')}"
        if self._verbose and (output := _output(trial)):
            yield f"{indent}{self._ink.paint('agent output:', 'dim')}"
            yield from _indented(safe(output, keep_lines=True), indent + "  ")

    def _grader(self, grader: GraderResult, indent: str) -> Iterator[str]:
        outcome = EvalOutcome.PASSED if grader.passed else EvalOutcome.FAILED
        if grader.status != "ok":
            outcome = EvalOutcome.GRADER_ERROR if grader.status == "error" else EvalOutcome.SKIPPED
        most = {"characters": 20_000, "lines": 200} if self._verbose else {"characters": 1_000, "lines": 8}
        evidence = clipped(grader.evidence, **most).split("\n")
        yield f"{indent}{self._mark(outcome)} {safe(grader.name)}: {evidence[0]}"
        yield from (f"{indent}    {line}" for line in evidence[1:])

    def summary(self, invocation: Invocation, written: WrittenResults | None) -> list[str]:
        """Return what stands at the end."""
        lines = [""]
        for result in invocation.evals:
            lines += self._verdict(result)
        found = figures(invocation.evals)
        lines += ["", f"Trials: {counts_text(found)}"]
        if found.flaky:
            lines.append(f"Flaky: {found.flaky} of {sum(found.stimuli.values())} stimuli")
        if used := used_text(found.used):
            lines.append(f"Used: {used}")
        lines += [self._ink.paint(f"Note: {safe(notice)}", "dim") for notice in invocation.notices]
        lines += _files(invocation, written)
        if resume := resume_command(invocation):
            lines.append(f"Go on with what is missing: {resume}")
        return lines

    def _verdict(self, result: SpecResult) -> Iterator[str]:
        mark = self._mark(_eval_outcome(result))
        yield f"{mark} {safe(full_name(result))} {verdict_text(result)}"
        found = figures([result])
        if not found.counted:
            return
        yield from (f"  {part}" for part in score_parts(found))
        if len(result.trials) > 1 and (held := constraints_text(result.trials)):
            yield f"  {held}"
        points = curve(result.stimuli)
        if self._verbose and len(points) > 1:
            for point in points:
                yield (
                    f"  k={point.k}  pass@k {with_interval(point.pass_at, point.pass_at_interval)}"
                    f"  pass^k {with_interval(point.pass_all, point.pass_all_interval)}"
                )

    def _mark(self, outcome: EvalOutcome) -> str:
        signs = {
            EvalOutcome.PASSED: self._signs.passed,
            EvalOutcome.FAILED: self._signs.failed,
            EvalOutcome.NOT_GRADED: self._signs.aside,
            EvalOutcome.SKIPPED: self._signs.aside,
        }
        return self._ink.paint(signs.get(outcome, self._signs.error), _STYLES.get(outcome, "yellow"))

    def _took(self, trial: TrialResult) -> str:
        again = f" (attempt {trial.attempts})" if trial.attempts > 1 else ""
        return self._ink.paint(f"{seconds(trial.duration_ms)}{again}", "dim")

    def _score(self, trial: TrialResult) -> str:
        return "" if trial.score is None or trial.score == 1.0 else f"  score {percent(trial.score)}"


def _eval_outcome(result: SpecResult) -> EvalOutcome:
    if result.skipped is not None:
        return EvalOutcome.SKIPPED
    if not result.passed:
        return EvalOutcome.FAILED
    if not result.ok:
        return EvalOutcome.EXECUTION_ERROR
    return EvalOutcome.PASSED if result.graded else EvalOutcome.NOT_GRADED


def _files(invocation: Invocation, written: WrittenResults | None) -> list[str]:
    if written is None:
        return [f"Results: {invocation.folder}"] if invocation.folder else []
    lines = [f"Results: {written.results}", f"Report: {written.report}"]
    return [*lines, f"JUnit: {written.junit}"] if written.junit else lines


def _first_line(prompt: str) -> str:
    return safe(next((line for line in prompt.splitlines() if line.strip()), ""))


def _one_line(text: str) -> str:
    return safe(text)[:300]


def _indented(text: str, indent: str) -> Iterator[str]:
    return (f"{indent}{line}" for line in text.split("\n"))


def _output(trial: TrialResult) -> str:
    output = (trial.transcript or {}).get("output")
    return output if isinstance(output, str) else ""
