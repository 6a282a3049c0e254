"""Shares of slots: one slot freed at a time, nobody holds more than one trial above its share."""

from __future__ import annotations

from collections import Counter
from random import Random
from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from valkyrie.store.leases import Room, Tick, choose, load_of, pools_of, weight_of

PEOPLE = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), min_size=2, max_size=4)
"""For each person, the priorities of their runs."""


class Host:
    """A host with room for so many trials, on which runs with no end of trials share."""

    def __init__(self, people: list[list[int]], room: int, *, key_limit: int | None = None) -> None:
        self.rows = [
            SimpleNamespace(
                id=f"{person}.{n}",
                org_id="o",
                started_by=str(person),
                priority=priority,
                active=0,
                job_id=None,
                pool=None,
                key_id="k",
                key_limit=key_limit,
                leased_at=None,
            )
            for person, priorities in enumerate(people)
            for n, priority in enumerate(priorities)
        ]
        self.held: list[str] = []
        self.begun: Counter[str] = Counter()
        self.ticks = 0
        self.fill(room)

    def fill(self, slots: int) -> None:
        """Begin as many trials as have room."""
        trial = SimpleNamespace(
            id=1, task_id="t", k=0, digest="", attempts=0, failures=0, epoch=0, saved=None
        )
        trial.cpus, trial.memory_mb = 1.0, 0
        for row in self.rows:
            row.active = self.held.count(row.id)
        tick = Tick("me", 0.0, Room(float(slots), 1e9, idle=False), {}, ())
        ready: dict[str, list[Any]] = {row.id: [trial] * slots for row in self.rows}
        pools = pools_of(self.rows, tick)
        found = [one.run_id for one in choose(ready, tick, pools, load_of(self.rows, tick))]
        self.ticks += 1
        for row in self.rows:
            row.leased_at = self.ticks if row.id in found else row.leased_at
        self.held += found
        self.begun.update(found)

    def free_one(self, random: Random) -> None:
        """End some trial, and give its slot to whoever is next."""
        self.held.pop(random.randrange(len(self.held)))
        self.fill(1)

    def of_people(self) -> Counter[str]:
        held = Counter({row.started_by: 0 for row in self.rows})
        held.update(run_id.split(".")[0] for run_id in self.held)
        return held

    def of_runs(self) -> Counter[str]:
        held = Counter({row.id: 0 for row in self.rows})
        held.update(self.held)
        return held


@settings(max_examples=60, deadline=None)
@given(
    people=st.lists(st.integers(1, 4), min_size=1, max_size=4), room=st.integers(1, 12), seed=st.integers()
)
def test_shares_of_equals_differ_by_at_most_one(people: list[int], room: int, seed: int) -> None:
    random = Random(seed)
    host = Host([[3] * runs for runs in people], room)
    for _ in range(30):
        host.free_one(random)
        held = host.of_people() if len(people) > 1 else host.of_runs()
        assert sum(held.values()) == room
        assert max(held.values()) - min(held.values()) <= 1


@settings(max_examples=60, deadline=None)
@given(people=PEOPLE, room=st.integers(1, 12), seed=st.integers())
def test_nobody_holds_more_than_one_trial_above_a_share_weighted_by_priority(
    people: list[list[int]], room: int, seed: int
) -> None:
    random = Random(seed)
    host = Host(people, room)
    weights = [weight_of(min(priorities)) for priorities in people]
    for _ in range(30):
        for person, held in host.of_people().items():
            assert held < room * weights[int(person)] / sum(weights) + 1
        host.free_one(random)


@settings(max_examples=60, deadline=None)
@given(
    priorities=st.lists(st.integers(0, 4), min_size=2, max_size=5),
    room=st.integers(1, 12),
    seed=st.integers(),
)
def test_runs_of_one_person_share_in_the_same_way(priorities: list[int], room: int, seed: int) -> None:
    random = Random(seed)
    host = Host([priorities], room)
    weights = {f"0.{n}": weight_of(priority) for n, priority in enumerate(priorities)}
    for _ in range(30):
        for run_id, held in host.of_runs().items():
            assert held < room * weights[run_id] / sum(weights.values()) + 1
        host.free_one(random)


def test_each_step_of_priority_doubles_the_share() -> None:
    assert [weight_of(priority) for priority in range(5)] == [16, 8, 4, 2, 1]
    assert Host([[2], [3]], 9).of_people() == {"0": 6, "1": 3}


def test_where_runs_outnumber_slots_all_of_them_get_on() -> None:
    """Of those that have nothing in hand, whoever was served longest ago is next."""
    random = Random(1)
    host = Host([[3] * 10, [3]], 4)
    for _ in range(200):
        host.free_one(random)
    own = [host.begun[f"0.{n}"] for n in range(10)]
    assert max(own) - min(own) <= 2 and sum(own) > 80


def test_a_run_of_little_urgency_is_served_sometimes() -> None:
    """An urgent run with no end of trials, and more people than slots."""
    random = Random(1)
    host = Host([[0], *([[4]] * 6)], 4)
    for _ in range(200):
        host.free_one(random)
    assert host.begun["0.0"] > 100 and all(host.begun[f"{n}.0"] > 2 for n in range(1, 7))


def test_a_keys_limit_is_of_all_its_runs_together() -> None:
    host = Host([[3], [0], [3]], 12, key_limit=5)
    assert sum(host.of_runs().values()) == 5
    host.fill(12)
    assert sum(host.of_runs().values()) == 5
