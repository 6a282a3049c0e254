"""`lint`: what is wrong with specs, skills, tasks and agents, before anything runs."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from benchmark_runner.terminal import PLAIN, TerminalStyle, printable, printable_json, safe
from valkyrie import __version__
from valkyrie.cli import eval_options as shared
from valkyrie.cli.eval_options import placed_plugins
from valkyrie.cli.options import verb
from valkyrie.cli.output import Output, write_json
from valkyrie.config.permissions import Allowance
from valkyrie.evals.lint.linter import Linter, specs_of, targets_of
from valkyrie.evals.lint.rules import RULES, LintOptions, annotation, read_entries, strictly, to_sarif
from valkyrie.report.formats import plural
from valkyrie.text import did_you_mean

if TYPE_CHECKING:
    from valkyrie.evals.lint.linter import LintResult, LintTarget
    from valkyrie.specs.model import Finding

_STYLES = {"error": "red", "warning": "yellow", "info": "dim"}
_path = click.Path(path_type=Path)


@verb(
    "lint",
    examples="valk lint\nvalk lint -e evals/hello/eval.yaml --strict\nvalk lint skills/greeting\n"
    "valk lint ./my-benchmark ./my-agent\nvalk lint --format sarif --output lint.sarif",
)
@click.argument("paths", metavar="[PATH]…", nargs=-1, type=_path)
@click.option(
    "-e",
    "--eval-spec",
    "specs",
    multiple=True,
    type=_path,
    metavar="PATH",
    help="A spec, or a folder of specs. Repeatable.",
)
@click.option(
    "--known-domains", type=_path, metavar="FILE", help="Addresses skills may point to, one a line."
)
@click.option(
    "--allowed-external-deps", type=_path, metavar="FILE", help="What skills may depend on, one a line."
)
@shared.GRADER_PLUGIN
@shared.EXECUTOR_PLUGIN
@shared.PARAM
@shared.READABLE
@click.option("--strict", is_flag=True, help="Warnings fail too; what lint only guesses is a note.")
@click.option("--ignore", multiple=True, metavar="CODE", help="Leave findings of this code out. Repeatable.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "sarif", "github"]),
    default="text",
    show_default=True,
    help="How findings are printed; `github` is for workflow logs.",
)
@click.option(
    "--output",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the findings there instead of stdout.",
)
@click.option("--verbose", is_flag=True, help="Also what is fine, and remarks.")
def lint(
    output: Output,
    *,
    paths: tuple[Path, ...],
    specs: tuple[Path, ...],
    ignore: tuple[str, ...],
    form: str,
    file: Path | None,
    strict: bool,
    verbose: bool,
    **said: Any,
) -> int:
    """Find what is wrong in specs, skills, tasks and agents.

    PATH is an eval spec, an experiment, a .vally.yaml, a skill, a task directory, a benchmark, an agent, or a
    folder that holds any of these; without one, the current folder. Nothing is run, and no plugin is loaded
    but those that flags name. What the codes mean stands in docs/reference/lint.md.

    Exits 1 when there is an error (with --strict also a warning), 2 when a path does not exist.
    """
    _check_codes(ignore)
    checked = Linter(_options(**said), ignore).check(_targets(paths, specs))
    notes: set[Finding] = set()
    if strict:
        checked, notes = _strictly(checked)
    failed = _failed(checked, strict=strict)
    shown = "json" if output.json else form
    ink = PLAIN if file else output.ink
    text = _written(checked, shown, ink, failed=failed, verbose=verbose, notes=notes)
    if file is None:
        sys.stdout.write(printable(text, colors=output.ink.enabled) if shown == "text" else text)
    else:
        _write(file, text)
        output.note(f"{_counts(checked)}. Wrote {file}")
    return 1 if failed else 0


def _options(
    *,
    known_domains: Path | None,
    allowed_external_deps: Path | None,
    params: dict[str, str],
    grader_plugins: tuple[str, ...],
    executor_plugins: tuple[str, ...],
    pass_env: tuple[str, ...],
    allow_paths: tuple[str, ...],
) -> LintOptions:
    return LintOptions(
        grader_plugins=placed_plugins(grader_plugins),
        executor_plugins=placed_plugins(executor_plugins),
        params=params,
        allowed=Allowance(pass_env, allow_paths),
        known_domains=read_entries(known_domains) if known_domains else None,
        allowed_deps=frozenset(read_entries(allowed_external_deps)) if allowed_external_deps else None,
    )


def _targets(paths: Sequence[Path], specs: Sequence[Path]) -> list[LintTarget]:
    """What was named; the current folder where nothing was."""
    found = [target for path in specs for target in specs_of(path)]
    for path in paths or (() if specs else (Path(),)):
        found += targets_of(path)
    return list({(target.kind, target.path.resolve()): target for target in reversed(found)}.values())[::-1]


def _check_codes(ignore: Sequence[str]) -> None:
    if unknown := next((code for code in ignore if code not in RULES), None):
        hint = did_you_mean(unknown, RULES) or " docs/reference/lint.md lists the codes."
        raise click.UsageError(f"--ignore {unknown}: there is no such code.{hint}")


def _strictly(checked: Sequence[LintResult]) -> tuple[list[LintResult], set[Finding]]:
    """As `--strict` takes it: guesses are notes, which are shown and fail nothing."""
    taken = [replace(one, findings=[strictly(found) for found in one.findings]) for one in checked]
    before = {found for one in checked for found in one.findings}
    return taken, {found for one in taken for found in one.findings} - before


def _failed(checked: Sequence[LintResult], *, strict: bool) -> bool:
    grave = ("error", "warning") if strict else ("error",)
    return any(finding.severity in grave for one in checked for finding in one.findings)


def _written(
    checked: Sequence[LintResult],
    form: str,
    ink: TerminalStyle,
    *,
    failed: bool,
    verbose: bool,
    notes: Collection[Finding],
) -> str:
    findings = [finding for one in checked for finding in one.findings]
    here = Path.cwd()
    if form == "json":
        rows = [_row(finding) for finding in findings]
        targets = [{"kind": one.target.kind, "path": str(one.target.path)} for one in checked]
        return write_json("lint", ok=not failed, targets=targets, findings=rows) + "\n"
    if form == "sarif":
        return (
            printable_json(
                json.dumps(to_sarif(findings, root=here, version=__version__), indent=2, ensure_ascii=False)
            )
            + "\n"
        )
    if form == "github":
        return "".join(f"{annotation(finding, here)}\n" for finding in findings)
    return "".join(f"{line}\n" for line in _lines(checked, ink, verbose=verbose, notes=notes))


def _row(finding: Finding) -> dict[str, Any]:
    place = finding.place
    at = {"file": str(place.file), "line": place.line, "column": place.column} if place else {}
    return {"code": finding.code, "severity": finding.severity, **at, "message": finding.message}


def _lines(
    checked: Sequence[LintResult], ink: TerminalStyle, *, verbose: bool, notes: Collection[Finding]
) -> Iterator[str]:
    """What is fine, then findings by file, the columns in line, then counts; `notes` are shown always."""
    by_file: dict[str, list[Finding]] = {}
    for one in checked:
        shown = [found for found in one.findings if verbose or found.severity != "info" or found in notes]
        if verbose and not shown:
            yield f"{ink.paint(safe(str(one.target.path)), 'bold')}  {ink.paint('ok', 'green')} ({one.what})"
        for finding in shown:
            by_file.setdefault(str(finding.place.file) if finding.place else "", []).append(finding)
    for file, findings in by_file.items():
        yield ink.paint(safe(file), "bold")
        rows = sorted(((_at(finding), finding) for finding in findings), key=lambda row: row[0])
        width = max(len(_shown(at)) for at, _ in rows)
        for at, finding in rows:
            grave = ink.paint(finding.severity.ljust(7), _STYLES[finding.severity])
            code = ink.paint(f"[{finding.code}]", "dim")
            yield f"  {_shown(at).ljust(width)}  {grave}  {safe(finding.message)} {code}"
        yield ""
    yield _counts(checked, verbose=verbose)


def _at(finding: Finding) -> tuple[int, int]:
    return (finding.place.line, finding.place.column) if finding.place else (1, 1)


def _shown(at: tuple[int, int]) -> str:
    return f"{at[0]}:{at[1]}"


def _counts(checked: Sequence[LintResult], *, verbose: bool = True) -> str:
    severities = [finding.severity for one in checked for finding in one.findings]
    counts = {name: severities.count(name) for name in ("error", "warning", "info")}
    words = [plural(counts["error"], "error"), plural(counts["warning"], "warning")]
    if counts["info"]:
        words.append(plural(counts["info"], "remark") + ("" if verbose else " (--verbose shows them)"))
    return f"{plural(len(checked), 'thing')} checked: {', '.join(words)}"


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write {file}: {error.strerror}") from error
