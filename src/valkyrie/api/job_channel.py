"""One watched job: it changes when one of its runs does."""

from __future__ import annotations

from typing import ClassVar

from valkyrie.api.channel import Channel, Kind, Update, whole_event
from valkyrie.store import jobs


class JobChannel(Channel):
    """The newest state of one job, its runs in it; trials are told by the streams of its runs."""

    kind: ClassVar[Kind] = "job"

    def _look(self) -> tuple[Update, bool, bool] | None:
        before = self._latest
        alive = self._office.handing.alive()
        if before and alive == self._alive:
            with self._office.store.reading() as connection:
                if jobs.version(connection, self.subject) == before.version:
                    return None
        view = self._office.tracker(self._identity).fetch_job(self.subject)
        number = before.number + 1 if before else 1
        told = whole_event("job", view, ended=view.ended)
        return Update(number, view.version, told, None), alive, view.ended
