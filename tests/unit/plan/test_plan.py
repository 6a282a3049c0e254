"""Plans: stable digests that change exactly when what is run changes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sandboxes.types import SandboxLimits
from valkyrie.domain import TaskSpec, VerifyMode, content_digest
from valkyrie.plan import Settings, as_planned, make_plan, older_digest, trial_digest

TASK = TaskSpec(id="a/b", digest="sha256:1", instruction="do it", limits=SandboxLimits(cpus=2, memory_mb=512))
SETTINGS = Settings(provider="local")

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), plain, min_size=2))
def test_digests_ignore_the_order_of_keys(value: dict[str, object]) -> None:
    assert content_digest(value) == content_digest(dict(reversed(value.items())))


def digest(task: TaskSpec = TASK, k: int = 0, **changes: object) -> str:
    options = {"agent_digest": "x", "model": None, "settings": SETTINGS, **changes}
    return make_plan([task], trials=k + 1, **options)[k].digest  # type: ignore[arg-type]


def test_a_digest_changes_with_everything_that_matters() -> None:
    found = {
        digest(),
        digest(replace(TASK, digest="sha256:2")),
        digest(replace(TASK, id="a/c")),
        digest(k=1),
        digest(agent_digest="y"),
        digest(model="m"),
        digest(settings=Settings(provider="docker")),
        digest(settings=Settings(provider="local", env_vars={"A": "b"})),
        digest(settings=Settings(provider="local", model_url="http://127.0.0.1:1")),
        digest(settings=Settings(provider="local", on_agent_failure="error")),
    }
    assert len(found) == 10


def test_how_long_things_may_take_is_no_part_of_a_digest() -> None:
    other = Settings("local", timeout_multiplier=2.0, agent_timeout=9.0, default_agent_timeout=7.0)
    assert digest(settings=other) == digest(settings=Settings("local"))
    assert older_digest(TASK, 0, agent_digest="x", model=None, settings=other) != digest()
    assert older_digest(TASK, 0, agent_digest="x", model=None, settings=SETTINGS) == digest()


def test_early_trials_cover_all_tasks() -> None:
    tasks = [replace(TASK, id=name) for name in "abc"]
    planned = make_plan(tasks, agent_digest="x", model=None, trials=2, settings=SETTINGS)
    assert [f"{one.task_id}{one.k}" for one in planned] == ["a0", "b0", "c0", "a1", "b1", "c1"]
    assert {(one.cpus, one.memory_mb) for one in planned} == {(2, 512)}


def test_a_trial_keeps_the_mode_it_was_planned_with() -> None:
    locked = replace(TASK, verify=VerifyMode.SHARED, keep_processes=True)
    what: dict[str, Any] = {"agent_digest": "x", "model": None, "settings": SETTINGS}
    planned = trial_digest(locked, 0, **what)
    assert planned != trial_digest(TASK, 0, **what)
    for now in (TASK, replace(TASK, verify=VerifyMode.FRESH)):
        found = as_planned(now, 0, planned, **what)
        assert found is not None and (found.verify, found.keep_processes) == (VerifyMode.SHARED, True)
    assert as_planned(replace(TASK, digest="other"), 0, planned, **what) is None
    first = as_planned(locked, 0, trial_digest(TASK, 0, **what), **what)
    assert first is not None and first.verify is VerifyMode.BOTH


def test_a_mode_that_was_asked_for_is_all_that_counts() -> None:
    what: dict[str, Any] = {"agent_digest": "x", "model": None, "settings": replace(SETTINGS, verify="fresh")}
    assert trial_digest(TASK, 0, **what) == trial_digest(replace(TASK, verify=VerifyMode.SHARED), 0, **what)
