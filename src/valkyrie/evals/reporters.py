"""Reporters people bring along: told how an eval goes, and what it came to.

A reporter is an object with any of `on_run_start(run)`, `on_trial_result(trial)` and
`on_run_complete(summary, artifacts, status)`; each is given plain data. What is named may be a class, a
function `register_reporters(registry)`, or a `.py` file with either. One that fails is told of once and left
alone: it changes neither results nor exit code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from valkyrie import __version__, plugins
from valkyrie.errors import UserError
from valkyrie.evals.records import to_line, trial_key
from valkyrie.evals.results import EvalResult, Invocation, StimulusResult
from valkyrie.evals.writing import run_summary
from valkyrie.nouns import Json

GROUP = "valkyrie.reporters"
"""The entry point group."""
METHODS = ("on_run_start", "on_trial_result", "on_run_complete")


@dataclass(slots=True)
class ReporterRegistry:
    """What plugins register their reporters with."""

    reporters: list[Any] = field(default_factory=list)

    def register(self, reporter: Any) -> None:
        """Add a reporter, or a class that makes one without arguments."""
        made = reporter() if inspect.isclass(reporter) else reporter
        if not any(callable(getattr(made, name, None)) for name in METHODS):
            raise UserError(f"the reporter {reporter!r} has none of the methods {', '.join(METHODS)}.")
        self.reporters.append(made)


def load_reporters(specifiers: Iterable[str]) -> list[Any]:
    """The reporters of these plugins. Raises UsageError for a missing one, UserError for a broken one."""
    registry = ReporterRegistry()
    for specifier in specifiers:
        found = _load(specifier)
        before = len(registry.reporters)
        try:
            _take(found, registry)
        except UserError:
            raise
        except Exception as error:
            # Other people's code runs here, and may raise anything.
            raise UserError(f"--reporter-plugin {specifier}: {type(error).__name__}: {error}") from error
        if len(registry.reporters) == before:
            raise UserError(
                f"--reporter-plugin {specifier} has no reporter: a class with one of {', '.join(METHODS)}, "
                "or a function register_reporters(registry) is expected."
            )
    return registry.reporters


def _load(specifier: str) -> Any:
    file, py, rest = specifier.partition(".py")
    if not py or (rest and not rest.startswith(":")):
        return plugins.load(specifier, group=GROUP)
    module = plugins.load_file(Path(f"{file}.py"))
    return getattr(module, rest[1:], None) if rest else module


def _take(found: Any, registry: ReporterRegistry) -> None:
    if isinstance(found, ModuleType):
        register = getattr(found, "register_reporters", None)
        if callable(register):
            register(registry)
            return
        for one in vars(found).values():
            own = inspect.isclass(one) and one.__module__ == found.__name__
            if own and any(callable(getattr(one, name, None)) for name in METHODS):
                registry.register(one)
    elif inspect.isfunction(found):
        found(registry)
    elif found is not None:
        registry.register(found)


@dataclass(slots=True)
class Reporting:
    """Tells reporters what happens, and people when one of them fails."""

    reporters: list[Any]
    complain: Callable[[str], None]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """What `.vally.yaml` says besides."""

    def run_started(self, evals: Sequence[EvalResult], run_id: str | None, name: str) -> None:
        """Everything is planned and stored; nothing has run."""
        about = [_about(one) for one in evals]
        source = {"tool": "valkyrie", "version": __version__}
        run: Json = {"runId": run_id, "name": name, "evals": about, "source": source}
        self._tell("on_run_start", {**run, "metadata": dict(self.metadata)})

    def stimulus_done(self, stimulus: StimulusResult, of: EvalResult) -> None:
        """All trials of a stimulus have ended."""
        for trial in stimulus.trials if self.reporters else ():
            item = {
                "id": trial_key(trial),
                "stimulus": stimulus.name,
                "prompt": stimulus.prompt,
                **_about(of),
            }
            self._tell("on_trial_result", {"item": item, "result": to_line(trial)})

    def run_completed(
        self, invocation: Invocation, artifacts: Mapping[str, Path], *, interrupted: bool
    ) -> None:
        """Everything ended, or somebody ended it; files are written."""
        status = "interrupted" if interrupted else "failed" if invocation.exit_code else "passed"
        plain = {key: str(path) for key, path in artifacts.items()}
        self._tell("on_run_complete", run_summary(invocation), plain, status)

    def _tell(self, method: str, *words: Any) -> None:
        for reporter in list(self.reporters):
            call = getattr(reporter, method, None)
            if not callable(call):
                continue
            try:
                call(*words)
            except Exception as error:  # noqa: BLE001 - other people's code, which the eval does not depend on
                self.reporters.remove(reporter)
                name = getattr(reporter, "name", None) or type(reporter).__name__
                self.complain(
                    f"The reporter {name} failed in {method} and is told nothing more: "
                    f"{type(error).__name__}: {error}"
                )


def _about(one: EvalResult) -> Json:
    return {
        "evalName": one.name,
        "evalFile": one.file,
        "variant": one.variant,
        "model": one.model,
        "executor": one.executor,
        "threshold": one.threshold,
    }
