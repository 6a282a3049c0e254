"""What a command line says about an eval, frozen into the benchmark's source: it can be opened again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields

from sandboxes.values import NetworkPolicy
from valkyrie.nouns import Json
from valkyrie.permissions import Allowance

WORKSPACE = "/workspace"
"""Where the workspace is in a sandbox."""


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """Everything besides the spec's own file that decides what a trial of it is."""

    params: Mapping[str, str] = field(default_factory=dict)
    patch: Json = field(default_factory=dict)
    """Laid over the spec before it is read: an experiment's variant."""
    variant: str = "main"
    model: str | None = None
    executor: str | None = None
    """What the agent is called."""
    work_dir: str | None = None
    """Absolute; None only where no stimulus needs it."""
    skill_dir: str | None = None
    skills_at: str = ".agents/skills"
    """Where the agent looks for skills, below the workspace."""
    stimuli: tuple[str, ...] | None = None
    """Only these, where a tag or suite chose."""
    runs: int | None = None
    timeout: float | None = None
    threshold: float | None = None
    judge_model: str | None = None
    judge_url: str | None = None
    judge_effort: str | None = None
    grader_plugins: tuple[str, ...] = ()
    project_file: str | None = None
    """The `.vally.yaml` that names some of these; None where only the command line does."""
    project_digest: str | None = None
    """Of what of its project could execute when the run was planned."""
    eval_plugin: str | None = None
    """What turns the file into a spec, where it is none."""
    skip_grade: bool = False
    enforce_constraints: bool = False
    """A constraint that is broken fails its trial."""
    workspace: str | None = None
    """`--workspace`: where final states are kept; absolute."""
    network: NetworkPolicy = "public"
    hidden: tuple[str, ...] = ()
    """What no agent sees of `work_dir`: specs, fixtures, results; absolute."""
    pass_env: tuple[str, ...] = ()
    """Variables of the user that `${NAME}` may be filled from."""
    allow_paths: tuple[str, ...] = ()
    """What outside the project its spec may name; absolute."""

    @property
    def allowed(self) -> Allowance:
        return Allowance(self.pass_env, self.allow_paths)

    def to_json(self) -> Json:
        """Only what was said."""
        plain = type(self)()
        return {key: value for key, value in asdict(self).items() if value != getattr(plain, key)}

    @classmethod
    def from_json(cls, data: Json) -> EvalOptions:
        known = {one.name for one in fields(cls)}
        kept: Json = {key: value for key, value in data.items() if key in known}
        for key in ("stimuli", "grader_plugins", "hidden", "pass_env", "allow_paths"):
            if kept.get(key) is not None:
                kept[key] = tuple(kept[key])
        return cls(**kept)
