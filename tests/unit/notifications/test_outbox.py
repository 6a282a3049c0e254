"""The outbox: told once, in order, by one executor at a time, whatever dies in between. On both databases."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection

from valkyrie.domain import RunState
from valkyrie.store import Store, executors, notifications, runs
from valkyrie.store.notifications import Due, DueQuery
from valkyrie.views import HookView

NOTIFY = {"slack": {"secret": "S", "intervals": [25, 75]}, "webhook": None, "lambda": None}
ALL = {
    "slack": {"secret": "S", "intervals": [100]},
    "webhook": {"url": "https://x.example/", "key": None, "intervals": [100]},
    "lambda": "after",
}
PLACE = {"artifacts": {"kind": "folder", "folder": "/x"}}
ROOM = {"slack": 10, "webhook": 10, "lambda": 10, "results": 10}


@pytest.fixture
def store(store_address: Path | str) -> Iterator[Store]:
    opened = Store(store_address)
    yield opened
    opened.close()


def add_run(store: Store, tasks: int = 8, **more: Any) -> str:
    run_id = str(uuid.uuid4())
    values = {
        "id": run_id,
        "agent": "a",
        "benchmark": "b",
        "dataset": "default",
        "provider": "null",
        "concurrency": 4,
        "fraction": True,
        "created_at": time.time(),
        "started_at": time.time(),
        "arguments": {"trials": 1},
        "agent_frozen": {},
        "benchmark_source": {},
        "enforcement": {},
        "notify": NOTIFY,
        **more,
    }
    with store.writing() as connection:
        runs.create(connection, values, [runs.NewTrial(f"t{n}", 0, "d", None, None) for n in range(tasks)])
    return run_id


def add_executor(store: Store, name: str, *, home: str = "", lease_s: float = 30.0) -> None:
    now = time.time()
    values = {"id": name, "host": "h", "pid": 1, "version": "1", "started_at": now, "heartbeat_at": now}
    with store.writing() as connection:
        executors.register_executor(connection, {**values, "expires_at": now + lease_s, "home": home})


def stands(store: Store, run_id: str, **counters: Any) -> None:
    """Bring a run to these counts, and plan what that makes due."""
    with store.writing() as connection:
        runs.set_values(connection, run_id, **counters)
        notifications.plan_progress_of(connection, [run_id], time.time())


def end(store: Store, run_id: str, state: RunState = RunState.FINISHED) -> None:
    with store.writing() as connection:
        row = runs.locked(connection, run_id)
        runs.set_values(
            connection, run_id, state=state.value, endings=row.endings + 1, finished_at=time.time()
        )
        notifications.plan_ending(connection, runs.get(connection, run_id), time.time())


def told(store: Store, run_id: str) -> list[HookView]:
    with store.reading() as connection:
        return notifications.of_run(connection, run_id)


def take(
    store: Store,
    executor: str = "me",
    *,
    room: Mapping[str, int] = ROOM,
    in_hand: Mapping[tuple[str, str], int] | None = None,
    home: str = "",
) -> list[Due]:
    look = DueQuery(executor, room, in_hand or {}, home)
    with store.writing() as connection:
        notifications.recover_hooks(connection, look)
        return notifications.due(connection, look)


def done(store: Store, due: Due, detail: str = "HTTP 200") -> bool:
    with store.writing() as connection:
        return notifications.done(connection, due, detail)


def failed(store: Store, due: Due, pause: float | None) -> bool:
    with store.writing() as connection:
        return notifications.failed(connection, due, "HTTP 500", pause)


def pauses_end(store: Store, run_id: str) -> None:
    with store.writing() as connection:
        notifications.supplied(connection, run_id)


def test_a_threshold_is_written_down_once_with_what_was_true_then(store: Store) -> None:
    run_id = add_run(store)
    stands(store, run_id, n_pending=7, n_finished=1)
    assert told(store, run_id) == []
    stands(store, run_id, n_pending=6, n_finished=1, n_error=1, e_agent=1)
    stands(store, run_id, n_pending=3, n_finished=4)
    (due,) = take(store)
    assert (due.kind, due.trigger, due.told["done"], due.told["total"]) == ("slack", "progress:25", 2, 8)
    assert due.told["score"]["errors"] == {"agent": 1} and due.told["id"] == run_id
    assert done(store, due)
    (view,) = told(store, run_id)
    assert (view.state, view.detail, view.attempts) == ("done", "HTTP 200", 1)


def test_trials_that_were_stopped_count_but_a_run_being_stopped_tells_no_progress(store: Store) -> None:
    run_id = add_run(store)
    stands(store, run_id, n_pending=4, n_stopped=2, n_finished=2, state="STOPPING")
    assert told(store, run_id) == []
    stands(store, run_id, state="IN_PROGRESS")
    assert [one.trigger for one in told(store, run_id)] == ["progress:25"]


def test_nothing_is_told_at_a_hundred_per_cent_but_the_end(store: Store) -> None:
    run_id = add_run(store, notify={**NOTIFY, "slack": {"secret": "S", "intervals": [75, 100]}})
    stands(store, run_id, n_pending=0, n_finished=8)
    assert told(store, run_id) == []
    end(store, run_id)
    assert [one.trigger for one in told(store, run_id)] == ["ended:1"]


def test_a_run_that_wishes_nothing_writes_nothing(store: Store) -> None:
    run_id = add_run(store, notify=None)
    stands(store, run_id, n_pending=1, n_finished=7)
    end(store, run_id)
    assert told(store, run_id) == []
    with store.reading() as connection:
        assert notifications.settled(connection, run_id)


def test_a_retry_does_not_tell_a_threshold_again_but_tells_its_own_ending(store: Store) -> None:
    run_id = add_run(store)
    stands(store, run_id, n_pending=1, n_finished=4, n_error=3)
    end(store, run_id)
    stands(store, run_id, state="IN_PROGRESS", n_error=0, n_pending=4)
    stands(store, run_id, n_pending=1, n_finished=7)
    end(store, run_id)
    triggers = [one.trigger for one in told(store, run_id)]
    assert triggers == ["progress:25", "progress:75", "ended:1", "ended:2"]


def test_an_ending_goes_results_then_lambda_then_messages(store: Store) -> None:
    run_id = add_run(store, notify=ALL, place=PLACE)
    end(store, run_id)
    seen = []
    while taken := take(store):
        seen.append({due.kind for due in taken})
        assert take(store) == []  # nothing more while these are in hand
        for due in taken:
            failed(store, due, None) if due.kind == "lambda" else done(store, due)
    assert seen == [{"results"}, {"lambda"}, {"slack", "webhook"}]
    with store.reading() as connection:
        assert notifications.settled(connection, run_id)


def test_without_a_place_for_artifacts_no_results_are_uploaded(store: Store) -> None:
    run_id = add_run(store, notify=ALL, place={"logs": {"group": "g"}})
    end(store, run_id)
    assert {one.kind for one in told(store, run_id)} == {"lambda", "slack", "webhook"}


def test_planning_the_same_ending_twice_writes_it_once(store: Store) -> None:
    run_id = add_run(store, notify=ALL)
    end(store, run_id)
    with store.writing() as connection:
        notifications.plan_ending(connection, runs.get(connection, run_id), time.time())
    assert len(told(store, run_id)) == 3


def test_messages_of_a_run_leave_in_order(store: Store) -> None:
    run_id = add_run(store)
    stands(store, run_id, n_pending=1, n_finished=7)
    end(store, run_id)
    order = []
    while taken := take(store):
        assert len(taken) == 1
        order.append(taken[0].trigger)
        done(store, taken[0])
    assert order == ["progress:25", "progress:75", "ended:1"]


def test_what_is_told_of_an_ending_stays_what_it_was(store: Store) -> None:
    run_id = add_run(store, notify=ALL, place=PLACE)
    stands(store, run_id, n_pending=0, n_finished=6, n_error=2, final_score=0.5)
    end(store, run_id)
    stands(store, run_id, state="IN_PROGRESS", n_error=0, n_pending=2, final_score=None)
    (results,) = take(store)
    assert results.superseded
    done(store, results)
    (function,) = take(store)
    assert function.superseded
    done(store, function)
    for message in take(store):
        assert message.told["state"] == "FINISHED"
        assert message.told["score"]["final_score"] == 0.5


def test_a_failure_waits_for_its_pause_and_keeps_what_it_tells(store: Store) -> None:
    run_id = add_run(store)
    stands(store, run_id, n_pending=6, n_finished=2)
    (due,) = take(store)
    assert failed(store, due, 60.0)
    (view,) = told(store, run_id)
    assert (view.state, view.detail, view.attempts) == ("pending", "HTTP 500", 1)
    assert take(store) == []
    with store.reading() as connection:
        assert notifications.outlook(connection, ()) == (True, pytest.approx(60, abs=10))
        assert notifications.outlook(connection, [run_id]) == (False, None)
    pauses_end(store, run_id)
    (again,) = take(store)
    assert (again.attempt, again.told) == (2, due.told)


def test_waiting_for_a_person_is_no_attempt_and_ends_when_they_came(store: Store) -> None:
    run_id = add_run(store)
    stands(store, run_id, n_pending=6, n_finished=2)
    (due,) = take(store)
    with store.writing() as connection:
        assert notifications.wait(connection, due, "waits for secret 'S'", 60.0)
    (view,) = told(store, run_id)
    assert (view.state, view.detail, view.attempts) == ("pending", "waits for secret 'S'", 0)
    assert take(store) == []
    pauses_end(store, run_id)
    (again,) = take(store)
    assert again.attempt == 1


def test_of_a_dead_executor_endings_are_sent_again_and_progress_is_not(store: Store) -> None:
    progress, ending = add_run(store), add_run(store)
    stands(store, progress, n_pending=6, n_finished=2)
    end(store, ending)
    add_executor(store, "dead", lease_s=-31)
    add_executor(store, "alive")
    lost = {due.trigger: due for due in take(store, "dead")}
    assert set(lost) == {"progress:25", "ended:1"}
    (again,) = take(store, "alive")
    assert (again.trigger, again.attempt) == ("ended:1", 2)
    (view,) = told(store, progress)
    assert view.state == "failed" and "may have arrived" in str(view.detail)
    assert not done(store, lost["ended:1"]), "what the dead one says when it comes back is refused"
    assert not done(store, lost["progress:25"])
    assert done(store, again)


def test_what_a_living_executor_holds_is_left_to_it(store: Store) -> None:
    run_id = add_run(store)
    end(store, run_id)
    add_executor(store, "first", home="one")
    (held,) = take(store, "first")
    assert take(store, "second", home="two") == []
    (again,) = take(store, "third", home="one")  # who has the folder's lock knows that the first is dead
    assert again.id == held.id
    assert not done(store, held)


def test_one_organisation_does_not_hold_up_the_others(store: Store) -> None:
    for _ in range(20):
        end(store, add_run(store, org_id="busy"))
    calm = add_run(store, org_id="calm")
    end(store, calm)
    taken = take(store, room={"slack": 6})
    assert Counter(due.org_id for due in taken) == {"busy": 4, "calm": 1}
    more = take(store, room={"slack": 6}, in_hand={("busy", "slack"): 4})
    assert more == []
    assert len(take(store, room={"slack": 3}, in_hand={("busy", "slack"): 2})) == 2


def test_many_who_look_at_once_take_each_row_once(store: Store) -> None:
    for name in "abcd":
        add_executor(store, name)
    for n in range(12):
        end(store, add_run(store, org_id=f"org{n}"))
    taken: list[Due] = []
    start = threading.Barrier(4)

    def look(name: str) -> None:
        start.wait()
        while len(taken) < 12:  # a row that another is just taking is passed over
            taken.extend(take(store, name, room={"slack": 2}))

    threads = [threading.Thread(target=look, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == len({due.id for due in taken}) == 12


def test_many_who_write_a_threshold_down_at_once_write_it_once(store: Store) -> None:
    run_id = add_run(store)
    with store.writing() as connection:
        runs.set_values(connection, run_id, n_pending=2, n_finished=6)
    start = threading.Barrier(4)

    def plan() -> None:
        start.wait()
        with store.writing() as connection:
            notifications.plan_progress_of(connection, [run_id], time.time())

    threads = [threading.Thread(target=plan) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.trigger for one in told(store, run_id)] == ["progress:25", "progress:75"]


def test_what_is_told_goes_with_its_run(store: Store) -> None:
    run_id = add_run(store)
    end(store, run_id)
    (due,) = take(store)
    with store.writing() as connection:
        runs.forget(connection, run_id)
    assert not done(store, due)
    with store.reading() as connection:
        assert not notifications.any_pending(connection)


STEPS = st.one_of(
    st.tuples(st.just("finish"), st.integers(1, 7)),
    st.tuples(st.just("fail"), st.integers(1, 7)),
    st.tuples(st.sampled_from(["stop", "resume", "retry", "plan"]), st.just(0)),
    st.tuples(st.sampled_from(["send", "die before sending", "die after sending", "refuse"]), st.just(0)),
)


class Story:
    """A run, executors that come and go, and what a receiver saw; the model beside the store."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.run_id = add_run(store)
        self.passed: set[str] = set()
        self.endings = 0
        self.sent: Counter[str] = Counter()
        self.maybe_lost: set[str] = set()
        self.executors = 0

    def row(self) -> Any:
        with self.store.reading() as connection:
            return runs.get(connection, self.run_id)

    def pending(self) -> bool:
        with self.store.reading() as connection:
            return notifications.any_pending(connection)

    def step(self, what: str, count: int) -> None:
        row = self.row()
        going = row.state == "IN_PROGRESS"
        match what:
            case "finish" | "fail" if going:
                n = min(count, row.n_pending)
                after = "n_finished" if what == "finish" else "n_error"
                self.stand(n_pending=row.n_pending - n, **{after: getattr(row, after) + n})
                if n == row.n_pending:
                    self.end(RunState.FINISHED)
            case "stop" if going:
                self.stand(state="STOPPING", n_pending=0, n_stopped=row.n_stopped + row.n_pending)
                self.end(RunState.STOPPED)
            case "resume" if not going and row.n_stopped:
                self.stand(state="IN_PROGRESS", n_pending=row.n_stopped, n_stopped=0)
            case "retry" if not going and row.n_error + row.n_stopped:
                again = row.n_error + row.n_stopped
                self.stand(state="IN_PROGRESS", n_pending=again, n_stopped=0, n_error=0)
            case "plan":
                self.stand()
            case "send" | "die before sending" | "die after sending" | "refuse":
                self.deliver(what)

    def stand(self, **counters: Any) -> None:
        stands(self.store, self.run_id, **counters)
        row = self.row()
        done = row.n_finished + row.n_error + row.n_stopped
        if row.state == "IN_PROGRESS" and done < 8:
            self.passed |= {f"progress:{percent}" for percent in (25, 75) if done * 100 >= percent * 8}

    def end(self, state: RunState) -> None:
        end(self.store, self.run_id, state)
        self.endings += 1

    def deliver(self, how: str) -> None:
        """A new executor takes one message: the one before it is dead."""
        self.executors += 1
        for due in take(self.store, f"executor {self.executors}"):
            if how in ("send", "die after sending"):
                self.sent[due.trigger] += 1
            if how == "send":
                assert done(self.store, due)
            elif how == "refuse":
                assert failed(self.store, due, 0.0)
            else:
                self.maybe_lost.add(due.trigger)


class OneTransaction:
    """A store whose every transaction is part of one, which is never committed: nothing waits for a disk."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def writing(self) -> AbstractContextManager[Connection]:
        return nullcontext(self._connection)

    reading = writing


class Over(Exception):
    """The story is over; nothing of it is kept."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    opened = Store(tmp_path_factory.mktemp("stories") / "v.db")
    yield opened
    opened.close()


@settings(max_examples=40)
@given(steps=st.lists(STEPS, max_size=25))
def test_in_any_story_a_threshold_is_told_once(steps: list[tuple[str, int]], library: Store) -> None:
    with suppress(Over), library.writing() as connection:
        story = Story(OneTransaction(connection))  # type: ignore[arg-type]
        for what, count in steps:
            story.step(what, count)
        while story.pending():
            story.deliver("send")
        thresholds = {trigger for trigger in story.sent if trigger.startswith("progress:")}
        assert all(story.sent[trigger] == 1 for trigger in thresholds)
        assert story.passed - story.maybe_lost <= thresholds <= story.passed
        endings = {f"ended:{n}" for n in range(1, story.endings + 1)}
        assert {trigger for trigger in story.sent if trigger.startswith("ended:")} == endings
        raise Over
