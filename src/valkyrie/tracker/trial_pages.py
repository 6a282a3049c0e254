"""All trials of a run, read page by page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from valkyrie.tracker.protocol import Tracker
from valkyrie.views import TrialDetail, TrialFilter, TrialView

PAGE = 1000


def each_trial(
    tracker: Tracker,
    ref: str,
    *,
    states: Sequence[str] = (),
    search: str | None = None,
    detail: TrialDetail = "trial",
) -> Iterator[TrialView]:
    """Yield the trials of a run in their order, without holding more than a page."""
    query = TrialFilter(states=tuple(states), search=search, limit=PAGE, after=-1, detail=detail)
    while True:
        page, total = tracker.trials(ref, query)
        yield from page
        if query.after is None:  # a tracker of an earlier version, which pages by number
            query = replace(query, offset=query.offset + len(page))
            if not page or query.offset >= total:
                return
        elif len(page) < PAGE:
            return
        elif page[-1].position <= query.after or not page[-1].position:
            query = replace(query, after=None, offset=len(page))
        else:
            query = replace(query, after=page[-1].position)
