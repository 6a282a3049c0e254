"""`disk`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from valkyrie.cli.options import tracker, verb
from valkyrie.cli.output import Output
from valkyrie.report.formats import safe, short_id, size
from valkyrie.report.layout import Column, Table

if TYPE_CHECKING:
    from valkyrie.views import DiskView


@verb("disk", examples="valk disk")
def disk(output: Output) -> None:
    """Show where the bytes are.

    What the data folder holds, and which runs take most of it; what runs keep in a shared folder or a bucket;
    and what the database can give back. `valk run delete` makes room, `valkyrie db compact` gives it back.
    """
    from valkyrie.cli.pager import show_table
    from valkyrie.views import to_json

    with tracker() as opened:
        view = opened.disk()
    output.emit("disk", disk=to_json(view))
    if output.json:
        return
    output.panel("Disk", _rows(view))
    if view.runs:
        show_table(_table(view, output), output)
        output.panel("Next", [("Make room", f"valk run delete {short_id(view.runs[0][0])}")])


def _rows(view: DiskView) -> list[tuple[str, str]]:
    rows = [("Used", size(view.total_bytes))]
    if view.data_folder:  # a tracker tells it only to those whose machine it is
        rows = [("Folder", safe(view.data_folder)), *rows, ("Free", size(view.free_bytes))]
    rows += [(safe(what), size(count)) for what, count in view.parts]
    rows += [(safe(where), size(count)) for where, count in view.elsewhere]
    if view.reclaimable_bytes:
        rows.append(("Can be given back", f"{size(view.reclaimable_bytes)} (valkyrie db compact)"))
    return rows


def _table(view: DiskView, output: Output) -> Table:
    table = Table([Column("Run"), Column("Status"), Column("Size", "right")])
    table.rows += [[run_id, output.ink.state(state), size(count)] for run_id, state, count in view.runs]
    return table
