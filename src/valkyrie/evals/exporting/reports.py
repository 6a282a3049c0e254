"""Reports for other tools and for people: JUnit and Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from valkyrie.errors import UsageError
from valkyrie.evals.exporting.protocol import Exported, ExportRequest
from valkyrie.evals.exporting.registry import check_options
from valkyrie.evals.results import EvalResult, Invocation, StimulusResult
from valkyrie.keeping.folders import disk_errors, whole_file
from valkyrie.specs.model import EvalSpec


def export_junit(request: ExportRequest) -> Exported:
    """eval-results.junit.xml; stimuli of a spec that nobody ran are skipped test cases."""
    from valkyrie.evals.junit import junit_xml
    from valkyrie.evals.writing import JUNIT

    check_options(request.options, (), "junit")
    found = request.results or _not_run(request)
    return Exported([write_text(request.output / JUNIT, junit_xml(found))])


def export_markdown(request: ExportRequest) -> Exported:
    """eval-results.md."""
    from valkyrie.evals.markdown import markdown
    from valkyrie.evals.writing import REPORT

    check_options(request.options, (), "markdown")
    if request.results is None:
        raise UsageError("markdown reports results; name a run, a job or a folder with a results.jsonl.")
    return Exported([write_text(request.output / REPORT, markdown(request.results))])


def _not_run(request: ExportRequest) -> Invocation:
    return Invocation([_skipped(spec) for spec in request.specs], name="export")


def _skipped(spec: EvalSpec) -> EvalResult:
    return EvalResult(
        name=spec.name,
        file=str(spec.file),
        model=spec.defaults.model,
        executor=spec.defaults.executor or "",
        stimuli=[StimulusResult(one.name, one.prompt, (), 0) for one in spec.stimuli],
        skipped="exported, not run",
    )


def write_text(path: Path, text: str) -> Path:
    """Write a file, whole or not at all."""
    return write_lines(path, (text,))


def write_lines(path: Path, lines: Iterable[str]) -> Path:
    """Write a file as its lines come, whole or not at all."""
    with disk_errors(f"write to {path.parent}", "output"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.writelines(line.encode("utf-8", "replace") for line in lines)
    return path
