"""Which of a dataset's tasks to run: ids, a file of ids, a slice. Pure functions on ordered ids."""

from __future__ import annotations

from collections.abc import Sequence

from valkyrie.errors import UsageError
from valkyrie.suggest import did_you_mean

_SLICE_HELP = "write start:stop:step, for example --slice :10, --slice 5:15 or --slice ::2"
_MAX_NAMED = 5


def parse_ids(text: str) -> list[str]:
    """`a,b` → `["a", "b"]`; blanks around ids and empty parts are dropped."""
    return [part for part in (piece.strip() for piece in text.split(",")) if part]


def parse_ids_file(text: str) -> list[str]:
    """One id per line; blank lines and lines that start with `#` are skipped."""
    lines = (line.strip() for line in text.removeprefix("\ufeff").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def parse_slice(text: str) -> slice:
    """`start:stop:step` with one to three parts, empty parts open; a bare `5` starts there."""
    parts = text.split(":")
    if len(parts) > 3 or not text.strip():
        raise UsageError(f"--slice {text!r} is not a slice; {_SLICE_HELP}")
    try:
        numbers = [int(part) if part.strip() else None for part in parts]
    except ValueError:
        raise UsageError(f"--slice {text!r} is not a slice; {_SLICE_HELP}") from None
    start, stop, step = [*numbers, None, None][:3]
    if step == 0:
        raise UsageError(f"--slice {text!r} has step 0, which selects nothing; {_SLICE_HELP}")
    return slice(start, stop, step)


def select(
    available: Sequence[str], *, task_ids: Sequence[str] | None = None, slice_text: str | None = None
) -> list[str]:
    """The chosen ids: as asked for (duplicates once) or all of them, and of these a slice."""
    if task_ids is not None:
        chosen = _by_id(available, task_ids)
        if not chosen:
            raise UsageError("no task ids were given; name at least one, or leave the option out for all")
    elif not available:
        raise UsageError("the dataset has no tasks")
    else:
        chosen = list(available)
    if slice_text is None:
        return chosen
    sliced = chosen[parse_slice(slice_text)]
    if not sliced:
        raise UsageError(f"--slice {slice_text!r} selects none of the {len(chosen)} tasks")
    return sliced


def _by_id(available: Sequence[str], task_ids: Sequence[str]) -> list[str]:
    known = set(available)
    chosen = list(dict.fromkeys(task_ids))
    unknown = [task_id for task_id in chosen if task_id not in known]
    if not unknown:
        return chosen
    named = ", ".join(repr(task_id) for task_id in unknown[:_MAX_NAMED])
    more = f" and {len(unknown) - _MAX_NAMED} more" if len(unknown) > _MAX_NAMED else ""
    word = "task id" if len(unknown) == 1 else "task ids"
    hint = next(filter(None, (did_you_mean(task_id, available) for task_id in unknown[:_MAX_NAMED])), "")
    raise UsageError(f"unknown {word} {named}{more}.{hint} `valk benchmark tasks` lists them.")
