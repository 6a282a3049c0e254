"""`valkyrie queue …`."""

from __future__ import annotations

import time

from valkyrie.cli.options import tracker, verb
from valkyrie.cli.output import Output
from valkyrie.report.formats import short_id
from valkyrie.report.queue import executor_table, queue_sentence, queue_table


@verb("status", examples="valk queue status\nvalk queue status --json | jq '.queue.entries[].run_id'")
def status(output: Output) -> int:
    """Show what waits, what runs, and who works.

    Open runs by priority (0 first), then by age. They share what room there is: people first, then each
    person's runs, and each step of priority doubles the share. Then the executors that live, with the age
    of their last heartbeat.
    """
    from valkyrie.views import to_json

    with tracker() as opened:
        queue = opened.queue()
    output.emit("queue", queue=to_json(queue))
    if output.json:
        return 0
    now = time.time()
    output.line(queue_sentence(queue))
    if queue.entries:
        output.line()
        output.table(queue_table(queue, output.ink, now=now, whole_ids=not output.terminal))
    if queue.executors:
        output.line()
        output.table(executor_table(queue, now=now))
    elif queue.entries:
        output.note(_what_goes_on(queue.entries[0].run_id))
    return 0


def _what_goes_on(run_id: str) -> str:
    from valkyrie.config import effective

    if effective("tracker_url").value:
        return "No executor is at work: whoever runs the tracker starts one with `valkyrie executor`."
    return f"No executor is at work: valk run resume {short_id(run_id)} goes on."
