"""`export` and `ingest`: specs and results in the forms of other tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from benchmark_runner.terminal import safe
from valkyrie.cli import eval_options as shared
from valkyrie.cli.eval_options import placed_plugins
from valkyrie.cli.eval_session import spec_file
from valkyrie.cli.options import own_folder, tracker, verb
from valkyrie.cli.output import Output
from valkyrie.config.permissions import Allowance
from valkyrie.evals.export.formats import ExportRequest, find_exporter
from valkyrie.evals.export.sources import KeptFiles, from_folders, from_tracker
from valkyrie.ingest import sources
from valkyrie.report.formats import plural, short_id
from valkyrie.specs.project import choose_stimuli, find_project, parse_tags
from valkyrie.specs.reader import read_spec
from valkyrie.views import to_json

if TYPE_CHECKING:
    from valkyrie.evals.export.formats import Exported
    from valkyrie.evals.results import Invocation
    from valkyrie.specs.model import EvalSpec
    from valkyrie.views import IngestedRun


_WITHOUT_TRAJECTORY = ("csv", "junit", "markdown")
"""Forms that cannot hold one, so that none is fetched."""


@verb(
    "export",
    examples="valk export --eval-spec evals/eval.yaml --exporter harbor\n"
    "valk export -e eval.yaml --exporter harbor -- joinTurnsWith='\\n\\n' image=python:3.12\n"
    "valk export ./vally-results --exporter junit\n"
    "valk export 3f2a --exporter csv --output-dir ./tables",
)
@click.argument("words", metavar="[RUN|JOB|DIR]… [-- KEY=VALUE…]", nargs=-1)
@click.option(
    "--eval-spec",
    "-e",
    "files",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A spec to export. Repeatable.",
)
@click.option(
    "--exporter",
    required=True,
    metavar="NAME",
    help="harbor, junit, csv, jsonl, markdown, atif, or a plugin's.",
)
@click.option("--output-dir", type=click.Path(path_type=Path), help="Where to [default: ./<exporter>/].")
@shared.TAG
@shared.GRADER_PLUGIN
@shared.PARAM
@shared.READABLE
@click.option("--verbose", is_flag=True, help="Name everything that was written.")
def export(
    output: Output,
    *,
    words: tuple[str, ...],
    files: tuple[Path, ...],
    exporter: str,
    output_dir: Path | None,
    tags: tuple[str, ...],
    grader_plugins: tuple[str, ...],
    params: dict[str, str],
    pass_env: tuple[str, ...],
    allow_paths: tuple[str, ...],
    verbose: bool,
) -> int:
    """Write evals or their results in another tool's form.

    With --eval-spec each stimulus is exported: as a Harbor task directory (harbor), or as a list (csv, jsonl,
    junit). With runs, jobs or result folders their trials are: junit, csv, jsonl, markdown, atif. What
    cannot be taken along, such as graders that ask a model, is listed. Options of the exporter follow --.
    Exit 1 when nothing could be exported.
    """
    sources, options = _split(words)
    if bool(sources) == bool(files):
        raise click.UsageError(
            "Name what to export: either --eval-spec PATH, or runs, jobs and result folders."
        )
    if sources and (tags or params or grader_plugins):
        raise click.UsageError("--tag, --param and --grader-plugin are about specs (--eval-spec).")
    function = find_exporter(exporter)
    folder = output_dir or own_folder(exporter.replace(":", "-"))
    with ExitStack() as opened:  # results are read while they are written
        request = ExportRequest(
            output=folder,
            specs=_specs(files, tags, params, Allowance(pass_env, allow_paths)) if files else (),
            results=_results(sources, opened, exporter, folder) if sources else None,
            options=options,
            grader_plugins=placed_plugins(grader_plugins),
        )
        done = function(request)
    _show(output, done, folder, verbose=verbose)
    return 0 if done.written else 1


def _split(words: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """What to export, and the exporter's options."""
    sources: list[str] = []
    options: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or Path(word).exists():
            sources.append(word)
        elif key in options:
            raise click.UsageError(f"{key} is given twice.")
        else:
            options[key] = value
    return sources, options


def _specs(
    files: Sequence[Path], tags: Sequence[str], params: Mapping[str, str], allowed: Allowance
) -> list[EvalSpec]:
    specs = [
        read_spec(file, params=params, project=find_project(file.parent), allowed=allowed).spec
        for file in map(spec_file, files)
    ]
    chosen = choose_stimuli(specs, parse_tags(tags)) if tags else specs
    if not chosen:
        raise click.UsageError(f"No stimulus has {' and '.join(tags)}.")
    return chosen


