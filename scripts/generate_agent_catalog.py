"""Write docs/reference/agent-catalog.md from the catalogue; --check only says whether it is up to date."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from valkyrie import plugins
from valkyrie.agents.catalog import CATALOG, CatalogAgent, KeyGroup

TARGET = Path(__file__).resolve().parents[1] / "docs" / "reference" / "agent-catalog.md"
HEAD = """# Agent catalogue

<!-- Written by scripts/generate_agent_catalog.py from the catalogue. Do not edit: run `make docs`. -->

Agents every installation knows by name: `valk run start --agent NAME --model MODEL`, or `NAME:MODEL` in a
job. `valk agent catalog` prints this list.

## What a public agent needs

- **Keys.** Looked for before anything starts: in the environment, in `.env`, among the secrets
  (`valk secret set NAME`). One of those named "one of" is needed; "any of" are given if they are there.
- **No key** is needed with `--model-url URL`, where the model is served instead of at its vendor's. An
  `http` address is reached from sandboxes without a network as well.
- **Packages** are fetched at the first run, once for each version and kind of root file system, from where
  this machine's npm and pip take them. No code of a package is run meanwhile. `valk agent fetch NAME` does
  it ahead, `valk agent layers` lists what is there. Each use compares it with the digest of what was
  installed; one that was changed is refused, and `valk agent fetch` installs it again.
- **Another version**: `-k version 1.2.3`.

Each leaves its own log, a trajectory (`trajectory.json`, ATIF 1.8) and what it used of its model with the
attempt; costs are the agent's own number, or worked out from published prices.

"Tried" says how far an agent was tried against the loopback model server that comes with Valkyrie, in
sandboxes without a network. None was tried with its vendor's own servers.

"""
COLUMNS = ("Agent", "Version", "Keys", "Model", "Parameters (`-k`)", "Tried")


def keys_of(groups: tuple[KeyGroup, ...]) -> str:
    parts = []
    for group in groups:
        names = ", ".join(f"`{name}`" for name in group.names)
        parts.append(f"{'one of' if group.required and len(group.names) > 1 else ''} {names}".strip())
        parts[-1] = parts[-1] if group.required else f"any of {parts[-1]}"
    return "; ".join(parts) or "none"


def parameters_of(entry: CatalogAgent) -> str:
    if entry.version is None:
        return ""
    own: dict[str, str] = getattr(plugins.load(entry.target, group="valkyrie.agents"), "parameters", {})
    return "<br>".join(f"`{name}`: {meaning}" for name, meaning in sorted(own.items()))


def rows() -> Iterator[str]:
    yield f"| {' | '.join(COLUMNS)} |"
    yield f"| {' | '.join('---' for _ in COLUMNS)} |"
    for name, entry in CATALOG.items():
        model = "" if entry.version is None else "needed" if entry.needs_model else "optional"
        said = f"{entry.description[0].upper()}{entry.description[1:]}"
        tried = f"{said}.{f' {entry.tried[0].upper()}{entry.tried[1:]}.' if entry.tried else ''}"
        cells = (f"`{name}`", entry.version or "", keys_of(entry.keys), model, parameters_of(entry), tried)
        yield f"| {' | '.join(cells)} |"


def main(argv: list[str]) -> int:
    page = HEAD + "\n".join(rows()) + "\n"
    if "--check" not in argv:
        TARGET.write_text(page, encoding="utf-8")
        return 0
    if not TARGET.is_file() or TARGET.read_text(encoding="utf-8") != page:
        print(f"{TARGET.name} is stale: run `make docs`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
