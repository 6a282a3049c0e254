"""Lists of runs: in pages, by every filter, and from one stretch of an index each."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, text

from tests.stored_runs import add_run, ended, run_values, tick
from valkyrie.domain import TrialState
from valkyrie.errors import UnknownError, UsageError
from valkyrie.report.presentation import scores_view, trial_view
from valkyrie.store import Store, journal, runs, trials
from valkyrie.store.runs import RunQuery
from valkyrie.store.schema import LISTED_BY, run, trial
from valkyrie.store.trials import TrialQuery

MINE = {"org_id": "mine"}


def pages(store: Store, query: RunQuery) -> Iterator[list[Any]]:
    while True:
        with store.reading() as connection:
            rows, _, cursor = runs.page(connection, query)
        yield list(rows)
        if cursor is None:
            return
        query = RunQuery(query.equal, query.started_by, query.newest_first, query.limit, cursor)


@pytest.fixture
def filled(store: Store) -> Store:
    """Runs of two organisations, many made at the same moment."""
    values = [
        run_values(
            id=f"{n:08x}-0000-4000-8000-000000000000",
            org_id="mine" if n % 3 else "theirs",
            state="FINISHED" if n % 2 else "ERROR",
            agent=f"agent {n % 4}",
            label=f"label {n % 5}",
            started_by=f"person {n % 6}",
            created_at=1000.0 + n // 7,
        )
        for n in range(120)
    ]
    with store.writing() as connection:
        connection.execute(insert(run), values)
    return store


FILTERS: list[tuple[dict[str, str], tuple[str, ...]]] = [
    ({}, ()),
    ({"label": "label 3"}, ()),
    ({"agent": "agent 1", "state": "FINISHED"}, ()),
    ({}, ("person 1",)),
    ({}, ("person 1", "person 4", "nobody", "person 1")),
    ({"label": "label 1"}, tuple(f"person {n}" for n in range(30))),
]


@pytest.mark.parametrize("newest_first", [True, False])
def test_pages_have_every_run_once(filled: Store, newest_first: bool) -> None:
    with filled.reading() as connection:
        everything = connection.execute(run.select()).all()
    for equal, people in FILTERS:
        query = RunQuery({**MINE, **equal}, people, newest_first, limit=7)
        found = [row for page in pages(filled, query) for row in page]
        with filled.reading() as connection:
            total = runs.page(connection, query)[1]
        wanted = [
            row
            for row in everything
            if row.org_id == "mine"
            and all(getattr(row, name) == value for name, value in equal.items())
            and (not people or row.started_by in people)
        ]
        keys = [(row.created_at, row.id) for row in found]
        assert sorted(keys) == sorted((row.created_at, row.id) for row in wanted)
        assert all((one > two) == newest_first for one, two in pairwise(keys))
        assert total == len(wanted) > 0


ODD_CURSORS = [5, [1], [1, 2, 3], ["a", "b"], [None, "x"], [10**400, "x"], [1.0, "a\0"], [1.0, "\ud800"]]


def test_a_cursor_of_ones_own_making_is_refused(store: Store) -> None:
    made = [base64.b64encode(json.dumps(odd).encode()).decode() for odd in ODD_CURSORS]
    with store.reading() as connection:
        for cursor in ("x", "%%%", "bnVsbA==", *made):
            with pytest.raises(UsageError, match="not a cursor"):
                runs.page(connection, RunQuery(MINE, cursor=cursor))


def test_runs_are_found_by_their_beginning(filled: Store) -> None:
    with filled.reading() as connection:
        assert runs.resolve(connection, "00000005", "mine") == "00000005-0000-4000-8000-000000000000"
        assert runs.resolve(connection, " 00000005-0000-4 ".upper(), "mine").startswith("00000005")
        with pytest.raises(UsageError, match=r"several run ids.*(\n.*agent.*){10}\n.*…"):
            runs.resolve(connection, "0000", "mine")
        with pytest.raises(UnknownError, match="No run or job '00000003'"):
            runs.resolve(connection, "00000003", "mine")
        for nonsense in ("", "zzz", "%", "g", "\0"):
            with pytest.raises(UsageError):
                runs.resolve(connection, nonsense, "mine")


def test_failed_trials_and_trials_by_score(store: Store) -> None:
    run_id = add_run(store, tasks=6, concurrency=6)
    leased = tick(store, run_id).leased
    ends = [
        ended(leased[0], score=1.0, passed=True),
        ended(leased[1], score=0.5, passed=False),
        ended(leased[2], score=0.0),
        ended(leased[3], score=0.25),
        ended(leased[4], TrialState.ERROR),
    ]
    with store.writing() as connection:
        journal.record(connection, ends)

    def tasks(**query: Any) -> list[str]:
        with store.reading() as connection:
            return [row.task_id for row in trials.trials(connection, run_id, TrialQuery(**query))[0]]

    assert tasks(failed=True) == tasks(failed=True, after=-1) == ["t1", "t2", "t4"]
    assert tasks(sort="score") == ["t4", "t5", "t2", "t3", "t1", "t0"]
    assert tasks(sort="score", descending=True)[:4] == ["t0", "t1", "t3", "t2"]


def test_trials_that_never_began_are_sorted_alike(store: Store) -> None:
    run_id = add_run(store, tasks=4, concurrency=2)
    one, _two = tick(store, run_id).leased
    with store.writing() as connection:
        journal.record(connection, [ended(one, TrialState.FINISHED, score=1.0)])
    wanted = {
        ("started_at", False): ["t2", "t3", "t0", "t1"],
        ("started_at", True): ["t0", "t1", "t2", "t3"],
        ("duration", False): ["t1", "t2", "t3", "t0"],
        ("duration", True): ["t0", "t1", "t2", "t3"],
        ("task_id", True): ["t3", "t2", "t1", "t0"],
    }
    with store.reading() as connection:
        for (sort, descending), order in wanted.items():
            query = trials.TrialQuery(sort=sort, descending=descending)
            assert [row.task_id for row in trials.trials(connection, run_id, query)[0]] == order, sort


@pytest.fixture(scope="module")
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """Enough runs that a planner has something to choose from."""
    from tests.postgres import TEMPLATE

    if request.param == "sqlite":
        address: Path | str = tmp_path_factory.mktemp("large") / "v.db"
    else:
        postgres = request.getfixturevalue("postgres")
        address = postgres.create(template=TEMPLATE)
    store = Store(address)
    rows = [
        run_values(
            id=f"{n * 7919 % 2**32:08x}-0000-4000-8000-{n:012x}",
            org_id="mine" if n % 4 else "theirs",
            state="FINISHED" if n % 50 else "IN_PROGRESS",
            **{name: f"{name} {n % 40}" for name in LISTED_BY if name != "state"} | {"created_at": float(n)},
        )
        for n in range(6000)
    ]
    with store.writing() as connection:
        connection.execute(insert(run), rows)
        connection.execute(text("ANALYZE"))
    yield store
    store.close()


both = pytest.mark.parametrize("large", ["sqlite", "postgresql"], indirect=True)
QUERIES = {
    "all": RunQuery(MINE),
    "oldest": RunQuery(MINE, newest_first=False),
    **{name: RunQuery({**MINE, name: "FINISHED" if name == "state" else f"{name} 7"}) for name in LISTED_BY},
    "person": RunQuery(MINE, started_by=["started_by 3"]),
    "people": RunQuery(MINE, started_by=["started_by 3", "started_by 5"]),
}


@both
@pytest.mark.parametrize("cursor", [False, True], ids=["first page", "next page"])
@pytest.mark.parametrize("name", QUERIES)
def test_a_page_is_one_stretch_of_an_index(large: Store, name: str, cursor: bool) -> None:
    query = QUERIES[name]
    with large.reading() as connection:
        rows, _, following = runs.page(connection, query)
        assert len(rows) == query.limit
        if cursor:
            query = RunQuery(query.equal, query.started_by, query.newest_first, query.limit, following)
        plan = explain(large, connection, runs.matching(query))
    # The few runs of several people are put in order; nothing else is, and nothing is looked at in vain.
    assert_indexed(plan, may_sort=name == "people")


@both
@pytest.mark.parametrize("name", sorted(QUERIES.keys() - {"all", "oldest", "state"}))
def test_the_few_that_match_are_counted_in_an_index(large: Store, name: str) -> None:
    with large.reading() as connection:
        assert_indexed(explain(large, connection, runs.counted(QUERIES[name])))


@both
@pytest.mark.parametrize("ref", ["0", "00001", "00001eef-0000-4000"])
def test_a_reference_is_looked_up_in_an_index(large: Store, ref: str) -> None:
    with large.reading() as connection:
        plan = explain(large, connection, runs.beginning_with(ref, "mine"))
    assert_indexed(plan)


def explain(store: Store, connection: Any, statement: Any) -> str:
    words = "EXPLAIN QUERY PLAN" if store.kind == "sqlite" else "EXPLAIN"
    compiled = statement.compile(connection.engine, compile_kwargs={"render_postcompile": True})
    rows = connection.exec_driver_sql(f"{words} {compiled}", explained_parameters(compiled))
    return "\n".join(str(row[-1]) for row in rows)


def explained_parameters(compiled: Any) -> Any:
    values = compiled.construct_params()
    return tuple(values[name] for name in compiled.positiontup) if compiled.positional else values


def assert_indexed(plan: str, *, may_sort: bool = False) -> None:
    for line in plan.splitlines():
        words = line.strip().lstrip("-> ").lower()
        assert not words.startswith("seq scan"), plan
        assert not (words.startswith("scan run") and "index" not in words), plan
        if not may_sort:
            assert "temp b-tree" not in words, plan
            assert not words.startswith(("sort", "incremental sort")), plan


def test_pages_behind_a_position_follow_one_another(store: Store) -> None:
    run_id, other = add_run(store, tasks=7), add_run(store, tasks=3)
    seen: list[str] = []
    with store.reading() as connection:
        after = -1
        while True:
            rows, number = trials.trials(connection, run_id, trials.TrialQuery(limit=3, after=after))
            assert number == len(rows)
            if not rows:
                break
            seen += [row.task_id for row in rows]
            after = rows[-1].position
        assert seen == [f"t{number}" for number in range(7)]
        found = trials.trials(connection, run_id, trials.TrialQuery(search="t5", after=2))[0]
        assert [row.task_id for row in found] == ["t5"]
        assert trials.trials(connection, other, trials.TrialQuery(after=10**20)) == ([], 0)
        if connection.dialect.name == "sqlite":
            asked = "SELECT * FROM trial WHERE run_id = ? AND position > ? ORDER BY position"
            plan = str(connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {asked}", (run_id, 3)).all())
            assert "trial_order" in plan and "TEMP B-TREE" not in plan


def test_trials_are_read_with_as_much_detail_as_is_asked_for(store: Store) -> None:
    run_id = add_run(store, tasks=2)
    with store.writing() as connection:
        said = {"result": {"graders": []}, "timing": {"agent": 2.0}, "evidence": {"open_to_tampering": True}}
        connection.execute(trial.update().where(trial.c.position == 1).values(**said, state="FINISHED"))
    with store.reading() as connection:
        scores, told, whole = (
            trials.trials(connection, run_id, trials.TrialQuery(detail=detail))[0]
            for detail in ("scores", "trial", "result")
        )
    assert [scores_view(row).evidence for row in scores] == [None, {"open_to_tampering": True}]
    assert [scores_view(row).timing for row in scores] == [{}, {}]
    assert [(trial_view(row).timing, trial_view(row).result) for row in told] == [
        ({}, None),
        ({"agent": 2.0}, None),
    ]
    assert [trial_view(row).result for row in whole] == [None, {"graders": []}]
    for one, other in zip(scores, whole, strict=True):
        left, right = scores_view(one), trial_view(other)
        assert (left.task_id, left.digest, left.position) == (right.task_id, right.digest, right.position)
