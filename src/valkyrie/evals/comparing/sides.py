"""The two sides of a comparison: result folders, read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from valkyrie.errors import UsageError, UserError
from valkyrie.evals.comparing.places import find_results
from valkyrie.evals.records import read_lines
from valkyrie.evals.results import TrialResult


@dataclass(frozen=True, slots=True)
class ResultSide:
    """One side."""

    name: str
    """What people call it."""
    file: Path
    trials: Sequence[TrialResult]

    @property
    def folder(self) -> Path:
        """What paths in its records are relative to."""
        return self.file.parent


def read_sides(baseline: str, treatment: str) -> tuple[ResultSide, ResultSide]:
    """Both sides; UsageError where they are not two, UserError where a file cannot be read."""
    files = find_results(baseline), find_results(treatment)
    if files[0].resolve() == files[1].resolve():
        raise UsageError(f"{baseline!r} and {treatment!r} are the same results; give two of them.")
    trials = [_read(file) for file in files]
    names = _names((baseline, treatment), files, trials)
    first, second = (
        ResultSide(name, file, own) for name, file, own in zip(names, files, trials, strict=True)
    )
    return first, second


def _read(file: Path) -> list[TrialResult]:
    try:
        trials = read_lines(file)
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from None
    except UserError as error:
        raise UserError(f"{file}: {error}", cause=error.cause) from None
    if not trials:
        raise UserError(f"{file} holds no trial results.")
    variants = list(dict.fromkeys(trial.variant for trial in trials))
    if len(variants) > 1:
        raise UsageError(
            f"{file} holds several variants ({', '.join(variants[:5])}); compare the folders of two of them."
        )
    return trials


def _folder(word: str) -> str:
    """The name of the folder someone named: `before` says more than the time of the eval in it."""
    path = Path(word).expanduser().resolve()
    return path.name if path.is_dir() else path.parent.name


def _names(
    words: tuple[str, str], files: tuple[Path, Path], trials: Sequence[Sequence[TrialResult]]
) -> tuple[str, str]:
    """The variants where they differ, else the folders as they were given or found, else the words."""
    variants = trials[0][0].variant, trials[1][0].variant
    if variants[0] != variants[1]:
        return variants
    said = _folder(words[0]), _folder(words[1])
    if files[0].name == files[1].name and said[0] != said[1]:
        return said
    folders = files[0].resolve().parent.name, files[1].resolve().parent.name
    if files[0].name == files[1].name and folders[0] != folders[1]:
        return folders
    return (words[0], words[1]) if words[0] != words[1] else (f"{words[0]} (A)", f"{words[1]} (B)")
