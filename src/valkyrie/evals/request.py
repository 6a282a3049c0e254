"""What `valkyrie eval` was asked for: plain data, kept with the job so that it can go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from sandboxes.values import NetworkPolicy
from valkyrie.config.permissions import Allowance
from valkyrie.domain import Json
from valkyrie.views.requests import VerifyChoice

DEFAULT_WORKERS = 5
DEFAULT_RETRIES = 2
DEFAULT_SHUTDOWN_S = 5.0


@dataclass(frozen=True, slots=True)
class EvalItem:
    """One spec with one model, perhaps as a variant of an experiment."""

    file: Path
    model: str | None = None
    """None: the spec's own."""
    variant: str = "main"
    patch: Json = field(default_factory=dict)
    patch_base: Path | None = None
    experiment: Json | None = None
    """What an experiment's records say of it."""
    stimuli: tuple[str, ...] | None = None
    """Only these, where tags chose."""


@dataclass(frozen=True, slots=True)
class EvalRequest:
    """Everything a command line says."""

    items: Sequence[EvalItem]
    name: str | None = None
    executor: str | None = None
    """Over the specs' own."""
    executor_plugins: tuple[str, ...] = ()
    grader_plugins: tuple[str, ...] = ()
    reporter_plugins: tuple[str, ...] = ()
    otlp_endpoint: str | None = None
    """Where traces of its trials are sent."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Of its project, for reporters."""
    project_file: Path | None = None
    """The `.vally.yaml` whose plugins are among these; it must be trusted whenever they are loaded."""
    project_digest: str | None = None
    """Of what of that project can execute."""
    eval_plugin: str | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    work_dir: Path | None = None
    skill_dir: Path | None = None
    timeout: float | None = None
    threshold: float | None = None
    judge_model: str | None = None
    judge_url: str | None = None
    judge_effort: str | None = None
    runs: int | None = None
    max_retries: int = DEFAULT_RETRIES
    skip_grade: bool = False
    enforce_constraints: bool = False
    skip_validate: bool = False
    workers: int = DEFAULT_WORKERS
    parallel_trials: bool = False
    workspace: Path | None = None
    shutdown_timeout: float = DEFAULT_SHUTDOWN_S
    provider: str | None = None
    """None: `null` where nothing has to run, else `local`."""
    network: NetworkPolicy | None = None
    """None: `none` for agents that need no model, else `public`."""
    model_url: str | None = None
    verify: VerifyChoice | None = None
    """Where graders' programs run; None: in a fresh sandbox."""
    family: str | None = None
    """The tag that names the family of a stimulus; None is `family`."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    kwargs: Mapping[str, str] = field(default_factory=dict)
    pass_env: tuple[str, ...] = ()
    """Variables of the user that specs and their own agents may have."""
    allow_paths: tuple[str, ...] = ()
    """What outside the project specs may name; absolute."""
    output_dir: Path | None = None
    """Below this it makes a folder of its own once everything is checked; None: it leaves no files."""
    folder: Path | None = None
    """Where its files are written."""
    run_id: str | None = None
    """What records and the folder are named by, if somebody named it."""
    shard: str | None = None
    """The folder of this part of an experiment, below that of the run."""
    begins_with: Mapping[str, Json] = field(default_factory=dict)
    """Files its folder has from the beginning, by name."""
    junit: bool = False
    command: tuple[str, ...] = ()
    """The words that asked for it."""

    @property
    def allowed(self) -> Allowance:
        """What its specs may take: `-s` names variables as well as `--pass-env`."""
        return Allowance(tuple(sorted({*self.pass_env, *self.secrets})), self.allow_paths)

    def to_json(self) -> Json:
        """As it is kept."""
        found: Json = _plain(asdict(self))
        return found

    @classmethod
    def from_json(cls, data: Json) -> EvalRequest:
        """Return what was kept; what this version does not know any more is left out."""
        known = {one.name for one in fields(cls)}
        kept = {name: value for name, value in data.items() if name in known}
        for name in ("work_dir", "skill_dir", "workspace", "output_dir", "folder", "project_file"):
            kept[name] = Path(kept[name]) if kept.get(name) else None
        for name in (
            "executor_plugins",
            "grader_plugins",
            "reporter_plugins",
            "command",
            "pass_env",
            "allow_paths",
        ):
            kept[name] = tuple(kept.get(name, ()))
        kept["items"] = [_item(one) for one in kept["items"]]
        return cls(**kept)


def _item(data: Json) -> EvalItem:
    return EvalItem(
        file=Path(data["file"]),
        model=data["model"],
        variant=data["variant"],
        patch=data["patch"],
        patch_base=Path(data["patch_base"]) if data["patch_base"] else None,
        experiment=data["experiment"],
        stimuli=None if data["stimuli"] is None else tuple(data["stimuli"]),
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value
