"""`valkyrie executor`: work off the runs of a database, on as many machines as one likes."""

from __future__ import annotations

import os
import sys

from valkyrie.cli.options import verb
from valkyrie.cli.output import Output


@verb(
    "executor",
    examples="VALKYRIE_DATABASE_URL=postgresql://tracker@db/valkyrie VALKYRIE_SECRET_KEY=… valkyrie executor",
)
def executor(output: Output) -> None:
    """Work off the runs of a tracker's database.

    For the machines of a team: each executor leases trials from the tracker's database
    (VALKYRIE_DATABASE_URL), opens what was sealed for them (VALKYRIE_SECRET_KEY, the same as the tracker's)
    and keeps its own scratch data in VALKYRIE_HOME. Executors on several machines need a common place for
    artifacts: S3_BUCKET, or artifacts_folder. SIGTERM or Ctrl+C lets trials under way finish; a second one
    gives them back to the queue.
    """
    from valkyrie.executor.__main__ import serve
    from valkyrie.report.formats import safe
    from valkyrie.settings import data_folder, database_url

    folder = data_folder()
    place = "PostgreSQL" if (database_url() or "").startswith("postgres") else "SQLite"

    def announce() -> None:
        output.emit("executor", event="start", pid=os.getpid(), data_folder=str(folder), database=place)
        output.line(
            f"Executor {os.getpid()} on {place}, scratch data in {safe(str(folder))}. Ctrl+C drains it."
        )
        sys.stdout.flush()
        if place == "PostgreSQL" and (apart := no_common_place()):
            output.note(f"Warning: {apart}")

    serve(str(folder), announce)


def no_common_place() -> str | None:
    """What whoever runs executors apart from the tracker must know, where artifacts have no common place."""
    from valkyrie.config import effective

    if effective("S3_BUCKET").value or effective("artifacts_folder").value:
        return None
    return (
        "Agents and artifacts are kept in the data folder. Executors with another one need a common place, "
        "for them and the tracker: S3_BUCKET, or VALKYRIE_ARTIFACTS_FOLDER."
    )
