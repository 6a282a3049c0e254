"""Did you mean …? Runners ask that too, so it lives in `benchmark_runner.suggest`."""

from __future__ import annotations

from benchmark_runner.suggest import did_you_mean as did_you_mean
