"""An agent's software is installed once, however many trials use it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.abilities import need_local_sandboxes
from valkyrie.agents.layers import BUILDS
from valkyrie.tracker.local import LocalTracker
from valkyrie.views import RunRequest, TrialFilter

pytestmark = pytest.mark.slow

TRIALS = 1000


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_thousand_trials_install_their_agent_once(tracker: LocalTracker, tmp_path: Path) -> None:
    need_local_sandboxes(tmp_path / "try", network="none")
    codes: list[int | None] = []
    for dataset in (str(TRIALS - 20), "20"):
        request = RunRequest(
            agent="tests.integration.layered:LayeredAgent",
            benchmark="valkyrie.testing.null:NullBenchmark",
            dataset=dataset,
            provider="local",
            concurrency=8,
        )
        run = tracker.wait(tracker.start(request).run.id, timeout=1000)
        assert (run.state, run.counts["FINISHED"]) == ("FINISHED", int(dataset))
        rows, _ = tracker.trials(run.id, TrialFilter(limit=TRIALS))
        codes += [row.exit_code for row in rows]
    assert codes == [0] * TRIALS
    assert len(builds(tmp_path / "home")) == 1


def builds(home: Path) -> list[str]:
    """What was installed below a data folder, one line each time."""
    (record,) = home.rglob(BUILDS)
    return record.read_text().splitlines()
