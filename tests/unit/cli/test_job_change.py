"""`benchmark-job cancel`, `resume`, `retry`, `delete`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import valkyrie.tracker
from tests.unit.cli.fake_jobs import FakeJobs, make_job
from tests.unit.cli.fake_tracker import make_run
from tests.unit.cli.said import Said
from valkyrie.views.jobs import JobAgent, JobChange

Valk = Callable[..., Said]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeJobs:
    going = make_run(
        "run-one", state="IN_PROGRESS", total=4, counts={"FINISHED": 1, "BUILDING": 1, "IN_PROGRESS": 2}
    )
    tracker = FakeJobs([make_job(state="running", runs=[going])])
    monkeypatch.setattr(valkyrie.tracker, "open_tracker", lambda **_options: tracker)
    return tracker


def test_cancel_lets_trials_finish_unless_forced(valk: Valk, fake: FakeJobs) -> None:
    done = valk("job", "cancel", "nightly")
    assert done.code == 0 and "cancelled" in done.out
    assert ("stop_job", "job-aaaa1111", False) in fake.asked
    asks = valk("job", "cancel", "nightly", "--force")
    assert asks.code == 2 and "Kill 3 trials of job nightly" in asks.err and "--yes" in asks.err
    assert valk("job", "cancel", "nightly", "--force", "--yes", "--json").json["state"] == "cancelled"
    assert ("stop_job", "job-aaaa1111", True) in fake.asked


def test_resume_says_what_is_different(valk: Valk, fake: FakeJobs) -> None:
    done = valk(
        *("job", "resume", "nightly", "--agent", "codex:gpt-5", "--scenarios", "a", "b", "--n-attempts", "5"),
        *("--n-concurrent-trials", "50", "--timeout", "60", "--timeout-multiplier", "2", "--time-limit", "9"),
    )
    assert done.code == 0 and "Job goes on" in done.out
    added = [JobAgent("codex", "gpt-5")]
    assert ("resume_job", "nightly", JobChange(added, ("a", "b"), 5, 50, 60, 2, 9)) in fake.asked
    valk("job", "resume", "nightly")
    assert ("resume_job", "nightly", JobChange(agents=[])) in fake.asked


def test_retry_and_delete(valk: Valk, fake: FakeJobs) -> None:
    assert valk("job", "retry", "nightly", "--category", "infrastructure").code == 0
    assert ("retry_job", "nightly", "infrastructure", None) in fake.asked
    assert valk("job", "retry", "nightly", "--category", "nonsense").code == 2
    assert valk("job", "delete", "nightly").code == 2
    assert valk("job", "delete", "nightly", "--yes", "-o", "json").json["job_id"] == "job-aaaa1111"
    assert ("delete_job", "job-aaaa1111") in fake.asked


def test_a_job_with_nothing_left_is_not_followed(valk: Valk, fake: FakeJobs) -> None:
    fake.jobs = {"job-1": make_job("job-1", state="failed")}
    done = valk("job", "resume", "job-1", "--follow")
    assert done.code == 0 and "Nothing to do" in done.out
