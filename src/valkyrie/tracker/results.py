"""Verbs that take what a run left: results, outputs, logs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from valkyrie.artifact_store.protocol import results_key
from valkyrie.domain import Json
from valkyrie.errors import UsageError, UserError
from valkyrie.store import regrades, runs
from valkyrie.store.layout import encode_task_id
from valkyrie.tracker.app import CallerContext
from valkyrie.tracker.kept import Kept
from valkyrie.tracker.run_reader import RunReader
from valkyrie.views import LogLine, LogQuery, OutputsWanted, ResultsLink, ResultsWanted

if TYPE_CHECKING:
    from valkyrie.store import Connection


class ResultVerbs:
    """Take what runs left, wherever it is kept."""

    def __init__(self, context: CallerContext, reader: RunReader) -> None:
        self._context = context
        self._reader = reader

    def results(self, ref: str, request: ResultsWanted = ResultsWanted()) -> Json:
        from valkyrie.report.results import results_document, told_arguments

        with self._context.store.reading() as connection:
            run_id = self._checked(connection, ref, request.task_ids)
            view = self._reader.view(connection, run_id, detailed=True)
            row = runs.get(connection, run_id)
            view = replace(view, arguments=told_arguments(row))
            rows = runs.each_result(connection, run_id)
            if request.task_ids is None:
                return results_document(view, row.final_evaluation, rows, passes=row.passes)
            wanted = set(request.task_ids)
            chosen = [row for row in rows if row.task_id in wanted]
        from valkyrie.tracker.prepare import rescored

        final, score = rescored(row, chosen, self._context.organisation, request.headers)
        part = replace(view, score=score, cost=None)
        return results_document(part, final, chosen, passes=row.passes, subset=True)

    def results_text(self, ref: str, request: ResultsWanted = ResultsWanted()) -> Iterator[str]:
        from valkyrie.report.results import document_text, results_text, told_arguments

        if request.task_ids is not None:
            yield document_text(self.results(ref, request)) + "\n"
            return
        with self._context.store.reading() as connection:
            run_id = self._context.resolve(connection, ref)
            view = self._reader.view(connection, run_id, detailed=True)
            row = runs.get(connection, run_id)
        view = replace(view, arguments=told_arguments(row))
        yield from results_text(view, row.final_evaluation, self._each_result(run_id), passes=row.passes)

    def _each_result(self, run_id: str) -> Iterator[Any]:
        """Yield the trials with their results: whoever reads slowly keeps no transaction open."""
        after = -1
        while True:
            with self._context.store.reading() as connection:
                rows = runs.results_behind(connection, run_id, after)
            yield from rows
            if not rows:
                return
            after = rows[-1].position

    def upload_results(self, ref: str, request: ResultsWanted = ResultsWanted()) -> ResultsLink:
        document = self.results(ref, request)
        view = self._reader.fetch(ref)
        with self._context.store.reading() as connection:
            place = runs.get(connection, view.id).place or {}
        artifacts = self._context.organisation.artifacts(place.get("artifacts"))
        if artifacts is None:
            raise UserError(
                "There is no bucket to upload to: `valk config set S3_BUCKET NAME` (or artifacts_folder), "
                "or `valk run results` without --s3 writes a file.",
                cause="artifacts_config",
            )
        chosen = request.task_ids
        subset = hashlib.sha256("\n".join(sorted(chosen)).encode()).hexdigest()[:12] if chosen else None
        key = results_key(view.id, view.benchmark, subset)
        artifacts.put_text(key, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        return ResultsLink(artifacts.url(key), artifacts.link(key), artifacts.console_url(key))

    def outputs(
        self, ref: str, destination: Path, request: OutputsWanted = OutputsWanted()
    ) -> Sequence[Path]:
        from valkyrie.client.files import OutputsWriter

        writer = OutputsWriter(destination)
        for task_id, k, number, kept in self._last_attempts(ref, request.task_ids):
            folder = Path(encode_task_id(task_id), str(k) if k else "")
            for name, pieces, _size in kept.files(task_id, k, number):
                if _is_wanted(name, request.files):
                    writer.write(folder, name, pieces)
        return writer.close()

    def output_files(
        self, ref: str, request: OutputsWanted = OutputsWanted()
    ) -> Iterator[tuple[str, Iterator[bytes], int]]:
        """Yield every file kept of each trial's last attempt: its relative name, its bytes, their number."""
        for task_id, k, number, kept in self._last_attempts(ref, request.task_ids):
            folder = Path(encode_task_id(task_id), str(k) if k else "")
            for name, pieces, size in kept.files(task_id, k, number):
                if _is_wanted(name, request.files):
                    yield (folder / name).as_posix(), pieces, size

    def _last_attempts(
        self, ref: str, task_ids: Sequence[str] | None
    ) -> Iterator[tuple[str, int, int, Kept]]:
        with self._context.store.reading() as connection:
            run_id = self._checked(connection, ref, task_ids)
            wanted = None if task_ids is None else set(task_ids)
            shown = regrades.attempts_shown(connection, run_id)
            rows = [
                (row.task_id, row.k, shown.get((row.task_id, row.k), row.attempts))
                for row in runs.each_result(connection, run_id)
                if wanted is None or row.task_id in wanted
            ]
        kept = self._kept(run_id)
        for task_id, k, number in rows:
            yield task_id, k, number, kept

    def _checked(self, connection: Connection, ref: str, task_ids: Sequence[str] | None) -> str:
        run_id = self._context.resolve(connection, ref)
        if task_ids is not None:
            runs.check_tasks(connection, run_id, task_ids)
        return run_id

    def _kept(self, run_id: str) -> Kept:
        """Return what the run kept, here or elsewhere."""
        with self._context.store.reading() as connection:
            place = runs.get(connection, run_id).place or {}
        return Kept(self._context.data.run(run_id), self._context.organisation, place)

    def logs(
        self, ref: str, task_id: str, *, k: int = 0, attempt: int | None = None, follow: bool = False
    ) -> Iterator[str]:
        found = self._reader.attempts(ref, task_id, k)
        if not found:
            raise UserError(f"Task {task_id!r} has not been attempted yet.")
        numbers = [one.number for one in found]
        number = attempt if attempt is not None else numbers[-1]
        if number not in numbers:
            raise UsageError(f"Task {task_id!r} has attempts {numbers[0]} to {numbers[-1]}, not {number}.")
        with self._context.store.reading() as connection:
            run_id = self._context.resolve(connection, ref)

        def ended() -> bool:
            return not follow or self._reader.attempts(ref, task_id, k)[number - 1].outcome is not None

        return self._kept(run_id).log(task_id, k, number, found[number - 1].started_at, ended)

    def run_logs(self, ref: str, query: LogQuery) -> Iterator[LogLine]:
        from valkyrie.tracker.run_logs import StoredLogs, read_run_logs

        with self._context.store.reading() as connection:
            run_id = self._checked(connection, ref, query.task_ids)
        source = StoredLogs(self._context.store, run_id, self._context.data.run(run_id), self._kept(run_id))
        return read_run_logs(source, query)


def _is_wanted(name: str, files: Sequence[str] | None) -> bool:
    return files is None or any(fnmatchcase(name, pattern) for pattern in files)
