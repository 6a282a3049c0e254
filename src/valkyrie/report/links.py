"""Where else a run can be looked at."""

from __future__ import annotations

from valkyrie.keeping.keys import run_prefix
from valkyrie.nouns import Json


def run_links(place: Json | None, run_id: str) -> dict[str, str]:
    """Where a person finds a run's artifacts and logs, besides the machine it ran on."""
    found: dict[str, str] = {}
    artifacts: Json = (place or {}).get("artifacts") or {}
    logs: Json = (place or {}).get("logs") or {}
    if artifacts.get("kind") == "s3":
        below = "/".join(filter(None, (artifacts.get("prefix"), run_prefix(run_id))))
        found["artifacts"] = f"s3://{artifacts['bucket']}/{below}"
    elif artifacts.get("folder"):
        found["artifacts"] = f"{artifacts['folder']}/{run_prefix(run_id)}"
    if logs.get("group"):
        found["logs"] = f"{logs['group']}/{run_id}"
    elif logs.get("folder"):
        found["logs"] = f"{logs['folder']}/{run_id}"
    for name, kept in (("artifacts_url", artifacts), ("logs_url", logs)):
        if page := kept.get("page"):
            found[name] = str(page)
    return found
