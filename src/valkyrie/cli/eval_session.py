"""Which specs a command line means: files, a suite, or all of the project that have a tag."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmark_runner.terminal import Column, Table, safe
from valkyrie.benchmarks.eval_spec.source import EvalOptions, asking_of, graders_of, open_spec
from valkyrie.cli.options import confirm
from valkyrie.cli.output import Output
from valkyrie.config.values import data_folder, effective
from valkyrie.errors import UsageError, UserError, ValkyrieError
from valkyrie.evals.otlp import OtlpReporter
from valkyrie.evals.plan import EvalItem, EvalRequest, plan_evals, trials_of
from valkyrie.evals.plugins import ReporterGroup, check_still_trusted, load_reporters, used_plugins
from valkyrie.evals.runner import MARKER, find_marker
from valkyrie.evals.stored_results import skipped_eval
from valkyrie.grade import judges
from valkyrie.report.formats import plural
from valkyrie.report.run_details import gaps_text
from valkyrie.specs.model import Project
from valkyrie.specs.project import discover, fits, parse_tags, suite_files, suite_of
from valkyrie.text import did_you_mean
from valkyrie.tracker.local import LocalTracker

if TYPE_CHECKING:
    from valkyrie.evals.console import Printer
    from valkyrie.evals.plan import AgentAsks, PlannedEval, PlannedEvals
    from valkyrie.evals.results import SpecResult, StimulusResult
    from valkyrie.specs.experiment import Experiment
    from valkyrie.tracker.foreground import ForegroundJob


Chosen = list[tuple[Path, tuple[str, ...] | None]]
"""Files, and which of their stimuli; None is all."""


def items_of(given: Mapping[str, Any], project: Project) -> list[EvalItem]:
    """One item for each spec and model."""
    _check(given)
    models = _models(given["model"])
    chosen = _chosen(given, project)
    if given["stimuli"]:
        chosen = _named(chosen, given)
    return [EvalItem(file, model, stimuli=names) for file, names in chosen for model in models]


def _named(chosen: Chosen, given: Mapping[str, Any]) -> Chosen:
    """Only the stimuli of these names; a word that is none may hold several between commas."""
    options = _options(given)
    there = {
        file: [
            one.name for one in open_spec(file, options).spec.stimuli if names is None or one.name in names
        ]
        for file, names in chosen
    }
    known = {name for names in there.values() for name in names}
    wanted: list[str] = []
    for word in given["stimuli"]:
        wanted += [word] if word in known else [one.strip() for one in word.split(",") if one.strip()]
    if unknown := next((one for one in wanted if one not in known), None):
        shown = ", ".join(sorted(known)[:10])
        raise UsageError(
            f"no stimulus is called {unknown!r}.{did_you_mean(unknown, known)} There are: {shown}."
        )
    found = [(file, tuple(one for one in names if one in wanted)) for file, names in there.items()]
    return [(file, names) for file, names in found if names]


def _options(given: Mapping[str, Any]) -> EvalOptions:
    """What a spec is read with."""
    return EvalOptions(
        params=given["params"],
        eval_plugin=given["eval_plugin"],
        pass_env=given["pass_env"],
        allow_paths=given["allow_paths"],
    )


def _check(given: Mapping[str, Any]) -> None:
    specs, suite, tags, plugin = given["specs"], given["suite"], given["tags"], given["eval_plugin"]
    if specs and suite:
        raise UsageError(
            "--suite cannot be combined with --eval-spec: a suite says itself which specs it has."
        )
    if not (specs or suite or tags):
        raise UsageError(
            "name what to run: a spec or a folder that holds one, --suite NAME, or --tag KEY=VALUE. "
            "`valk init` writes a first spec."
        )
    if plugin and suite:
        raise UsageError("--eval-plugin cannot be combined with --suite.")
    if plugin and not specs:
        raise UsageError("--eval-plugin needs --eval-spec: the file it is to read.")


def _models(said: str | None) -> list[str | None]:
    if said is None:
        return [None]
    models = [one.strip() for one in said.split(",")]
    if not all(models):
        raise UsageError(f"--model {said!r}: a name is missing between the commas.")
    if twice := next((one for one in models if models.count(one) > 1), None):
        raise UsageError(f"--model names {twice} twice; --trials N tries each stimulus N times.")
    return list(models)


def _chosen(given: Mapping[str, Any], project: Project) -> Chosen:
    tags = parse_tags(given["tags"])
    if given["specs"]:
        files = _files(given["specs"])
        filters: list[Mapping[str, tuple[str, ...]]] = [tags] if tags else []
    elif given["suite"]:
        suite = suite_of(project, given["suite"])
        files = suite_files(project, suite, given["allow_paths"])
        filters = [one for one in (suite.filter, tags) if one]
    else:
        files, filters = discover(project, given["allow_paths"]), [tags]
    if not filters:
        return [(file, None) for file in files]
    return _with_tags(files, filters, given)


def _with_tags(
    files: Sequence[Path], filters: Sequence[Mapping[str, tuple[str, ...]]], given: Mapping[str, Any]
) -> Chosen:
    """The stimuli of these files that fit every filter; files with none are left out."""
    options = _options(given)
    found: Chosen = []
    tags: dict[str, dict[str, None]] = {}
    for file in files:
        stimuli = open_spec(file, options).spec.stimuli
        for one in stimuli:
            for key, values in one.tags.items():
                tags.setdefault(key, {}).update(dict.fromkeys(values))
        names = tuple(one.name for one in stimuli if all(fits(one.tags, wanted) for wanted in filters))
        if names:
            found.append((file, names))
    if not files:
        raise UsageError(
            "there is no eval spec here to look for tags in. --eval-spec names one; `paths.evals` of "
            ".vally.yaml says where they are (evals/ without it)."
        )
    if not found:
        looked = f"{len(files)} eval spec{'s' if len(files) != 1 else ''}"
        raise UsageError(
            f"no stimulus of {looked} has the tags that were asked for. {_known_tags(tags, filters)}"
        )
    return found


def _known_tags(
    known: Mapping[str, Mapping[str, None]], filters: Sequence[Mapping[str, tuple[str, ...]]]
) -> str:
    """The first wanted tag or value that nothing has, beside those there are."""
    for key, values in ((key, values) for wanted in filters for key, values in wanted.items()):
        if key not in known:
            there = ", ".join(sorted(known)[:10]) or "none"
            return f"Tags they have: {there}.{did_you_mean(key, known)}"
        if not any(value in known[key] or value.startswith("!") for value in values):
            return (
                f"Values of {key}: {', '.join(sorted(known[key])[:10])}.{did_you_mean(values[0], known[key])}"
            )
    return "Each of them is there, but not on one stimulus."


def _files(said: Sequence[str]) -> list[Path]:
    return list(dict.fromkeys(spec_file(one) for one in said))


def spec_file(word: str | Path, option: str = "--eval-spec") -> Path:
    """Return the file of a spec that is named by its path, or by that of a folder that holds one."""
    file = Path(word).resolve()
    if str(word) and file.is_dir():
        return only_file(file, f"{option} {word}", ".eval", "eval spec")
    if not file.is_file():
        raise UsageError(f"{option} {word}: {_no_file(str(word), file)}")
    return file


def only_file(folder: Path, said: str, kind: str, what: str) -> Path:
    """Return the one YAML file of a kind that a folder holds; UsageError where none or several may be meant.

    `eval.yaml` is it, else the only `*.eval.yaml`, else the only file that is no settings file.
    """
    held = sorted(
        one.name
        for one in folder.iterdir()
        if one.suffix in (".yaml", ".yml") and not one.name.startswith(".")
    )
    for found in (
        [one for one in held if one.partition(".")[0] == kind.removeprefix(".") and one.count(".") == 1],
        [one for one in held if Path(one).stem.endswith(kind)],
        [one for one in held if kind == ".eval" and not Path(one).stem.endswith(".experiment")],
    ):
        if len(found) == 1:
            return folder / found[0]
        if found:
            names = f"{', '.join(found[:5])}{' and more' if len(found) > 5 else ''}"
            raise UsageError(f"{said} is a folder with several: {names}. Name the one that is meant.")
    raise UsageError(f"{said} is a folder that holds no {what}.")


def _no_file(word: str, file: Path) -> str:
    """Why this is no spec, and which one is near."""
    if word in ("-", ""):
        return "name a file; its paths are relative to where it is, so a spec is not read from stdin."
    beside = [one.name for one in file.parent.iterdir()] if file.parent.is_dir() else []
    return f"there is no such file.{did_you_mean(file.name, beside)}"


# What commands that run evals share: this machine's tracker, the plan they show, who is told.


@contextmanager
def tracker_here() -> Iterator[LocalTracker]:
    """Evals run on this machine, whatever tracker other commands are configured to use."""
    opened = LocalTracker(data_folder())
    try:
        yield opened
    finally:
        opened.close()


def tell_tracker(output: Output, folder: Path | None) -> None:
    """Where a tracker is configured: that it knows nothing of this eval, and how it gets to know."""
    url = effective("tracker_url").value
    if url and folder is not None:
        output.note(f"Evals run on this machine; {url} has none of it yet: `valk ingest {folder}`")


def job_of_folder(folder: Path) -> str:
    """The job that wrote an output folder, or the newest folder in it."""
    within = sorted(folder.glob(f"*/{MARKER}"), reverse=True)
    for place in (folder, *(one.parent for one in within)):
        if found := find_marker(place):
            return str(found["id"])
    raise UsageError(f"--resume {folder}: neither it nor a folder in it holds the {MARKER} of an eval.")


def check_kind(tracker: LocalTracker, ref: str, *, experiment: bool) -> None:
    """UsageError for an experiment where an eval is gone on with, and the other way round."""
    is_experiment = any(item["experiment"] for item in tracker.fetch_foreground(ref)["items"])
    if is_experiment and not experiment:
        raise UsageError(f"{ref} is an experiment; `valk experiment run --resume {ref}` goes on.")
    if experiment and not is_experiment:
        raise UsageError(f"{ref} is an eval; `valk eval --resume {ref}` goes on.")


def reporting_of(output: Output, request: EvalRequest) -> ReporterGroup | None:
    """Whoever is told besides people; None: nobody. Raises UserError for a plugin that cannot be loaded."""
    if not request.reporter_plugins and request.otlp_endpoint is None:
        return None
    found = load_reporters(request.reporter_plugins)
    if request.otlp_endpoint is not None:
        found.append(OtlpReporter(request.otlp_endpoint))
    return ReporterGroup(found, output.note, request.metadata)


def reporting_again(output: Output, tracker: LocalTracker, ref: str, *, trust: bool) -> ReporterGroup | None:
    """The same for an eval that goes on, whose plugins must still be trusted."""
    request = EvalRequest.from_json(tracker.fetch_foreground(ref))
    check_still_trusted(request, trust=trust)
    return reporting_of(output, request)


IGNORED = frozenset({"unknown-key", "ignored-key", "stray-grader-key", "unsupported-executor"})
"""Of what an author wrote and nobody reads he is told, key by key."""


class EvalWatch:
    """Tells the printer, and the person beside it."""

    def __init__(
        self, output: Output, printer: Printer, *, verbose: bool, reporting: ReporterGroup | None = None
    ) -> None:
        self._output = output
        self._printer = printer
        self._verbose = verbose
        self._reporting = reporting

    def planned(self, planned: PlannedEvals, job: ForegroundJob | None) -> None:
        warnings = planned.warnings
        told = [one for one in warnings if self._verbose or one.code in IGNORED]
        for finding in told:
            self._output.note(f"{finding.severity}: {finding}")
        if count := len(warnings) - len(told):
            said = f"{count} warning{'s' if count > 1 else ''} in the specs"
            self._output.note(f"{said}; --verbose or `valk lint` shows them.")
        self._output.notices(job.notices if job else ())
        if self._reporting and job:
            run_id = job.kept.get("run_id") or job.id
            self._reporting.run_started([skipped_eval(one) for one in planned.evals], run_id, job.name)
        if job and job.shows and self._verbose:
            self._output.notices(dict.fromkeys(f"it can show: {gaps_text(one)}" for one in job.shows))

    def progress(self, done: int, total: int, retries: int) -> None:
        self._printer.progress(done, total, retries)

    def stimulus_done(self, stimulus: StimulusResult, of: SpecResult) -> None:
        self._printer.stimulus_done(stimulus, of)
        if self._reporting:
            self._reporting.stimulus_done(stimulus, of)

    def installing(self, line: str) -> None:
        self._printer.note(line)

    def interrupted(self) -> None:
        self._printer.interrupted()


# What an eval or experiment would run, shown by `--dry-run`. Nothing of the project is loaded or started.

_TITLES = {"eval": "Eval", "model": "Model", "executor": "Executor", "stimuli": "Stimuli", "trials": "Trials"}


def show_eval_plan(
    output: Output, request: EvalRequest, project: Project, *, experiment: Experiment | None = None
) -> int:
    """Print the plan; plugins of the project are named and not loaded."""
    used = used_plugins(request, project)
    planned = plan_evals(request, used, shown_only=True)
    rows = _rows(planned, request, variants=experiment is not None)
    goes = _destinations(planned)
    more = {
        "destinations": dict(goes),
        "asks": [{"agent": one.agent, "secrets": dict(one.secrets)} for one in _asks(planned)],
        "plugins": [*used.graders, *used.executors],
    }
    if experiment is not None:
        output.emit("experiment_plan", name=experiment.name, baseline=experiment.baseline, evals=rows, **more)
    else:
        output.emit("eval_plan", evals=rows, **more)
    titles = (["Variant"] if experiment is not None else []) + list(_TITLES.values())
    cells: list[Sequence[str]] = [
        [safe(value) if value is not None else "—" for value in row.values()] for row in rows
    ]
    output.table(Table([Column(title) for title in titles], cells))
    if used:
        output.note(f"{safe(str(used))} comes from the plugins of {project.file}, which were not loaded.")
    for one in _asks(planned):
        output.note(f"{safe(str(one))}; it gets that with {safe(one.flags())}.")
    for name, place in goes:
        output.line(f"{safe(name)} → {safe(place)}")
    output.notices(str(one) for one in planned.warnings)
    total = sum(int(row["trials"]) for row in rows)
    output.line(f"{plural(total, 'trial')}, {request.workers} at once. Nothing was run (--dry-run).")
    return 0


def with_asked(output: Output, request: EvalRequest) -> EvalRequest:
    """Ask on a terminal for what agents of specs want; elsewhere running refuses it.

    Raises ClickException when the user says no.
    """
    if request.executor is not None or not output.interactive:
        return request
    names = list(request.pass_env)
    for asks in _asks(plan_evals(request)):
        confirm(output, f"The spec's own agent {safe(str(asks))}. Let it have them?", yes=False)
        names += asks.names()
    return replace(request, pass_env=tuple(dict.fromkeys(names)))


def _asks(planned: PlannedEvals) -> list[AgentAsks]:
    return list(dict.fromkeys(one.asks for one in planned.evals if one.asks))


def _destinations(planned: PlannedEvals) -> list[tuple[str, str]]:
    """Return which key goes where: of agents as the engine plans them, of judges as they would be asked."""
    found: dict[tuple[str, str], None] = {}
    with tracker_here() as tracker:
        for one in planned.evals:
            request = one.request
            if request and request.provider == "local":
                # Addresses only are wanted: what this machine's sandboxes can do is not tried for that.
                request = replace(request, provider="null")
            try:
                view = tracker.plan(request) if request else None
            except ValkyrieError:
                continue  # said when it is to run
            found |= dict.fromkeys(view.destinations.items() if view else ())
    for one in planned.evals:
        if one.judged:
            found |= dict.fromkeys(_judges(one))
    return list(found)


def _judges(planned: PlannedEval) -> Iterator[tuple[str, str]]:
    asking = asking_of(planned.spec, planned.options)
    made = [one for each in planned.stimuli for one in graders_of(each, planned.spec, planned.options)]
    try:
        for endpoint in judges.endpoints([one.grader for one in made if one.is_judge], asking):
            key = "its key" if endpoint.key else "no key"
            yield f"judge {endpoint.model} ({key})", endpoint.place
    except UserError as error:
        yield "judge", f"cannot be asked yet: {error}"


def _rows(planned: PlannedEvals, request: EvalRequest, *, variants: bool) -> list[dict[str, Any]]:
    return [
        {
            **({"variant": one.item.variant} if variants else {}),
            "eval": one.spec.name,
            "model": one.model,
            "executor": one.agent.name,
            "stimuli": len(one.stimuli),
            "trials": sum(trials_of(stimulus, one.spec, request.runs) for stimulus in one.stimuli),
        }
        for one in planned.evals
    ]
