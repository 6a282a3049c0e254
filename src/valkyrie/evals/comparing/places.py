"""Where results are: the words of a command line as files."""

from __future__ import annotations

from pathlib import Path

from valkyrie.errors import UsageError

RESULTS = "results.jsonl"
_TIMESTAMP = 19
"""Characters of a folder's name that is a time: 2025-01-15T10-30-00."""


def names_results(word: str) -> bool:
    """Whether a word of the command line means a result folder or file, not a run or a job."""
    path = Path(word).expanduser()
    if word in (".", "..") or word.startswith(("/", "./", "../", "~")) or word.endswith(("/", ".jsonl")):
        return True
    if "/" in word:  # a run may be named JOB/AGENT
        return path.exists()
    return path.is_dir() and _within(path) is not None


def find_results(word: str) -> Path:
    """The results.jsonl a word stands for: itself, in the folder, or in the newest folder inside it."""
    path = Path(word).expanduser()
    if path.is_file():
        return path
    if not path.exists():
        raise UsageError(f"There is no {path}; give a result folder or a {RESULTS}.")
    found = _within(path)
    if found is None:
        raise UsageError(f"There is no {RESULTS} in {path}.{_inside(path)}")
    return found


def _within(folder: Path) -> Path | None:
    if (folder / RESULTS).is_file():
        return folder / RESULTS
    stamped = [one for one in _children(folder) if _is_time(one.parent.name)]
    return max(stamped, key=lambda file: file.parent.name, default=None)


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.glob(f"*/{RESULTS}"))
    except OSError:
        return []


def _is_time(name: str) -> bool:
    return len(name) >= _TIMESTAMP and name[:4].isdigit() and name[10:11] == "T"


def _inside(folder: Path) -> str:
    names = [one.parent.name for one in _children(folder)]
    return f" Folders in it have one: {', '.join(names[:10])}." if names else ""
