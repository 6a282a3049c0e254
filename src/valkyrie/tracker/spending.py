"""Runs that have cost what they may."""

from __future__ import annotations


def limit_reached(run_id: str, spent: float, limit: float | None) -> str | None:
    """Why a run would stop at once, and the command that lets it go on; None when it would not."""
    if limit is None or spent < limit:
        return None
    return (
        f"Run {run_id[:8]} has cost ${spent:.2f} of --max-cost ${limit:.2f}, so nothing more of it begins. "
        f"`valk run update {run_id[:8]} --max-cost N` raises the limit; then go on."
    )
