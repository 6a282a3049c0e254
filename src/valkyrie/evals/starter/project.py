"""`valkyrie init`: a project with one eval, one skill and one suite that works as it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandboxes.registry import public_origin
from valkyrie.errors import UsageError

TEMPLATES = Path(__file__).parent / "files"
_FILES = {
    ".vally.yaml": "project.yaml",
    "evals/hello/eval.yaml": "eval.yaml",
    "evals/hello/.mock-executor/greets-by-name.json": "greets-by-name.json",
    "evals/hello/.mock-executor/asks-for-a-missing-name.json": "asks-for-a-missing-name.json",
    "evals/hello/fixtures/visitors.md": "visitors.md",
    "skills/greeting/SKILL.md": "skill.md",
}
_SCHEMA = "evals/eval.schema.json"
_CI = {"github": {".github/workflows/evals.yml": "github.yaml"}}
_SOURCE = "${{ vars.VALKYRIE_SOURCE }}"
"""Where a workflow installs this program from, unless its installation recorded a place others can reach."""


@dataclass(frozen=True, slots=True)
class StarterFiles:
    """What was written."""

    folder: Path
    files: tuple[Path, ...]
    """Relative to the folder."""


def start_project(folder: Path, *, ci: str | None = None, force: bool = False) -> StarterFiles:
    """Write the first eval of a project into `folder`. What exists is refused unless `force`."""
    texts = _texts(_FILES | _CI.get(ci or "", {}))
    present = [path for path in texts if (folder / path).exists() or (folder / path).is_symlink()]
    if present and not force:
        raise UsageError(
            f"{folder} already has {', '.join(present)}; nothing was written. --force overwrites them."
        )
    for path, text in texts.items():
        file = folder / path
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        except OSError as error:
            raise UsageError(f"cannot write {file}: {error.strerror}") from error
    return StarterFiles(folder, tuple(map(Path, texts)))


def _texts(files: Mapping[str, str]) -> dict[str, str]:
    from valkyrie.specs.schema import json_schema  # made when loaded, and only `init` writes it

    texts = {path: (TEMPLATES / name).read_text(encoding="utf-8") for path, name in files.items()}
    if found := public_origin():
        texts = {path: text.replace(_SOURCE, json.dumps(found)) for path, text in texts.items()}
    return texts | {_SCHEMA: json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"}
