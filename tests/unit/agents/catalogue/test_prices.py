"""Costs by published prices."""

from __future__ import annotations

import subprocess
import sys

import pytest

from valkyrie.agents.catalog.claude_code import ClaudeCode
from valkyrie.agents.protocol import AgentOptions, AgentUsage
from valkyrie.prices import price

MILLION = AgentUsage(input_tokens=1_000_000, output_tokens=1_000_000)


def cost_of(model: str, usage: AgentUsage) -> tuple[float, str] | None:
    return price(
        model,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
    )


def test_a_million_tokens_each_way_cost_what_the_vendor_publishes() -> None:
    found = cost_of("claude-sonnet-4-5", AgentUsage(input_tokens=100_000, output_tokens=10_000))
    assert found is not None
    dollars, source = found
    assert dollars == pytest.approx(0.1 * 3 + 0.01 * 15)
    assert source.startswith("prices of genai-prices ")


def test_cached_tokens_are_cheaper_and_counted_once() -> None:
    found = cost_of("gpt-5", AgentUsage(input_tokens=100_000, cached_tokens=100_000, output_tokens=0))
    assert found is not None
    assert found[0] == pytest.approx(0.1 * 0.125)


@pytest.mark.parametrize(
    "written",
    [
        "anthropic/claude-sonnet-4-5",
        "openrouter/anthropic/claude-sonnet-4-5",
        "claude-sonnet-4-5-20250929",
        "claude-sonnet-4-5@20250929",
        "Claude-Sonnet-4-5-2099-01-01",
        "us.anthropic.claude-sonnet-4-5-20250929-v1:0",
    ],
)
def test_vendors_and_dates_in_a_name_make_no_difference(written: str) -> None:
    assert cost_of(written, MILLION) == cost_of("claude-sonnet-4-5", MILLION)


@pytest.mark.parametrize("unknown", ["", "/", "mock-model", "claude", "x" * 10_000, "openai/"])
def test_a_model_without_a_price_costs_nothing_that_is_known(unknown: str) -> None:
    assert cost_of(unknown, MILLION) is None


def test_more_cached_than_sent_is_taken_as_all_cached() -> None:
    odd = cost_of("gpt-5", AgentUsage(input_tokens=1000, cached_tokens=5000))
    assert odd == cost_of("gpt-5", AgentUsage(input_tokens=1000, cached_tokens=1000))


def test_the_price_list_is_not_loaded_before_it_is_asked() -> None:
    code = "import sys, valkyrie.agents.installed; sys.exit('genai_prices' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_model_of_ones_own_has_no_price_that_anybody_knows() -> None:
    """Neither published prices nor what the agent reckons with its vendor's."""
    agent = ClaudeCode(AgentOptions(model="claude-sonnet-4-5"))
    for usage in (AgentUsage(1000, 0, 100), AgentUsage(1000, 0, 100, cost=1.5, cost_source="agent")):
        assert agent._priced(usage, "http://127.0.0.1:9/v1") == AgentUsage(1000, 0, 100)
        assert (agent._priced(usage, None) or usage).cost
