"""The policy table: complete, consistent, and used as written."""

from __future__ import annotations

import inspect
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from valkyrie import errors
from valkyrie.domain import Category
from valkyrie.schedule.policy import TABLE, backoff, policy_for
from valkyrie.trial.attempt import _PHASE_TIMEOUTS, COUNTED_AS_ZERO


def test_every_cause_has_one_row() -> None:
    causes = [policy.cause for policy in TABLE]
    assert len(causes) == len(set(causes))
    assert {policy.category for policy in TABLE} == set(Category)


def test_every_error_an_attempt_may_raise_has_a_row() -> None:
    known = {(policy.category, policy.cause) for policy in TABLE}
    raised_before_any_attempt = {"usage", "contract", "store", "unknown", "unauthorized", "role"}
    for _, kind in inspect.getmembers(errors, inspect.isclass):
        if issubclass(kind, errors.ValkyrieError) and kind.default_cause not in raised_before_any_attempt:
            assert (kind.category, kind.default_cause) in known, kind
    assert set(_PHASE_TIMEOUTS.values()) <= known


def test_an_unknown_cause_follows_its_category() -> None:
    assert policy_for(Category.INFRASTRUCTURE, "never heard of").cause == "infrastructure"
    assert policy_for(Category.AGENT, "disk_full").category is Category.AGENT


def test_what_an_agent_can_cause_counts_against_it_and_is_never_tried_again() -> None:
    for policy in TABLE:
        assert policy.by_agent.partition(":")[0] in ("yes", "no", "not known"), policy.cause
        assert policy.agent_can == (policy.category is Category.AGENT), policy.cause
        if policy.by_agent.partition(":")[0] != "no":
            assert policy.attempts == 1, policy.cause


def test_causes_that_count_as_zero_are_the_agents() -> None:
    assert {policy_for(Category.AGENT, cause).cause for cause in COUNTED_AS_ZERO} == COUNTED_AS_ZERO


@pytest.mark.parametrize("category", [Category.AGENT, Category.BENCHMARK, Category.USER])
def test_wrong_answers_of_the_agent_or_author_are_not_retried_for_ever(category: Category) -> None:
    assert all(policy.attempts <= 2 for policy in TABLE if policy.category is category)


@given(
    st.sampled_from(TABLE),
    st.integers(1, 50),
    st.one_of(st.none(), st.floats(0, 3600)),
    st.integers(0, 2**32),
)
def test_backoff_is_bounded_jittered_and_honours_retry_after(
    policy: object, failures: int, retry_after: float | None, seed: int
) -> None:
    waited = backoff(policy, failures, retry_after, random.Random(seed))  # type: ignore[arg-type]
    ceiling = min(policy.most_s, policy.base_s * 2.0 ** (failures - 1))  # type: ignore[attr-defined]
    assert waited >= (retry_after or 0)
    assert waited <= max(ceiling, retry_after or 0)
    assert waited >= ceiling / 4
