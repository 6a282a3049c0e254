"""What names a run: ids, jobs, agents of jobs, and `latest`."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

from tests.stored_runs import add_run
from valkyrie.errors import UnknownError, UsageError
from valkyrie.store import Store, jobs, runs

AGENTS = (("oracle", None), ("claude-code", "opus"), ("claude-code", "vendor/haiku"))


def add_job(store: Store, name: str, agents: Any = AGENTS, **more: Any) -> list[str]:
    """Store a job with a run of each agent; the ids of the runs."""
    job_id = str(uuid.uuid4())
    values = {"id": job_id, "name": name, "created_at": time.time(), "concurrency": 1, **more}
    with store.writing() as connection:
        jobs.create(connection, {"about": {}, "arguments": {}, **values})
    shared = {"org_id": values.get("org_id", "default"), "started_by": values.get("started_by")}
    return [
        add_run(store, 1, agent=agent, model=model, job_id=job_id, job_position=at, **shared)
        for at, (agent, model) in enumerate(agents)
    ]


def resolved(store: Store, ref: str, person: str | None = None, org_id: str = "default") -> str:
    with store.reading() as connection:
        return runs.resolve(connection, ref, org_id, person)


def test_a_run_is_named_by_its_job_and_agent(store: Store) -> None:
    oracle, opus, haiku = add_job(store, "team/nightly")
    assert resolved(store, "team/nightly/oracle") == oracle
    assert resolved(store, " team/nightly/claude-code:opus ") == opus
    assert resolved(store, "team/nightly/claude-code:vendor/haiku") == haiku
    with store.reading() as connection:
        job_id = jobs.resolve(connection, "team/nightly", "default")
    assert resolved(store, f"{job_id}/oracle") == resolved(store, f"{job_id[:8]}/oracle") == oracle


def test_a_name_that_means_several_runs_is_refused_with_words_that_mean_one(store: Store) -> None:
    ids = add_job(store, "nightly")
    for ref, wanted in (("nightly", 3), ("nightly/claude-code", 2)):
        with pytest.raises(UsageError) as refused:
            resolved(store, ref)
        offered = [line.split("  ")[1] for line in str(refused.value).splitlines()[1:]]
        assert [resolved(store, word) for word in offered] == ids[-wanted:]


def test_twins_of_a_job_are_offered_by_id(store: Store) -> None:
    ids = add_job(store, "twins", [("oracle", None), ("oracle", None)])
    with pytest.raises(UsageError, match="2 runs of 'oracle'") as refused:
        resolved(store, "twins/oracle")
    assert all(run_id in str(refused.value) for run_id in ids)


def test_a_job_of_one_run_stands_for_it(store: Store) -> None:
    [only] = add_job(store, "cafe", AGENTS[:1])
    with store.reading() as connection:
        job_id = jobs.resolve(connection, "cafe", "default")
    assert resolved(store, "cafe") == resolved(store, job_id) == only
    # The name of a job comes before the beginning of an id, and a whole id before both.
    begins_so = add_run(store, 1, id="cafe0000-0000-4000-8000-000000000000")
    assert resolved(store, "cafe") == only and resolved(store, "cafe0") == begins_so
    assert resolved(store, begins_so.upper()) == begins_so


def test_the_latest_is_what_the_person_who_asks_started_last(store: Store) -> None:
    mine = add_run(store, 1, started_by="ann", created_at=1.0)
    theirs = add_run(store, 1, started_by="bob", created_at=2.0)
    add_run(store, 1, started_by="ann", created_at=3.0, org_id="elsewhere")
    assert resolved(store, "latest", "ann") == mine
    assert resolved(store, "latest", "bob") == resolved(store, "latest") == theirs
    with pytest.raises(UnknownError, match="cleo has started no run"):
        resolved(store, "latest", "cleo")


def test_the_latest_of_a_job_of_several_must_be_chosen(store: Store) -> None:
    oracle, *_ = add_job(store, "nightly", started_by="ann")
    with pytest.raises(UsageError, match="nightly/oracle"):
        resolved(store, "latest", "ann")
    assert resolved(store, "latest/oracle", "ann") == oracle
    with store.reading() as connection, pytest.raises(UnknownError, match="bob has started no job"):
        jobs.resolve(connection, "latest", "default", "bob")


@pytest.mark.parametrize("ref", ["nigthly", "nightly/orcale", "nightly/", "/", "", "late\0st", "x" * 5000])
def test_what_names_nothing_is_refused_with_what_is_near(store: Store, ref: str) -> None:
    add_job(store, "nightly")
    with pytest.raises(UnknownError) as refused:
        resolved(store, ref)
    assert len(str(refused.value)) < 500
    if ref == "nigthly":
        assert "Did you mean 'nightly'?" in str(refused.value)
    if ref == "nightly/orcale":
        assert "Did you mean 'oracle'?" in str(refused.value)


def test_other_organisations_jobs_name_nothing(store: Store) -> None:
    add_job(store, "theirs", org_id="elsewhere")
    for ref in ("theirs", "theirs/oracle", "latest"):
        with pytest.raises(UnknownError):
            resolved(store, ref)