def _results(sources: Sequence[str], opened: ExitStack, exporter: str, output: Path) -> Invocation:
    folders = [Path(word) for word in sources if Path(word).exists()]
    refs = [word for word in sources if not Path(word).exists()]
    if folders and refs:
        raise click.UsageError("Export folders or runs, not both at once.")
    if folders:
        return from_folders(folders)
    kept = None
    if exporter == "jsonl":
        kept = KeptFiles(output / "trials", logs=True)
    elif exporter not in _WITHOUT_TRAJECTORY:
        folder = opened.enter_context(TemporaryDirectory(prefix="valkyrie-export-"))
        kept = KeptFiles(Path(folder) / "trials")
    return from_tracker(opened.enter_context(tracker()), refs, kept)


def _show(output: Output, done: Exported, folder: Path, *, verbose: bool) -> None:
    output.emit(
        "export",
        folder=str(folder.absolute()),
        written=[str(path) for path in done.written],
        warnings=list(done.warnings),
    )
    output.notices(done.warnings)
    if verbose:
        output.lines(safe(str(path)) for path in done.written)
    if not done.written:
        output.note("Nothing was exported.")
        return
    if len(done.written) == 1:
        output.line(f"Wrote {safe(str(done.written[0]))}")
    else:
        output.line(f"Wrote {plural(len(done.written), 'task')} to {safe(str(folder))}")
    if done.next_step:
        output.line(f"Next: {done.next_step}")


# `ingest`: results that came about elsewhere, as runs of this store.


@verb(
    "ingest",
    examples="valk ingest ./vally-results\nvalk ingest ./ci-artifacts --label nightly --dry-run\n"
    "valk ingest results/run-1 --replace\n"
    "valk run list && valk compare 3f2a 9c1e",
)
@click.argument("folders", metavar="DIR…", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--label", metavar="TEXT", help="A label for the runs [default: the variant's name].")
@click.option(
    "--replace", is_flag=True, help="Take runs again that were ingested and say something else now."
)
@click.option("--dry-run", is_flag=True, help="Say what would be stored, and store nothing.")
@click.option("--store", metavar="PATH", hidden=True, help="Not here: VALKYRIE_HOME names another store.")
def ingest(
    output: Output,
    *,
    folders: tuple[Path, ...],
    label: str | None,
    replace: bool,
    dry_run: bool,
    store: str | None,
) -> int:
    """Store results that came about elsewhere.

    Each DIR is a folder with a results.jsonl in or below it: of `valkyrie eval`, of an experiment, or of
    another tool that writes the same records; or the folder of a benchmark runner's run (results/RUN_ID), or
    one that holds several. Every eval × model × variant, and every run of a runner, becomes a finished run,
    which `run list`, `run tasks`, `run results` and `compare` see like any other. The same results are stored
    once, however often they are ingested. Errors stay errors; nothing of such a run can be resumed.
    """
    if store is not None:
        raise click.UsageError(
            "There is no --store: results go to the store all commands use. VALKYRIE_HOME names another data "
            "folder, VALKYRIE_DATABASE_URL another database."
        )
    with tracker() as opened:
        found = sources.ingest(opened, folders, label=label, dry_run=dry_run, replace=replace)
    output.emit("ingest", dry_run=dry_run, runs=[to_json(one) for one in found])
    if not output.json:
        _show_ingested(output, found, dry_run=dry_run)
    return 0


def _show_ingested(output: Output, found: Sequence[IngestedRun], *, dry_run: bool) -> None:
    for one in found:
        trials = plural(one.trials, "trial") + (f", {plural(one.errors, 'error')}" if one.errors else "")
        output.line(f"{one.status:<8}  {short_id(one.run_id)}  {safe(one.name)}  ({trials})")
        output.notices(f"{one.name}: {notice}" for notice in one.notices)
    stored = [one for one in found if one.status in ("stored", "replaced")]
    if dry_run:
        output.line("Nothing was stored (--dry-run).")
    elif len(stored) > 1:
        output.line(f"Next: valk compare {' '.join(short_id(one.run_id) for one in stored[:2])}")
    elif stored:
        output.line(f"Next: valk run tasks {short_id(stored[0].run_id)}")
