"""`ingest`: results that came about elsewhere, as runs of this store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from valkyrie.cli.options import tracker, verb
from valkyrie.cli.output import Output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from valkyrie.views import IngestedRun


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
    from valkyrie.evals import ingesting
    from valkyrie.views import to_json

    with tracker() as opened:
        found = ingesting.ingest(opened, folders, label=label, dry_run=dry_run, replace=replace)
    output.emit("ingest", dry_run=dry_run, runs=[to_json(one) for one in found])
    if not output.json:
        _show(output, found, dry_run=dry_run)
    return 0


def _show(output: Output, found: Sequence[IngestedRun], *, dry_run: bool) -> None:
    from valkyrie.report.formats import plural, safe, short_id

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
