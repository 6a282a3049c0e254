"""What an agent's tokens cost, by published prices."""

from __future__ import annotations

from valkyrie.agents.protocol import Usage
from valkyrie.prices import price


def cost_of(model: str, usage: Usage) -> tuple[float, str] | None:
    """US dollars and where the prices are from; None for a model without a published price."""
    return price(
        model,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
    )
