"""What `benchmark check` found, as a table, as Markdown and as a badge."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from benchmark_runner.terminal import Column, Table, TerminalStyle, safe
from valkyrie.benchmarks.audit import BenchmarkAudit, TaskAudit, Weakness
from valkyrie.report.formats import NONE, plural

_GREEN, _RED = "#2e7d32", "#c62828"


def audit_table(audit: BenchmarkAudit, ink: TerminalStyle) -> Table:
    """One row for each task."""
    columns = [Column("Task"), Column("Oracle"), Column("Nop", "right"), Column("Verified in")]
    table = Table([*columns, Column("Cheats", "right"), Column("Open to", shrink=True)])
    for task in audit.tasks:
        verdict = ", ".join(task.open_to) or ("" if task.problems else "nothing")
        if task.problems:
            verdict = f"{verdict}{', ' if verdict else ''}broken"
        table.rows.append(
            [
                safe(task.task_id),
                _scores(task),
                _score(task.nop),
                task.mode_label,
                _cheats(task),
                ink.paint(verdict, "green" if task.clean else "red"),
            ]
        )
    return table


def audit_lines(audit: BenchmarkAudit, ink: TerminalStyle) -> Iterator[str]:
    """Yield what each task is open to and what its author must change, then one line over all."""
    for task in audit.tasks:
        if task.clean and not task.notes:
            continue
        yield f"{ink.paint(safe(task.task_id), 'bold')}"
        for problem in task.problems:
            yield f"  {ink.paint('broken', 'red')}  {safe(problem)}"
        for finding in task.findings:
            yield f"  {ink.paint(finding.weakness, 'red')}  {safe(finding.seen)}."
            yield f"    {safe(finding.fix)}"
        for note in task.notes:
            yield f"  note  {safe(note)}"
    yield from _blocked(audit)
    yield headline(audit)


def _blocked(audit: BenchmarkAudit) -> Iterator[str]:
    """Yield what the platform stopped by itself: each way once, with the number of tasks."""
    ways: dict[str, int] = {}
    for task in audit.tasks:
        for text in task.blocked:
            way = text.partition(":")[0]
            ways[way] = ways.get(way, 0) + 1
    if ways:
        told = ", ".join(f"{way} ({plural(count, 'task')})" for way, count in ways.items())
        yield f"Blocked by the platform itself: {told}."


def headline(audit: BenchmarkAudit) -> str:
    """The whole in one sentence."""
    if audit.interrupted:
        return f"The check of {safe(audit.benchmark)} was ended before it was through."
    total = len(audit.tasks)
    if audit.clean:
        return f"{safe(audit.benchmark)}: {plural(total, 'task')}, all clean."
    return f"{safe(audit.benchmark)}: {audit.n_clean} of {plural(total, 'task')} clean."


def audit_markdown(audit: BenchmarkAudit) -> str:
    """The report for a pull request or a README."""
    lines = [f"# Benchmark check: {_cell(audit.benchmark)}", "", headline(audit), ""]
    lines += [
        "| task | oracle | nop | verified in | cheats | open to |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for task in audit.tasks:
        verdict = ", ".join(task.open_to) or ("broken" if task.problems else "nothing")
        cells = [task.task_id, _scores(task), _score(task.nop), task.mode_label, _cheats(task), verdict]
        lines.append(f"| {' | '.join(_cell(cell) for cell in cells)} |")
    for task in audit.tasks:
        if task.clean and not task.blocked and not task.notes:
            continue
        lines += ["", f"## {_cell(task.task_id)}", ""]
        lines += [f"- **broken**: {_cell(problem)}" for problem in task.problems]
        for finding in task.findings:
            seen = f"{_cell(finding.weakness.label)}: {_cell(finding.seen)}"
            lines.append(f"- **{finding.weakness}**: {seen}. {_cell(finding.fix)}")
        lines += [f"- blocked by the platform: {_cell(text)}" for text in task.blocked]
        lines += [f"- note: {_cell(note)}" for note in task.notes]
    lines += ["", "## Classes", ""]
    lines += [f"- **{weakness}**: {weakness.label}" for weakness in Weakness]
    return "\n".join(lines) + "\n"


def audit_badge(audit: BenchmarkAudit) -> str:
    """An SVG that says how many tasks are clean."""
    label, value = "benchmark check", f"{audit.n_clean}/{len(audit.tasks)} clean"
    colour = _GREEN if audit.clean else _RED
    left, right = 7 * len(label) + 10, 7 * len(value) + 10
    text = escape(f"{label}: {value}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img" '
        f'aria-label="{text}">\n'
        f"  <title>{text}</title>\n"
        f'  <rect width="{left}" height="20" fill="#555"/>\n'
        f'  <rect x="{left}" width="{right}" height="20" fill="{colour}"/>\n'
        f'  <g fill="#fff" font-family="Verdana,Geneva,sans-serif" font-size="11" text-anchor="middle">\n'
        f'    <text x="{left / 2:g}" y="14">{escape(label)}</text>\n'
        f'    <text x="{left + right / 2:g}" y="14">{escape(value)}</text>\n'
        "  </g>\n</svg>\n"
    )


def _scores(task: TaskAudit) -> str:
    return " ".join(_score(score) for score in task.oracle) or NONE


def _score(score: float | None) -> str:
    return NONE if score is None else f"{score:g}"


def _cheats(task: TaskAudit) -> str:
    """Return how many ways to cheat scored, of how many."""
    if not task.cheats:
        return NONE
    scored = sum(1 for score in task.cheats.values() if (score or 0.0) > 0)
    return f"{scored} of {len(task.cheats)}"


def _cell(text: str) -> str:
    return safe(text).replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")
