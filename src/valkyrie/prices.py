"""What tokens of a model cost, by published prices: those of the installed package. Nothing is fetched."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.metadata import version

_DATE = re.compile(r"[-@]?(?:20\d{6}|20\d\d-\d\d-\d\d)$")
_BEDROCK = re.compile(r"^(?:[a-z]{2,6}\.)?(?:anthropic|openai|google)\.|-v\d+(?::\d+)?$")


def price(
    model: str, *, input_tokens: int, output_tokens: int, cached_tokens: int = 0
) -> tuple[float, str] | None:
    """US dollars and where the prices are from; None for a model without a published price.

    Cached tokens are among the input's. Vendors before a slash (`openrouter/anthropic/…`) and dates at the
    end of a name are tolerated.
    """
    from genai_prices import Usage, calc_price

    counted = Usage(
        input_tokens=input_tokens,
        cache_read_tokens=min(cached_tokens, input_tokens),
        output_tokens=output_tokens,
    )
    for name in _names(model):
        try:
            return float(calc_price(counted, model_ref=name).total_price), _source()
        except (LookupError, ValueError):
            continue
    return None


def _names(model: str) -> Iterator[str]:
    """The name as it is, without its vendors, without its date."""
    bare = model.strip().lower().rpartition("/")[2]
    plain = _BEDROCK.sub("", _BEDROCK.sub("", bare))
    yield from dict.fromkeys(name for name in (bare, plain, _DATE.sub("", plain)) if name)


@cache
def _source() -> str:
    return f"prices of genai-prices {version('genai-prices')}"
